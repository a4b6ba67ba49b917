"""The HTTP service of http_server.py as a latency-critical program of the evaluation (protocol.py).

    python3 http_service.py              the service, whose requests come from a process of its own:
    python3 http_service.py load PORT    sends each when it is due, whether or not the answers keep up, as http_load.py

A latency is the client's, from when a request was due to its answer. It is submitted when its image has been decoded.
Nothing gives hints here: the library has those of the sockets, where the system lets it.
"""
import concurrent.futures
import http.server
import itertools
import json
import os
import subprocess
import sys
import threading
import time

import http_load
import protocol

WARM_UP_REQUESTS = 40


def make_load(port):
    """Serves the orders go of the service."""
    body, connections = http_load.jpeg(), threading.local()

    def connect():
        connections.mine = http_load.connect(port)

    def request(go, arrival):
        if not go.goes_on():
            return None
        answer = http_load.ask(connections.mine, body)
        return answer["submitted_ns"] - arrival, time.monotonic_ns() - arrival

    with concurrent.futures.ThreadPoolExecutor(http_load.CONNECTIONS, initializer=connect) as pool:
        for line in sys.stdin:
            go, asked = protocol.Go(line), []
            for arrival in go.arrivals:
                arrival += go.start
                time.sleep(max(0, arrival - time.monotonic_ns()) / 1e9)
                asked.append(pool.submit(request, go, arrival))
            times = list(itertools.takewhile(lambda served: served, (each.result() for each in asked)))
            print(json.dumps([[submitted for submitted, _ in times], [done for _, done in times]]), flush=True)


def main():
    if not protocol.begin():
        return
    import http_server  # uses CUDA
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http_server.Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    without_library = {name: value for name, value in os.environ.items()
                       if name != "LD_PRELOAD" and not name.startswith("GPREEMPT_")}
    load = subprocess.Popen([sys.executable, __file__, "load", str(server.server_address[1])], env=without_library,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def requests(go, _):
        cpu = time.process_time_ns()
        load.stdin.write(go.line)
        load.stdin.flush()
        answer = load.stdout.readline()
        if not answer:
            raise RuntimeError(f"the load ended with status {load.wait()}")
        submitted, done = json.loads(answer)
        return protocol.open_loop(go, submitted, done, time.process_time_ns() - cpu)

    start, apart_ns = time.monotonic_ns(), 5_000_000
    arrivals = [i * apart_ns for i in range(WARM_UP_REQUESTS)]
    requests(protocol.Go(f"go {start} {start + WARM_UP_REQUESTS * apart_ns} 0 0 - {len(arrivals)} "
                         f"{' '.join(map(str, arrivals))}\n"), None)
    protocol.serve(requests)
    load.stdin.close()
    load.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["load"]:
        make_load(int(sys.argv[2]))
    else:
        main()
