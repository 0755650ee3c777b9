"""Time work on a device with events, as CUDA does.

Prints how long a product of two matrices takes on the device: the events are in the device's queue, so
that concurrent host work does not count. On a GPU the time is the device's, on the CPU the clock's.
"""

import numpy as np

import lamina as lm
from lamina.runtime import Event

device = lm.device("auto")
rng = np.random.default_rng(0)
a, b = (lm.tensor(rng.normal(size=(512, 512)).astype(np.float32), device=device) for _ in range(2))
a @ b  # the first call plans the op and loads the kernel

times = []
stream = device.default_stream
for _ in range(5):
    start, end = Event(timing=True), Event(timing=True)
    stream.record(start)
    c = a @ b
    stream.record(end)
    times.append(start.elapsed(end))  # waits for `end`

milliseconds = sorted(times)[len(times) // 2]
print(
    f"512 x 512 x 512 on {device.kind}: {milliseconds:.3f} ms, {2 * 512**3 / milliseconds / 1e6:.0f} GFLOP/s"
)
