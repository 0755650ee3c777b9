"""Tensors: values, devices, layouts, errors."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import FLOATS, DTypeError, ShapeError, Spec, float32
from lamina.tensors import Tensor, relayout


def test_python_numbers_become_float32_and_arrays_keep_their_dtype() -> None:
    assert lm.tensor([1.0, 2.0]).dtype == float32
    assert lm.tensor(np.zeros(2)).dtype.name == "float64"
    assert lm.tensor([1, 2]).dtype.name == "int64"
    assert lm.tensor([1, 2], dtype="bf16").dtype.name == "bfloat16"


def test_tensor_copies_and_adoption_shares() -> None:
    array = np.zeros(3, np.float32)
    copied, shared = lm.tensor(array), lm.from_dlpack(array)
    array[0] = 7
    assert copied.tolist() == [0, 0, 0]
    assert shared.tolist() == [7, 0, 0]


def test_strided_arrays_are_adopted_as_they_lie() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1)
    np.testing.assert_array_equal((ops.neg(array) * 1.0).numpy(), -array)
    backwards = array[::-1]
    np.testing.assert_array_equal(ops.neg(backwards).numpy(), -backwards)


def test_makers() -> None:
    assert lm.zeros((2, 2)).tolist() == [[0, 0], [0, 0]]
    assert lm.ones(2, "int32").tolist() == [1, 1]
    assert lm.full((), 2.5).item() == 2.5
    assert lm.empty((3, 0)).numel() == 0


def test_copy_keeps_identity_and_converts() -> None:
    x = lm.zeros(3)
    assert x.copy_(np.array([1, 2, 3])) is x
    assert x.tolist() == [1, 2, 3]
    with pytest.raises(ShapeError, match=r"cannot write shape \(2,\) into a tensor of shape \(3,\)"):
        x.copy_(np.zeros(2))


def test_layouts_change_memory_not_values() -> None:
    array = np.random.default_rng(0).standard_normal((2, 20, 3, 5)).astype(np.float32)
    x = lm.tensor(array)
    for tag in ("acdb", "aBcd16b", "ABcd16b16a"):
        y = relayout(x, x.spec.with_tag(tag))
        assert y.spec.tag == tag
        np.testing.assert_array_equal(y.numpy(), array)
        np.testing.assert_array_equal(ops.relu(y).numpy(), np.maximum(array, 0))
        np.testing.assert_array_equal(y.contiguous().numpy(), array)


@pytest.mark.feature("F033")
def test_repr_shows_values_limits_layout_and_device() -> None:
    assert repr(lm.tensor([1.0, 2.0])) == "Tensor([1., 2.], f32[2], cpu)"
    text = repr(lm.tensor(np.linspace(-3, 5, 1000, dtype=np.float32)))
    assert "..." in text
    assert "-3 … 5" in text
    assert "1 not finite" in repr(lm.tensor(np.full(100, 1.0, np.float32)).copy_([np.nan] + [1.0] * 99))


def test_items_and_truth() -> None:
    assert lm.tensor(3).item() == 3
    assert int(lm.tensor(3)) == 3
    assert float(lm.tensor([2.5])) == 2.5
    assert not lm.tensor(0.0)
    with pytest.raises(ShapeError, match="only one element"):
        lm.zeros(2).item()
    with pytest.raises(TypeError, match="cannot be an index"):
        [1, 2][lm.tensor(1.0)]
    assert [1, 2][lm.tensor(1)] == 2


def test_errors_name_op_argument_and_shapes() -> None:
    with pytest.raises(ShapeError, match=r"add: shapes \(2,\) and \(3,\) do not broadcast"):
        lm.zeros(2) + lm.zeros(3)
    with pytest.raises(DTypeError, match="float32"):
        lm.zeros(2) + lm.zeros(2, "float64")
    with pytest.raises(TypeError, match="is not an array"):
        ops.relu(object())
    with pytest.raises(ShapeError, match="2\\^63"):
        lm.empty((2**40, 2**40))
    with pytest.raises(ShapeError, match="negative"):
        lm.zeros((-1,))


def test_a_buffer_that_is_too_small_is_refused() -> None:
    with pytest.raises(ShapeError, match="takes 16 bytes, the buffer has 8"):
        Tensor(lm.device("cpu").allocate(8), Spec((4,), float32))


@pytest.mark.parametrize("dtype", [d.name for d in FLOATS])
def test_arithmetic_in_every_float_type(dtype: str) -> None:
    x = lm.tensor([1.0, -2.0, 3.0], dtype=dtype)
    y = (x * 2.0 + 1.0) / 4.0 - x
    assert y.dtype.name == dtype
    np.testing.assert_allclose(y.numpy().astype(np.float64), [-0.25, 1.25, -1.25])


def test_an_op_on_the_same_memory_is_bound_once_per_thread() -> None:
    module = sys.modules["lamina.tensors"]
    x = lm.tensor(np.arange(-3, 3), "float32")
    expected = np.maximum(np.arange(-3, 3), 0)

    def hits() -> int:
        found: int = module._bound.run_of.cache_info().hits
        return found

    def loop() -> list[int]:
        counts = []
        for _ in range(4):
            assert (
                ops.relu(x).numpy() == expected
            ).all()  # dropped at once: the next result lies there again
            counts.append(hits())
        return counts

    counts = loop()
    assert counts[3] > counts[0]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(loop).result()[0] == 0
    x.copy_(-np.arange(-3, 3))
    assert (ops.relu(x).numpy() == np.maximum(-np.arange(-3, 3), 0)).all()
