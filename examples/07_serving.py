"""One network serves eight threads: their requests are batched, and every answer equals that of a thread alone.

Prints how many answers were bitwise equal, how many requests a run answered, the answer of a
saved plan, and the latencies.
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from lamina import nn
from lamina.infer import Inferer, load

net = nn.LeNet(in_channels=1, num_classes=10)
images = np.random.default_rng(0).standard_normal((64, 1, 1, 28, 28)).astype(np.float32)

with Inferer(net, max_batch=8, max_wait_ms=2) as inferer:
    alone = [inferer(image).numpy() for image in images]
    inferer.reset_statistics()

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(inferer, images))
    same = sum(a.numpy().tobytes() == b.tobytes() for a, b in zip(answers, alone, strict=True))
    print(f"{same} of {len(images)} answers are the same in every bit")

    future = inferer.submit(images[0])  # can be canceled until it runs
    print(f"class {future.result().numpy().argmax()}")

    with tempfile.TemporaryDirectory() as folder:  # another process serves from it, without planning
        inferer.save(Path(folder) / "lenet.plan")
        with load(Path(folder) / "lenet.plan") as saved:
            alike = saved(images[0]).tobytes() == alone[0].tobytes()
    print(f"the saved plan gives {'the same' if alike else 'other'} bits")

    found = inferer.statistics()
    print(f"{found.fill:.1f} requests a run; ms: p50 {found.p50_ms:.2f}, p99 {found.p99_ms:.2f}")
