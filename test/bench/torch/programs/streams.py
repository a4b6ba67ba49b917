"""Several streams of several priorities and threads, ordered by events; in-place updates."""
import hashlib
import threading

import torch

streams = [torch.cuda.Stream(priority=p) for p in (0, -1, -2, -3, 0, -5)]
x = torch.arange(1 << 20, device="cuda", dtype=torch.int64)
torch.cuda.synchronize()
done = torch.cuda.current_stream().record_event()
for i in range(300):
    stream = streams[i % len(streams)]
    stream.wait_event(done)
    with torch.cuda.stream(stream):
        x.mul_(6364136223846793005).add_(i)
        if i % 25 == 0:
            on_host = x.to("cpu", non_blocking=True)
    done = stream.record_event()
done.synchronize()

parts = [torch.full((1 << 18,), n, device="cuda", dtype=torch.int64) for n in range(4)]
torch.cuda.synchronize()


def work(part):
    with torch.cuda.stream(torch.cuda.Stream()):
        for i in range(300):
            part.mul_(3).add_(i)
            if i % 50 == 0:
                torch.cuda.current_stream().synchronize()
        torch.cuda.current_stream().synchronize()


threads = [threading.Thread(target=work, args=(part,)) for part in parts]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
digest = hashlib.sha256(x.cpu().numpy().tobytes())
for part in parts:
    digest.update(part.cpu().numpy().tobytes())
print(digest.hexdigest())
