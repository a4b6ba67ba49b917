"""Open-loop load for http_server.py: JPEGs over a few kept connections, at a mean rate, whether or not the answers keep up.
Serves the order run N PORT (PROTOCOL.md): N requests after some warm-up; latencies count from when each was due.
"""
import http.client
import io
import json
import queue
import random
import threading
import time

import PIL.Image

import protocol

CONNECTIONS = 4
INTERVAL_S = 0.01  # the mean
WARM_UP = 100


def jpeg():
    small = PIL.Image.frombytes("RGB", (32, 24), random.Random(1).randbytes(32 * 24 * 3))
    out = io.BytesIO()
    small.resize((640, 480), PIL.Image.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def connect(port):
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def ask(connection, body):
    """One request; what the service answers."""
    connection.request("POST", "/infer", body, {"Content-Type": "image/jpeg"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"status {answer.status}")
    return json.loads(text)


def run(requests, port):
    body, due, latencies = jpeg(), queue.Queue(), []

    def send():
        connection = connect(port)
        while (at := due.get()) is not None:
            ask(connection, body)
            latencies.append((at, time.monotonic_ns() - at))
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    pace, at = random.Random(2), time.monotonic_ns()
    start = at
    for i in range(WARM_UP + requests):
        at += int(INTERVAL_S * pace.uniform(0.5, 1.5) * 1e9)
        if i == WARM_UP:
            start = at
        time.sleep(max(0, at - time.monotonic_ns()) / 1e9)
        due.put(at)
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    return {"start_ns": start, "end_ns": time.monotonic_ns(),
            "latencies_ns": [latency for due_at, latency in latencies if due_at >= start]}


def main():
    if not protocol.begin():
        return
    protocol.answer({})
    for _, requests, port in protocol.orders():
        protocol.answer(run(int(requests), int(port)))


if __name__ == "__main__":
    main()
