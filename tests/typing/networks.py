"""A network's call takes what its forward takes and gives what that gives."""

from typing import assert_type

import lamina as lm
from lamina import Tensor, nn, ops
from lamina.graph import Value


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return ops.relu(self.norm(self.conv(x)) + x)


class Net(nn.Module):
    def __init__(self) -> None:
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))
        self.heads = nn.ModuleDict({"a": nn.Linear(8, 2), "b": nn.Linear(8, 3)})
        self.tail = nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor, *, head: str = "a") -> Tensor:
        for block in self.blocks:
            x = block(x)
        assert_type(self.blocks[0], Block)
        assert_type(self.blocks[:1], nn.ModuleList[Block])
        assert_type(self.heads["a"], nn.Linear)
        assert_type(self.tail[:2], nn.Sequential)
        return self.heads[head](self.tail(x.mean((2, 3))))


net = Net()
x = lm.ones((2, 8, 4, 4))
assert_type(net(x), Tensor)
assert_type(net(x, head="b"), Tensor)
assert_type(net.train().eval().to("cpu"), Net)
net(x, wrong=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

linear = nn.Linear(3, 4)
assert_type(linear.weight, nn.Parameter)
assert_type(linear(lm.ones((2, 3))), Tensor)


def traced(v: Value) -> Value:
    assert_type(linear(v), Value)
    return linear(v)


sequence = lm.ones((5, 2, 3))
assert_type(nn.GRU(3, 4)(sequence), tuple[Tensor, Tensor])
assert_type(nn.LSTM(3, 4)(sequence), tuple[Tensor, tuple[Tensor, Tensor]])
assert_type(nn.LSTMCell(3, 4)(lm.ones((2, 3))), tuple[Tensor, Tensor])
assert_type(nn.MultiheadAttention(4, 2)(sequence, sequence, sequence), tuple[Tensor, Tensor | None])
assert_type(nn.CrossEntropyLoss()(lm.ones((2, 3)), lm.tensor([0, 1])), Tensor)
assert_type(nn.resnet18()(lm.ones((1, 3, 32, 32))), Tensor)
