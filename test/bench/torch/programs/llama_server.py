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
import string
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import gguf
import numpy

LAYERS, WIDTH, HEADS, KV_HEADS, FEED, CONTEXT = 4, 512, 8, 4, 1024, 1024
START_LIMIT = 120  # s, of the server


def lack(what):
    print(what, file=sys.stderr)
    sys.exit(77)


def write_model(path):
    """A model of Llama's kind; its vocabulary is single bytes and a few more."""
    random = numpy.random.default_rng(0)
    writer = gguf.GGUFWriter(path, "llama")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += [f"\u2581{letter}" for letter in string.ascii_lowercase]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    kinds += [gguf.TokenType.NORMAL] * (len(tokens) - len(kinds))
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)

    def add(name, *shape, narrow=True):
        values = random.standard_normal(shape, dtype="float32") * shape[-1] ** -.5 if len(shape) > 1 else numpy.ones(shape, dtype="float32")
        writer.add_tensor(name, values.astype("float16") if narrow and len(shape) > 1 else values)

    add("token_embd.weight", len(tokens), WIDTH)
    add("output_norm.weight", WIDTH)
    add("output.weight", len(tokens), WIDTH)
    for layer in range(LAYERS):
        add(f"blk.{layer}.attn_norm.weight", WIDTH)
        add(f"blk.{layer}.ffn_norm.weight", WIDTH)
        add(f"blk.{layer}.attn_q.weight", WIDTH, WIDTH)
        add(f"blk.{layer}.attn_k.weight", WIDTH * KV_HEADS // HEADS, WIDTH)
        add(f"blk.{layer}.attn_v.weight", WIDTH * KV_HEADS // HEADS, WIDTH)
        add(f"blk.{layer}.attn_output.weight", WIDTH, WIDTH)
        add(f"blk.{layer}.ffn_gate.weight", FEED, WIDTH)
        add(f"blk.{layer}.ffn_up.weight", FEED, WIDTH)
        add(f"blk.{layer}.ffn_down.weight", WIDTH, FEED)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


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
        lack("no llama-server")
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "random.gguf")
        write_model(model)
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
