"""Training, scores, functions and graphs: what comes back has a type of its own."""

from typing import assert_type

import numpy as np

import lamina as lm
from lamina import Tensor, data, nn, ops, optim, train
from lamina.graph import Executable, Graph, Value

net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
x, t = np.zeros((5, 4), np.float32), np.zeros(5, np.int64)
assert_type(net(lm.tensor(x)), Tensor)

step = lm.train_step(net, ops.cross_entropy, optim.SGD(lr=0.1))
assert_type(step, train.Step)
assert_type(step(x, t), Tensor)
assert_type(lm.evaluate(net, (x, t)), train.Scores)


def activated(v: Value) -> Value:
    return ops.relu(v)


graph = lm.trace(activated, lm.tensor(x))
assert_type(graph, Graph)
compiled = lm.compile(graph, "cpu")
assert_type(compiled, Executable)
assert_type(compiled(lm.tensor(x)), tuple[Tensor, ...])


def doubled(v: Tensor) -> Tensor:
    return v + v


assert_type(lm.jit(doubled)(lm.tensor(x)), Tensor)
lm.jit(doubled)(lm.tensor(x), 1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


order: data.Sampler[int] = data.SequentialSampler([3, 4])
anything: data.Sampler[object] = order  # what gives indices gives objects
for images, labels in data.DataLoader(data.TensorDataset(lm.ones(4, 3), lm.arange(4)), batch_size=2):
    flat: lm.Tensor = images.to("cpu").view(labels.size(0), -1)  # batches are tensors
