"""Memory as text."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina.runtime import Buffer, Device, fetch, from_host, show
from lamina.runtime.printing import _download

CPU = Device("cpu")


@pytest.mark.feature("F033")
@pytest.mark.parametrize("shape", [(), (3,), (4, 5), (2000,), (40, 60), (3, 30, 40), (2, 9, 9, 9)])
@pytest.mark.parametrize("edge", [1, 3])
def test_as_numpy_prints(shape: tuple[int, ...], edge: int) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    expected = np.array2string(array, precision=4, separator=", ", threshold=1000, edgeitems=edge)
    text = show(array, edge=edge)
    values, facts = text.rsplit("\n", 1)
    assert values == expected
    assert facts == f"float64{list(shape)}, cpu"


@pytest.mark.feature("F033")
def test_layout_and_limits() -> None:
    columns = np.arange(6, dtype=np.int8).reshape(2, 3).T
    assert show(columns) == "[[0, 3],\n [1, 4],\n [2, 5]]\nint8[3, 2], strides (1, 3), cpu"
    assert show(np.arange(9), threshold=4, edge=2) == "[0, 1, ..., 7, 8]\nint64[9], cpu"
    assert show(lm.tensor([1.5, 2.5], "bfloat16")).endswith("bfloat16[2], cpu")
    buffer = from_host(np.arange(6, dtype=np.float16), CPU)
    assert show(buffer, (2, 3), "float16") == "[[0., 1., 2.],\n [3., 4., 5.]]\nfloat16[2, 3], cpu"
    assert show(buffer, (2, 2), "float16", (1, 4)).startswith("[[0., 4.],\n [1., 5.]]")
    assert show(buffer).endswith("uint8[12], cpu")
    assert show(np.zeros((0, 3), np.float32)) == "[]\nfloat32[0, 3], cpu"


@pytest.mark.feature("F033")
@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        ((2, 30, 40, 5), (6000, 200, 5, 1)),
        ((2, 5, 30, 40), (6000, 1, 200, 5)),
        ((30, 40), (1, 30)),
        ((40,), (5,)),
        ((), ()),
        ((7, 7, 9), (0, 5, 10)),
        ((20, 20), (1, 1)),
    ],
)
@pytest.mark.parametrize("edge", [None, 1, 3])
def test_the_parts_that_are_copied(
    shape: tuple[int, ...], strides: tuple[int, ...], edge: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = np.arange(12000, dtype=np.float32)
    buffer = Buffer.borrow(array.ctypes.data, array.nbytes, CPU, array)
    copied: list[int] = []
    real = lm.runtime.show.__globals__["copy_2d"]

    def counting(*operands: Any, **layout: Any) -> None:
        copied.append(layout["width"] * layout["height"])
        real(*operands, **layout)

    monkeypatch.setitem(lm.runtime.show.__globals__, "copy_2d", counting)
    got = _download(buffer, shape, array.dtype, strides, edge)
    assert np.array_equal(got, fetch(buffer, shape, "float32", strides, edge))
    if edge is not None:
        assert sum(copied) <= 4 * np.prod([min(extent, 2 * edge + 1) for extent in shape])


@pytest.mark.feature("F033")
@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        ((b"ab",), TypeError, "got bytes"),
        ((np.zeros(3), (3,)), TypeError, "given for a Buffer only"),
        ((from_host(bytes(8), CPU), (3,), "float32"), ValueError, "takes 12 bytes, the buffer has 8"),
        ((from_host(bytes(8), CPU), (2,), "float99"), TypeError, "dtype 'float99' is not known"),
        ((from_host(bytes(8), CPU), (2,), "float32", (1, 1)), ValueError, "one length"),
    ],
)
def test_bad_arguments(arguments: tuple[Any, ...], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        show(*arguments)
    with pytest.raises(ValueError, match="edge >= 1"):
        show(np.zeros(3), edge=0)
