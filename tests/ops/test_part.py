"""What is written over a part of a tensor is written over the tensor, as over PyTorch's views."""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, optim
from lamina.tensors import Tensor

pytestmark = pytest.mark.feature("B044")

PARTS: dict[str, Callable[[Any], Any]] = {
    "row": lambda x: x[1],
    "element": lambda x: x[1, 2, 0],
    "column": lambda x: x[:, 1],
    "steps": lambda x: x[:, ::2, 1:],
    "part of a part": lambda x: x[1:][0][1:],
    "transposed": lambda x: x.transpose(0, 2)[1],
    "reshaped": lambda x: x.view(-1)[3:9],
    "joined axes": lambda x: x.view(6, 4)[::2],
    "axes that lie behind one another": lambda x: x[:, 1:].flatten(1),
    "axes that do not": lambda x: x[:, :, 1:].flatten(1),
    "transposed and reshaped": lambda x: x.transpose(0, 2).reshape(-1),
    "cut and contiguous": lambda x: x[:, 1].contiguous(),
    "row and contiguous": lambda x: x[1].contiguous(),
    "new axis": lambda x: x[None, :, None][0, 1],
    "select": lambda x: x.select(2, 1),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "chunk": lambda x: x.chunk(2, 2)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "copy": lambda x: x.clone()[0],
    "mask": lambda x: x[x > 3],
    "indices": lambda x: x[[0]],
    "nothing": lambda x: x[2:],
    "detached": lambda x: x.detach()[1],
    "diagonal": lambda x: x[0].diagonal(),
    "diagonal of a transposed part": lambda x: x[0].T.diagonal(),
    "diagonal of columns": lambda x: x[:, :, 1:].diagonal(0, 1, 2),
    "diagonal beside the main one": lambda x: x[:, ::2, 1:].diagonal(-1, 2, 0),
    "diagonal of two outer axes": lambda x: x.diagonal(1),
    "diagonal of one element": lambda x: x[0].T.diagonal(-3),
    "no diagonal": lambda x: x[0].T.diagonal(-4),
    "part of a diagonal": lambda x: x.narrow(2, 1, 3).diagonal(0, 1, 2)[:, 1:],
    "diagonal of a diagonal": lambda x: x.transpose(0, 2).diagonal().diagonal(),
    "reshaped diagonal": lambda x: x[:, :2, 1:].diagonal(0, 1, 2).flatten(),
    "windows": lambda x: x.unfold(2, 2, 2)[:, :, 1],
    "windows with gaps": lambda x: x.unfold(1, 1, 3)[..., 0],
}


def counted() -> Tensor:
    return lm.tensor(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4))


@pytest.mark.torch
@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_written_over_the_whole_where_torch_has_a_view(name: str) -> None:
    import torch

    ours, theirs = counted(), torch.arange(24.0).reshape(2, 3, 4)
    for x in (ours, theirs):
        PARTS[name](x).mul_(-2)
    np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in PARTS if "diagonal" in name])
def test_a_program_writes_diagonals_where_torch_has_a_view(name: str) -> None:
    import torch

    def run(x: Any) -> Any:
        x = x.clone()
        PARTS[name](x).mul_(-2)
        return x * x * x

    np.testing.assert_array_equal(
        lm.jit(run)(counted()).numpy(), run(torch.arange(24.0).reshape(2, 3, 4)).numpy()
    )


