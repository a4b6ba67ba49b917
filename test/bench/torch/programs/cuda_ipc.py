"""Tensors and an event that processes share by CUDA IPC."""
import hashlib

import torch
import torch.multiprocessing as multiprocessing

ROUNDS = 20


def child(inbox, outbox):
    kept = []
    while (item := inbox.get()) is not None:
        tensor, step = item
        tensor.mul_(3).add_(step)  # in the parent's memory
        torch.cuda.synchronize()
        result = tensor.clone() + step
        kept.append(result)
        outbox.put(result)  # in this process's memory, which stays until it ends
        del tensor, item
    outbox.put(None)
    inbox.get()  # the parent has what it wants


def main():
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(inbox, outbox))
    process.start()
    digest = hashlib.sha256()
    tensors = [torch.arange((1 << 18) + i, device="cuda", dtype=torch.int64) for i in range(4)]
    for step in range(ROUNDS):
        inbox.put((tensors[step % 4], step))
        result = outbox.get()
        digest.update(result.cpu().numpy().tobytes())
        del result
    inbox.put(None)
    assert outbox.get() is None
    for tensor in tensors:
        digest.update(tensor.cpu().numpy().tobytes())
    inbox.put(None)
    process.join()
    assert process.exitcode == 0, process.exitcode
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
