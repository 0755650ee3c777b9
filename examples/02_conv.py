"""One convolution: on arrays of any library, with named padding modes, and its gradient.

Prints the output shapes of the modes "valid", "half" and "full", the sum of an image under an averaging
filter, and the gradient of that sum with respect to the filter.
"""

import numpy as np

import lamina as lm
from lamina import ops

image = np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6)
average = np.full((1, 1, 3, 3), 1 / 9, np.float32)

for border in ("valid", "half", "full"):
    print(f"{border:5} -> {ops.conv2d(image, average, padding=border).shape}")


def total(weight):
    """The sum of the image convolved with stride 2."""
    return ops.sum(ops.conv2d(image, weight, stride=2))


print(f"sum {total(average).item():.1f}")
print(lm.grad(total)(lm.tensor(average)).numpy()[0, 0])
