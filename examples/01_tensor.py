"""Tensors: arrays on a device that share memory with NumPy and compute at once.

Prints the product of two matrices, shows that a tensor shares memory with the NumPy array it was made from,
and prints a tensor: its values, its spec, its device.
"""

import numpy as np

import lamina as lm

a = lm.tensor([[1.0, 2.0], [3.0, 4.0]])
b = lm.ones((2, 2))
print((a @ b + 0.5).tolist())

array = np.zeros(3, np.float32)
shared = lm.from_dlpack(array)
array[1] = 7.0
print(shared.tolist())

print(a)
