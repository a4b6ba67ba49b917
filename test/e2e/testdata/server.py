"""A latency-critical HTTP server: GET /infer puts a kernel on the GPU after 3 ms of preparation, /metrics
does not. The first argument says how it waits for data. Prints its port; ends at the end of its input."""
import asyncio
import ctypes
import http.server
import os
import socketserver
import sys
import threading
import time

cuda = ctypes.CDLL("libcuda.so.1")


def ok(result):
    if result:
        raise RuntimeError(f"CUDA error {result}")


context, module, function, stream = (ctypes.c_void_p() for _ in range(4))
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
ok(cuda.cuModuleLoadData(ctypes.byref(module), b"simulated image"))
ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"sim_spin_us"))
ok(cuda.cuStreamCreate(ctypes.byref(stream), 1))


def infer():
    time.sleep(0.003)
    us = ctypes.c_uint64(40)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(us))
    ok(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, None))
    ok(cuda.cuStreamSynchronize(stream))


def answer(path):
    if path == "/infer":
        infer()
    return b"done"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        ok(cuda.cuCtxSetCurrent(context))
        body = answer(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


async def serve(reader, writer):
    while line := await reader.readline():
        while (await reader.readline()).strip():
            pass
        body = answer(line.split()[1].decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
    writer.close()


def end():
    sys.stdin.read()
    os._exit(0)


threading.Thread(target=end, daemon=True).start()
infer()
if sys.argv[1] == "threads":
    server = Server(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
else:
    async def main():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()
    asyncio.run(main())
