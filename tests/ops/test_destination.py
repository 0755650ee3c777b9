"""A device, a dtype, both in any order, or a tensor that has them."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.ops.destination import destination
from lamina.spec import DTypeError, bfloat16, float32, int64

CPU = lm.Device("cpu")


@pytest.mark.parametrize(
    ("where", "named", "expected"),
    [
        ((), {}, (None, None)),
        ((CPU,), {}, (CPU, None)),
        (("cuda:1",), {}, ("cuda:1", None)),
        (("bfloat16",), {}, (None, bfloat16)),
        ((np.float32,), {}, (None, float32)),
        (("cpu", int64), {}, ("cpu", int64)),
        ((None, "int64"), {}, (None, int64)),
        ((int64,), {"device": "cpu"}, ("cpu", int64)),
        ((), {"device": CPU, "dtype": "float32"}, (CPU, float32)),
    ],
)
def test_forms(where: Any, named: Any, expected: Any) -> None:
    assert destination(where, named.get("device"), named.get("dtype")) == expected


def test_a_tensor_has_both() -> None:
    assert destination((lm.zeros(2, dtype="int64"),), None, None) == (CPU, int64)


def test_what_is_said_twice_or_is_nothing() -> None:
    with pytest.raises(TypeError, match="to: takes one dtype, got 'int64' and 'float32'"):
        destination(("int64", "float32"), None, None)
    with pytest.raises(TypeError, match="to: takes one device, got 'cpu' and 'cuda'"):
        destination(("cuda",), "cpu", None)
    with pytest.raises(DTypeError):
        destination((), None, "no such")


def test_tensors_values_and_modules_go_there() -> None:
    x = lm.tensor([1.5, 2.5])
    assert (
        x.to(lm.int64).dtype == x.to("cpu", "int64").dtype == x.to(lm.zeros(1, dtype="int64")).dtype == int64
    )
    assert x.to("cpu") is x
    assert x.to("cpu", copy=True) is not x
    assert x.to(dtype="float32", non_blocking=True) is x
    with pytest.raises(ValueError, match=r"to: takes a device .*, a dtype .* or a tensor, got 'float33'"):
        x.to("float33")
    net = lm.nn.Linear(2, 2)
    assert net.to("cpu", lm.float64).weight.dtype == lm.float64
    assert net.to(lm.zeros(1)).weight.dtype == float32


def test_a_traced_value_stays_where_its_program_runs() -> None:
    seen: list[Any] = []

    @lm.jit
    def program(x: Any) -> Any:
        seen.append((x.device, x.is_cuda, x.is_contiguous()))
        own = x.new_tensor([1, 2]) + x.new_empty(2).to(x.device) + lm.ones(2, device=x.device)
        return (own * x.to(x.device, non_blocking=True).cpu()).to(lm.float64)

    found = program(lm.tensor([3.0, 4.0]))
    np.testing.assert_array_equal(found.numpy(), [6.0, 12.0])
    assert found.dtype == lm.float64
    assert seen == [(CPU, False, True)]

    @lm.jit
    def moved(x: Any) -> Any:
        return x.to("cuda")

    with pytest.raises(
        ValueError, match=r"to: a traced value f32\[1\] stays on cpu, where the whole program runs, got cuda"
    ):
        moved(lm.zeros(1))
    graph = lm.trace(lambda x: x.cuda() * 2, lm.Spec((2,), float32))  # for whatever device it is compiled
    np.testing.assert_array_equal(graph(lm.ones(2))[0].numpy(), [2, 2])


def test_eager_derivatives_know_their_device() -> None:
    def loss(x: Any) -> Any:
        assert x.device.type == "cpu"
        return (x * x.new_ones(2, device=x.device)).sum()

    np.testing.assert_array_equal(lm.grad(loss)(lm.ones(2)).numpy(), [1, 1])
    found = lm.vmap(lambda x: x + lm.zeros(2, device=x.device))(lm.ones(3, 2))
    np.testing.assert_array_equal(found.numpy(), np.ones((3, 2)))
