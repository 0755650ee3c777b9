"""What oneDNN scales to 8 bits and back, and what it leaves to NumPy."""

from typing import Any

import numpy as np
import pytest

from lamina import onednn
from lamina.backends import NoKernel
from lamina.backends.cpu import quantize
from lamina.backends.cpu.quantize import adds_in_32_bits, eight_bits, eights, scaled
from lamina.backends.reference import run_reference
from lamina.ops.primitives.quantize import Dequantize, Quantize, QuantizedConv, QuantizedMatmul
from lamina.ops.primitives.window import Window
from lamina.runtime import Device
from lamina.spec import Policy, Spec, as_dtype, float32
from tests.helpers.eager import execute
from tools.skips import PROCESSOR

pytestmark = pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
CPU = Device("cpu")


@pytest.mark.parametrize("op", [Quantize(as_dtype("int8")), Dequantize()], ids=str)
def test_int8_is_onednns(op: Any) -> None:
    x = (
        np.random.default_rng(0)
        .integers(-100, 100, (3, 5))
        .astype("float32" if op.name == "quantize" else "int8")
    )
    given = [x, np.full((), 0.5, np.float32)]
    plan = scaled(op, [Spec(a.shape, as_dtype(a.dtype)) for a in given], CPU, Policy())
    (y,) = execute(CPU, plan, given)
    np.testing.assert_array_equal(y, run_reference(op, given)[0])


@pytest.mark.parametrize(
    ("op", "dtype", "shape"),
    [
        (Quantize(as_dtype("float8_e4m3fn")), "float32", (3, 5)),
        (Dequantize(), "float8_e4m3fn", (3, 5)),
        (Quantize(as_dtype("int8")), "float32", (0, 5)),
    ],
    ids=str,
)
def test_float8_and_nothing_are_left_to_numpy(op: Any, dtype: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(NoKernel, match="oneDNN does not scale"):
        scaled(op, [Spec(shape, as_dtype(dtype)), Spec((), float32)], CPU, Policy())


PRODUCTS = [
    (QuantizedConv(Window((1, 1), ((1, 1), (1, 1)), (1, 1))), (2, 64, 5, 5), (64, 64, 3, 3)),
    (QuantizedMatmul(), (16, 256), (64, 256)),
]


def integers(x: tuple[int, ...], w: tuple[int, ...]) -> tuple[list[Any], list[Spec]]:
    """Numbers x and w in int8 with a scale for each output, and their specs."""
    rng = np.random.default_rng(0)
    given = [rng.integers(-127, 128, s).astype(np.int8) for s in (x, w)]
    given.append(rng.uniform(0.01, 0.1, w[0]).astype(np.float32))
    return given, [Spec(a.shape, as_dtype(a.dtype)) for a in given]


@pytest.mark.parametrize(("op", "x", "w"), PRODUCTS, ids=str)
def test_weights_that_stay_are_read_as_they_were_packed_once(
    op: Any, x: tuple[int, ...], w: tuple[int, ...]
) -> None:
    if not adds_in_32_bits():
        pytest.skip(f"{PROCESSOR} VNNI, so that there are no 8-bit products")
    given, specs = integers(x, w)
    plan = eights(op, specs, (), Policy())
    if plan.packed is None:  # AMX takes signed numbers as they are: in a layout that the plan asks for
        assert plan.label.endswith("amx")
        assert plan.inputs[1].tag is not None
        (found,) = execute(CPU, plan, given)
    else:
        (weights,) = execute(CPU, plan.packed.pack, [given[1]])
        (found,) = execute(CPU, plan.packed.plan, [given[0], weights, given[2]])
    np.testing.assert_allclose(found, run_reference(op, given)[0], rtol=1e-6)
    np.testing.assert_array_equal(found, execute(CPU, plan, given)[0])


@pytest.mark.parametrize(("op", "x", "w"), PRODUCTS, ids=str)
def test_without_8_bit_products_integers_are_multiplied_in_float32(
    op: Any, x: tuple[int, ...], w: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "adds_in_32_bits", lambda: False)
    given, specs = integers(x, w)
    plan = eight_bits(op, specs, CPU, Policy())
    assert plan.label.startswith("float32 for int8: onednn")
    (found,) = execute(CPU, plan, given)
    wanted = run_reference(op, given)[0]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())