def test_a_diagonal_of_a_part_sees_what_is_written_over_the_whole() -> None:
    x = lm.tensor(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    cut, turned = x.narrow(1, 1, 3).diagonal(), x.T.diagonal()
    x.add_(1)
    assert (cut.tolist(), turned.tolist()) == ([2, 7, 12], [1, 6, 11])
    x.T.diagonal().fill_(9)
    assert (cut.tolist(), turned.tolist()) == ([2, 7, 12], [9, 9, 9])


def test_the_gradient_of_a_part_s_diagonal_goes_to_its_elements() -> None:
    found = lm.grad(lambda x: (x.T[1:].diagonal() * lm.tensor([1.0, 2.0, 3.0])).sum())(lm.ones(3, 4))
    assert found.tolist() == [[0, 1, 0, 0], [0, 0, 2, 0], [0, 0, 0, 3]]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_part_of_many_parts_that_are_gone_sees_the_whole(compiled: bool) -> None:
    x = lm.ones(2, 3)
    part = x
    for _ in range(1201):
        part = part.T
    x.add_(1)
    found = lm.jit(lambda: part * 2)() if compiled else part * 2
    assert found.tolist() == [[4, 4]] * 3


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int64", "uint8", "bool"])
def test_a_part_of_every_dtype_is_written(dtype: str) -> None:
    x = lm.zeros((2, 3), dtype=dtype)
    x[0][1:].fill_(1)
    x.T[2, 1] = 1
    assert x.to(dtype="int64").tolist() == [[0, 1, 1], [0, 0, 1]]


def test_rows_and_items_are_written() -> None:
    x = lm.zeros(3, 2)
    for i, row in enumerate(x):
        row.fill_(i)
    x[2][1] = 7
    assert x.tolist() == [[0, 0], [1, 1], [2, 7]]


def test_all_tensors_in_between_are_written_as_long_as_they_exist() -> None:
    x = lm.zeros(4)
    tail = x[1:]
    last = tail[1:]
    last.fill_(3)
    assert (x.tolist(), tail.tolist()) == ([0, 0, 3, 3], [0, 3, 3])
    del tail
    gc.collect()
    last.fill_(5)
    assert x.tolist() == [0, 0, 5, 5]
    del x
    gc.collect()
    assert last.fill_(6).tolist() == [6, 6]


def test_a_part_sees_what_is_written_over_the_whole_and_over_other_parts() -> None:
    x = lm.zeros(2, 3)
    row, flat, turned = x[1], x.view(-1)[2:], x.T[1:][0]
    x.fill_(1)
    assert (row.tolist(), flat.tolist(), turned.tolist()) == ([1, 1, 1], [1, 1, 1, 1], [1, 1])
    row.mul_(2)
    assert (row + 0).tolist() == [2, 2, 2]
    assert (flat + 0).tolist() == [1, 2, 2, 2]
    assert (turned + 0).tolist() == [1, 2]
    flat[1:].add_(1)
    assert (x.tolist(), row.tolist(), lm.ops.sum(turned).item()) == ([[1, 1, 1], [3, 3, 3]], [3, 3, 3], 4)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_whole_part_is_written_behind_the_whole_and_other_parts(compiled: bool) -> None:
    """What is written without a look at what was there counts, whatever was written over the whole meanwhile."""
    x = lm.zeros(2, 3)
    row, twin = x[0], x[0]
    add = lm.jit(lambda: x.add_(1)) if compiled else lambda: x.add_(1)
    for write in (
        lambda v: v.fill_(7),
        lambda v: v.copy_(lm.full((3,), 7.0)),
        lambda v: nn.init.constant_(v, 7),
    ):
        add()
        write(row)
        assert (row.tolist(), x[0].tolist()) == ([7, 7, 7], [7, 7, 7])
        twin.fill_(8)
        row.fill_(6)
        assert (x[0].tolist(), twin.tolist()) == ([6, 6, 6], [6, 6, 6])
    add()
    row.zero_()
    assert x.tolist() == [[0, 0, 0], [4, 4, 4]]


def test_a_part_sees_a_training_step() -> None:
    net = nn.Conv2d(3, 8, 3)
    part, flat = net.weight[:, 1], net.weight.view(-1)
    step = lm.train_step(net, lambda y, t: (y - t).square().mean(), optim.SGD(0.1), device="cpu")
    for _ in range(2):
        step(lm.ones(1, 3, 5, 5), lm.zeros(1, 8, 3, 3))
        np.testing.assert_array_equal(part.numpy(), net.weight.numpy()[:, 1])
        np.testing.assert_array_equal((flat + 0).numpy(), net.weight.numpy().reshape(-1))


def test_a_copy_of_a_part_is_no_part() -> None:
    x = lm.zeros(2, 3)
    for made in (
        copy.copy,
        copy.deepcopy,
        lm.tensor,
        lambda x: x + 0,
        lambda x: pickle.loads(pickle.dumps(x)),
    ):
        made(x[0] + 0).fill_(1)
    copy.deepcopy(x[0]).fill_(1)
    lm.tensor(x[0]).fill_(1)
    assert not x.numpy().any()


def test_values_that_are_not_finite_stay_where_they_are_and_go_where_they_are_written() -> None:
    x = lm.tensor([np.nan, 1.0, 2.0])
    x[1:].copy_(lm.tensor([np.inf, np.nan]))
    np.testing.assert_array_equal(x.numpy(), np.float32([np.nan, np.inf, np.nan]))


def test_compiled_programs_see_what_is_written_over_a_part_of_a_parameter() -> None:
    net = nn.Linear(2, 2)
    net.weight.fill_(1)
    net.bias.zero_()
    run = lm.jit(lambda x: net(x))
    assert run(lm.ones(1, 2)).tolist() == [[2, 2]]
    for part in (net.weight[0], net.weight.view(-1)[:2]):
        part.mul_(3)
        found = run(lm.ones(1, 2)).tolist()
    assert found == [[18, 2]]


def test_a_part_of_a_trained_parameter_is_written_whatever_its_layout_is() -> None:
    net = nn.Conv2d(3, 8, 3)
    step = lm.train_step(net, lambda y, t: (y - t).square().mean(), optim.SGD(0.0), device="cpu")
    inputs = lm.ones(1, 3, 5, 5)
    step(inputs, lm.zeros(1, 8, 3, 3))
    before = np.array(net.weight.numpy())
    net.weight[:, 1].fill_(2)
    net.weight.view(8, -1)[0].fill_(1)
    net.bias[2:4].fill_(5)
    before[:, 1], before[0] = 2, 1
    np.testing.assert_array_equal(net.weight.numpy(), before)
    assert net.bias.numpy()[2:4].tolist() == [5, 5]
    loss = float(step(inputs, lm.zeros(1, 8, 3, 3)))
    assert loss == pytest.approx(float(net(inputs).square().mean()), rel=1e-4)


def test_a_tensor_that_becomes_another_lets_its_parts_go() -> None:
    net = nn.Linear(3, 2)
    net.weight.fill_(1)
    row, flat = net.weight[0], net.weight.view(-1)
    net.bfloat16()
    net.weight.fill_(2)
    assert (row.tolist(), flat.tolist()) == ([1, 1, 1], [1] * 6)
    row.fill_(3)
    assert net.weight.float().tolist() == [[2, 2, 2]] * 2
    assert row.dtype == lm.float32


def written_part(x: Any) -> tuple[Any, ...]:
    part = x[:, 1:]
    copied = part.reshape(-1)
    part.fill_(7.0)
    return (copied.tolist(),)


def written_copy(x: Any) -> tuple[Any, ...]:
    part = x[:, 1:]
    copied = part.reshape(-1)
    copied.fill_(7.0)
    return part.tolist(), x.tolist()


def written_axis(x: Any) -> tuple[Any, ...]:
    part = x[:, 1:2].transpose(1, 2)
    copied = part.reshape(-1)
    part[0] = 7.0
    return (copied.tolist(),)


@pytest.mark.parametrize("write", [written_part, written_copy, written_axis])
def test_a_reshape_that_is_no_view_shares_no_memory(write: Callable[[Any], Any]) -> None:
    """As NumPy's `reshape`, which copies where no strides would do."""
    x = np.arange(24, dtype=np.float32).reshape(3, 4, 2)

    class Array(np.ndarray):
        def fill_(self, value: float) -> None:
            self[...] = value

        def transpose(self, *axes: Any) -> Any:
            return np.swapaxes(self, *axes)

    assert write(lm.tensor(x.copy())) == write(x.copy().view(Array))


class Token(nn.Module):
    """State that begins as a parameter, repeated for each sample."""

    def __init__(self) -> None:
        self.token = nn.Parameter(lm.zeros(1, 4))

    def forward(self, x: Any) -> Any:
        """The state, updated in place."""
        return self.token.repeat(x.shape[0], 1).add_(x)


@pytest.mark.parametrize("size", [2, 1])
@pytest.mark.parametrize("way", [lambda net: net, lm.jit], ids=["eager", "jit"])
def test_a_parameter_that_is_repeated_once_is_not_written(size: int, way: Any) -> None:
    net = Token()
    assert way(net)(lm.ones(size, 4)).tolist() == [[1.0] * 4] * size
    assert net.token.tolist() == [[0.0] * 4]


@pytest.mark.parametrize(
    "op",
    [
        lambda x: lm.ops.pad(x, (0, 0)),
        lambda x: lm.ops.pad(x, (0, -1)),
        lambda x: x**1,
        lambda x: lm.ops.pow(x, 1.0),
        lambda x: lm.ops.roll(x, 0, 0),
        lambda x: lm.ops.flip(x, []),
        lambda x: lm.ops.rot90(x, 4),
        lambda x: x.tile((1, 1)),
        lambda x: lm.ops.repeat_interleave(x, 1, 0),
        lambda x: lm.ops.diff(x, 0),
        lambda x: lm.ops.matrix_power(x, 1),
        lambda x: lm.ops.interpolate(x.reshape(1, 1, 3, 3), (3, 3)),
        lambda x: lm.ops.pixel_shuffle(x.reshape(1, 1, 3, 3), 1),
        lambda x: lm.ops.pixel_unshuffle(x.reshape(1, 1, 3, 3), 1),
        lambda x: lm.ops.channel_shuffle(x.reshape(1, 3, 3), 1),
    ],
)
def test_an_op_that_changes_nothing_gives_a_copy(op: Callable[[Any], Any]) -> None:
    x = lm.ones(3, 3)
    op(x).fill_(7.0)
    assert x.tolist() == [[1.0] * 3] * 3
