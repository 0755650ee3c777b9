"""Images of few channels to channels last, converted on the way: one emulated kernel for a cast and a copy."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import Launches
from lamina.backends.reference import run_reference
from lamina.graph import compile, trace
from lamina.ops import conv2d
from lamina.ops.primitives import Cast, GeluTanh
from lamina.spec import DType, Policy, Spec, bfloat16, channels_last, float16, float32, float64, uint8
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.laid import copies
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


@pytest.mark.parametrize(
    ("given", "made", "channels"),
    [(float32, bfloat16, 3), (float64, float16, 2), (uint8, float32, 3), (bfloat16, uint8, 4)],
    ids=str,
)
def test_images_are_converted_to_channels_last(given: DType, made: DType, channels: int) -> None:
    """Whole accesses of each plane; element by element where memory is not aligned."""
    shape = (2, channels, 16, 136)
    x = (np.random.default_rng(0).random(shape) * 200).astype(given.numpy)
    plan = CUDA.plan(Cast(made), [Spec(shape, given).fixed], Policy())
    assert plan.relaid is not None
    last = plan.relaid(channels_last(shape))
    assert last is not None
    assert isinstance(last.make, Launches)
    assert [p.name for p in last.make.programs] == ["interleave"]
    (wanted,) = run_reference(Cast(made), [x])
    for misaligned in (False, True):
        (found,) = run_plan(last, [x], misaligned=misaligned)
        assert not (problem := mismatch(found, wanted, made)), problem


def test_a_step_may_be_any_of_one_operand() -> None:
    shape = (2, 3, 8, 24)
    x = np.random.default_rng(0).standard_normal(shape).astype(bfloat16.numpy)
    plan = CUDA.plan(GeluTanh(), [Spec(shape, bfloat16).fixed], Policy())
    assert plan.relaid is not None
    last = plan.relaid(channels_last(shape))
    assert last is not None
    (wanted,) = run_reference(GeluTanh(), [x])
    assert not mismatch(run_plan(last, [x])[0], wanted, bfloat16)


def test_planes_that_do_not_fill_accesses_are_copied_by_themselves() -> None:
    for shape in ((2, 3, 5, 7), (2, 8, 16, 16)):
        plan = CUDA.plan(Cast(bfloat16), [Spec(shape, float32).fixed], Policy())
        assert plan.relaid is not None
        assert plan.relaid(channels_last(shape)) is None


def test_images_of_a_network_are_converted_by_one_kernel() -> None:
    """On a GPU that is not there."""
    x, w = Spec((4, 3, 32, 32), float32), Spec((16, 3, 3, 3), bfloat16)
    program = compile(trace(lambda x, w: conv2d(x.cast(bfloat16), w), x, w), H200, resident=[1]).program
    assert not copies(program)
