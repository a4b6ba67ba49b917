"""llama.cpp: its server, of a small model with random weights, answers requests: greedily, by sampling with a seed, two at once.

llama-server is on PATH, or LLAMA_SERVER names it.
"""
import concurrent.futures
import ctypes
import hashlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from shared import write_gguf

CONTEXT = 1024
SHAPE = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4,
         "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
WORDS = 320  # the bytes, of which text is made, and a few more
START_LIMIT = 120  # s, of the server


def library_folders():
    """Where the server finds what CUDA's toolkit has: the machine's, or that of PyTorch's packages."""
    folders = [*(pathlib.Path(folder) / "nvidia/cu13/lib" for folder in sys.path), pathlib.Path("/usr/local/cuda/lib64")]
    there = [str(folder) for folder in folders if (folder / "libcudart.so.13").exists()]
    return os.pathsep.join([*there, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def die_with_parent():
    ctypes.CDLL(None).prctl(1, 9)


class Server:
    def __init__(self, command, model):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.log = open("llama-server.log", "w")
        # One request is served after another, each with its own part of the cache: what a batch holds would change the last bits.
        arguments = ["--model", model, "--port", str(self.port), "--device", "CUDA0", "--gpu-layers", "99", "--parallel", "1",
                     "--ctx-size", str(CONTEXT), "--threads", "2", "--no-warmup", "--cache-ram", "0", "--fit", "off", "--offline"]
        self.process = subprocess.Popen([command, *arguments], stdout=self.log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
                                        env=os.environ | {"LD_LIBRARY_PATH": library_folders()})
        until = time.monotonic() + START_LIMIT
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10):
                    return
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None or time.monotonic() > until:
                    self.fail("the server does not answer")
                time.sleep(.05)

    def fail(self, what):
        self.process.kill()
        self.log.flush()
        lines = pathlib.Path(self.log.name).read_text(errors="replace").splitlines()[-3:]
        sys.exit(f"{what}: {' | '.join(lines)}")

    def complete(self, prompt, **options):
        order = {"prompt": prompt, "n_predict": 48, "ignore_eos": True, "cache_prompt": False, "return_tokens": True, **options}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/completion", json.dumps(order).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=100) as answer:
            return json.load(answer)["tokens"]


def main():
    command = os.environ.get("LLAMA_SERVER") or shutil.which("llama-server")
    if not command:
        print("no llama-server", file=sys.stderr)
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "random.gguf")
        write_gguf.write(model, SHAPE, WORDS)
        server = Server(command, model)
        try:
            answers = [server.complete("the quick brown fox " * repeats, temperature=0) for repeats in (1, 4, 12)]
            answers.append(server.complete("jumps over", temperature=1.2, top_k=40, seed=7))
            with concurrent.futures.ThreadPoolExecutor() as both:
                answers += both.map(lambda prompt: server.complete(prompt, temperature=0), ["a lazy dog ", "another dog "])
        except (urllib.error.URLError, OSError, KeyError) as problem:
            server.fail(problem)
        server.process.terminate()
        server.process.wait()
    if not all(answers):
        sys.exit("an answer without tokens")
    print(hashlib.sha256(json.dumps(answers).encode()).hexdigest())


main()
