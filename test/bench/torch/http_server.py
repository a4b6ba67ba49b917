"""The latency-critical process as a service: HTTP, JPEG decoding on the CPU, ResNet-50 (fp16, batch 1) as a
CUDA graph, standard library and torchvision only; nothing in it knows of the library.

POST /infer takes a JPEG and answers with the class and with when the GPU's work began to wait. As a worker (PROTOCOL.md) it
answers init with its port.
"""
import http.server
import io
import json
import os
import sys
import threading
import time

import PIL.Image
import torch
import torchvision

import protocol

if __name__ == "__main__" and not protocol.begin():
    sys.exit()
torch.backends.cudnn.benchmark = __name__ == "__main__"  # in the evaluation others that start, too, would sway the trials
model = torchvision.models.resnet50().half().cuda().eval().to(memory_format=torch.channels_last)
on_host = torch.zeros(1, 3, 224, 224, dtype=torch.half).pin_memory()
image = torch.empty(1, 3, 224, 224, device="cuda", dtype=torch.half)
one_at_a_time = threading.Lock()


def capture():
    with torch.no_grad():
        for _ in range(10):
            model(image)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            scores = model(image)
    return graph, scores


graph, scores = capture()
to_tensor = torchvision.transforms.functional.pil_to_tensor


def decode(jpeg):
    picture = PIL.Image.open(io.BytesIO(jpeg)).convert("RGB").resize((224, 224))
    return to_tensor(picture).half().div_(255)


def infer(jpeg):
    decoded = decode(jpeg)
    submitted = time.monotonic_ns()
    with one_at_a_time:
        on_host[0].copy_(decoded)
        image.copy_(on_host, non_blocking=True)
        graph.replay()
        result = int(scores.float().cpu().argmax())
    return {"class": result, "submitted_ns": submitted}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # one write an answer

    def do_POST(self):
        body = json.dumps(infer(self.rfile.read(int(self.headers["Content-Length"])))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def obey():
    for _ in protocol.orders():
        pass
    os._exit(0)


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=obey, daemon=True).start()
    protocol.answer({"port": server.server_address[1]})
    server.serve_forever()


if __name__ == "__main__":
    main()
