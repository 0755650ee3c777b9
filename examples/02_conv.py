"""One convolution: on arrays of any library, with named borders, and its gradient.

Prints the shapes that the borders "valid", "half" and "full" give, the sum of an image under an averaging
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
    """The sum of the image under a filter, at every second place."""
    return ops.sum(ops.conv2d(image, weight, stride=2))


print(f"sum {total(average).item():.1f}")
print(lm.grad(total)(lm.tensor(average)).numpy()[0, 0])
