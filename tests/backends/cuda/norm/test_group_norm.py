"""Group norm of few channels a group, channels last: in the emulator, beside the float64 reference."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.norm import group_norm
from lamina.ops.primitives import GroupNorm, GroupNormGrad
from lamina.spec import DType, Policy, Spec, bfloat16, channels_last, contiguous, float16, float32, float64
from tests.backends.cuda.norm.test_norm import check
from tests.helpers import slow_from
from tests.helpers.planned import H200

CUDA = backend(H200)
#: Shapes with their groups: channels in whole accesses or not, accesses over several groups and images, many places.
CASES: list[tuple[tuple[int, ...], int]] = [
    ((2, 64, 8, 4), 32),
    ((3, 32, 7, 5), 32),
    ((3, 12, 37), 4),
    ((1, 40, 4, 3, 3), 5),
    ((2, 24, 96, 90), 8),
    ((33, 16, 33, 1), 2),
    # few long rows, whose sums a block brings together: of 96 channels in several parts, of 520 at few places
    ((2, 96, 40, 37), 1),
    ((3, 520, 9, 5), 1),
    ((1, 72, 34, 33), 2),
]

#: Types with whether the addresses are odd; the rest of all pairs is slow.
TYPES = slow_from(
    3,
    [
        (bfloat16, False),
        (bfloat16, True),
        (float32, True),
        (float16, False),
        (float16, True),
        (float32, False),
        (float64, False),
        (float64, True),
    ],
    several=True,
)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize(("dtype", "misaligned"), TYPES, ids=str)
@pytest.mark.parametrize(("shape", "groups"), CASES, ids=str)
def test_values(shape: tuple[int, ...], groups: int, dtype: DType, misaligned: bool) -> None:
    rng = np.random.default_rng(groups)
    wide = dtype.compute.numpy
    x, g = (rng.standard_normal(shape).astype(dtype.numpy) for _ in range(2))
    x = (x + np.arange(shape[1]).reshape(-1, *(1,) * (len(shape) - 2))).astype(dtype.numpy)  # unlike means
    scale, bias = (rng.standard_normal(shape[1]).astype(wide) for _ in range(2))
    split = x.reshape(shape[0], groups, -1).astype(np.float64)
    mean, r = split.mean(2).astype(wide), (1 / np.sqrt(split.var(2) + 1e-5)).astype(wide)
    check(GroupNorm(groups, 1e-5), [x, scale, bias], True, misaligned)
    check(GroupNormGrad(groups), [g, x, scale, mean, r], True, misaligned)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("dtype", [bfloat16, float32], ids=str)
@pytest.mark.parametrize(("shape", "groups"), CASES, ids=str)
def test_large_tensors_are_summed_by_channels(
    shape: tuple[int, ...], groups: int, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one beyond the L2 cache is."""
    assert not _channels_of((128, 128, 64, 64), 32).holds_groups
    monkeypatch.setattr(group_norm._Channels, "holds_groups", False)
    x = np.random.default_rng(groups).standard_normal(shape).astype(dtype.numpy)
    numbers = np.random.default_rng(1).standard_normal((2, shape[1])).astype(dtype.compute.numpy)
    check(GroupNorm(groups, 1e-5), [x, *numbers], True, False)


@pytest.mark.parametrize(
    ("shape", "groups", "holds"),
    [
        ((1, 512, 32, 32), 32, True),
        ((1, 128, 64, 64), 32, False),  # 8 bytes of each of many cache lines
        ((1, 4096, 16, 16), 4, False),  # 512 KiB
        ((64, 512, 8, 8), 32, True),
        ((64, 128, 32, 32), 32, False),
    ],
)
def test_which_groups_a_block_holds(shape: tuple[int, ...], groups: int, holds: bool) -> None:
    assert _channels_of(shape, groups).holds_groups == holds


def _channels_of(shape: tuple[int, ...], groups: int) -> group_norm._Channels:
    return group_norm._Channels(Spec(shape, bfloat16, channels_last(shape)), groups, H200.machine)


def test_what_lies_channels_last_stays_so() -> None:
    for channels, groups, side in ((128, 32, 16), (256, 32, 16), (48, 4, 6), (128, 32, 5)):
        kept = side > 5  # fewer places have sums of a size with the elements
        small = [Spec((channels,), float32)] * 2
        stats = [Spec((2, groups), float32)] * 2
        for tag, layout in (("acdb", channels_last), ("abcd", contiguous)):
            x = Spec((2, channels, side, side), bfloat16, layout((2, channels, side, side)))
            for op, specs in (
                (GroupNorm(groups, 1e-5), [x, *small]),
                (GroupNormGrad(groups), [x, x, small[0], *stats]),
            ):
                plan = CUDA.plan(op, specs, Policy())
                assert {s.tag for s in (plan.inputs[0], plan.outputs[0])} == {tag if kept else "abcd"}
