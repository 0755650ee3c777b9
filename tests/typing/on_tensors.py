"""Ops and methods on tensors and arrays give tensors."""

from typing import assert_type

import numpy as np

import lamina as lm
from lamina import Tensor, nn, ops

x = lm.ones((2, 3))
array = np.ones((2, 3), np.float32)
assert_type(x, Tensor)

# functions: tensors, arrays, numbers and lists give tensors
assert_type(ops.relu(x), Tensor)
assert_type(ops.relu(array), Tensor)
assert_type(ops.exp([1.0, 2.0]), Tensor)
assert_type(ops.add(x, 1), Tensor)
assert_type(ops.add(array, x), Tensor)
assert_type(ops.where(x > 0, x, 0.0), Tensor)
assert_type(ops.matmul(x, array.T), Tensor)
assert_type(ops.stack([x, x]), Tensor)
assert_type(ops.split(x, 1), tuple[Tensor, ...])
assert_type(ops.conv2d(lm.ones((1, 3, 8, 8)), lm.ones((4, 3, 3, 3)), None, stride=2, padding=1), Tensor)
assert_type(ops.linear(x, lm.ones((4, 3)), lm.zeros(4)), Tensor)
assert_type(ops.cross_entropy(x, lm.tensor([0, 1])), Tensor)

# random tensors and windows: sizes, a generator, a device
generator = nn.Generator(3, device="cpu")
assert_type(ops.rand(2, 3, generator=generator, device="cpu"), Tensor)
assert_type(ops.randn((2, 3), device=x.device), Tensor)
assert_type(ops.randperm(5, generator=generator), Tensor)
assert_type(ops.bernoulli(x, generator=generator), Tensor)
assert_type(ops.hann_window(8, device=lm.Device("cpu")), Tensor)
assert_type(lm.fft.fftfreq(8, device="cpu"), Tensor)

# what stands beside ops, as beside torch
assert_type(lm.fft.rfft(x), Tensor)
assert_type(lm.linalg.inv(x @ x.T), Tensor)
assert_type(lm.linalg.slogdet(x @ x.T).logabsdet, Tensor)
assert_type(lm.special.expit(x), Tensor)

# a parameter is a tensor; what is made of it is a plain one
weight = nn.Parameter(lm.ones((4, 3)))
assert_type(ops.relu(weight), Tensor)
assert_type(weight * 2, Tensor)
assert_type(weight.T, Tensor)

# operators and methods
assert_type(x + 1, Tensor)
assert_type(2 - x, Tensor)
assert_type(x @ x.T, Tensor)
assert_type(x == x, Tensor)
assert_type(-x, Tensor)
assert_type(x[0], Tensor)
assert_type(x[:, None, ...], Tensor)
assert_type(x.mean(), Tensor)
assert_type(x.relu().exp(), Tensor)
assert_type(x.reshape(3, 2), Tensor)
assert_type(x.view(-1), Tensor)
assert_type(x.transpose(0, 1), Tensor)
assert_type(x.permute(1, 0), Tensor)
assert_type(x.float(), Tensor)
assert_type(x.shape, tuple[int, ...])
assert_type(x.dim(), int)
assert_type(x.numel(), int)
for row in x:
    assert_type(row, Tensor)
