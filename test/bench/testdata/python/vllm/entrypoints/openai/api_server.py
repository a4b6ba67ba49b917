"""Stands in for vLLM's server: each token of all requests under way is a step on the (simulated) GPU, whose result comes by a
small copy. It ends at the request after STUB_SERVER_ANSWERS ones.
"""
import ctypes
import http.server
import json
import os
import queue
import sys
import threading
import time

import simulated

STEP_US = 2000
under_way, lock, steps, answers = [], threading.Lock(), 0, int(os.environ.get("STUB_SERVER_ANSWERS", "1000000"))


def serve_steps():
    global steps
    driver, stream, memory, host = simulated.spin(), ctypes.c_void_p(), ctypes.c_void_p(), (ctypes.c_uint32 * 1)()
    driver.call("cuStreamCreate", ctypes.byref(stream), 1)
    driver.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(4096))
    driver.call("cuMemsetD32Async", memory, 0, ctypes.c_size_t(1024), stream)
    ready.set()
    while True:
        with lock:
            batch = list(under_way)
        if not batch:
            time.sleep(.001)
            continue
        driver.launch(1, 1, stream, ctypes.c_uint64(STEP_US))
        driver.call("cuMemcpyDtoHAsync_v2", host, memory, ctypes.c_size_t(4), stream)
        driver.call("cuStreamSynchronize", stream)
        steps += 1
        for tokens in batch:
            tokens.put(steps)


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self):
        self.answer(f"vllm:iteration_tokens_total_count{{engine=\"0\"}} {steps}.0\n".encode() if self.path == "/metrics" else b"")

    def do_POST(self):
        global answers
        with lock:
            answers -= 1
            if answers < 0:
                os._exit(1)
        wanted = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["max_tokens"]
        tokens = queue.Queue()
        self.send_response(200)
        self.end_headers()
        with lock:
            under_way.append(tokens)
        for _ in range(wanted):
            tokens.get()
            self.send({"choices": [{"text": " w"}]})
        with lock:
            under_way.remove(tokens)
        self.send({"choices": [], "usage": {"completion_tokens": wanted}})
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, event):
        self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        self.wfile.flush()


ready = threading.Event()
threading.Thread(target=serve_steps, daemon=True).start()
ready.wait()
port = int(sys.argv[sys.argv.index("--port") + 1])
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
