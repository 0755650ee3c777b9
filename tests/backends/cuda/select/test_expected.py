"""What a contest is expected to win: nothing at the machine's limit, on any machine, and more the farther from it."""

from unittest import mock

import pytest

from benchmarks import plan_problems
from lamina import backends
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.expected import FACTORS, expected_saving, headroom
from lamina.ops.primitives import Conv
from lamina.ops.primitives.window import window
from lamina.runtime import Device, Machine
from lamina.spec import Policy, Spec, bfloat16, channels_last


@pytest.mark.parametrize("op", [*FACTORS, "attention"])
def test_nothing_is_expected_at_the_limit_and_never_all(op: str) -> None:
    assert (
        expected_saving(op, 1e-3, 1e-3)
        == expected_saving(op, 1e-3, 2e-3)
        == expected_saving(op, 0.0, 1e-3)
        == 0
    )
    found = [expected_saving(op, 1e-3, part * 1e-3) for part in (0.9, 0.5, 0.1)]
    assert 0 < found[0] < 0.01 * 1e-3 < found[1] < found[2] < 1e-3


def test_ops_that_nobody_measured_are_as_others() -> None:
    assert expected_saving("attention", 2.0, 1.0) == expected_saving("", 2.0, 1.0) == FACTORS[""] * 0.25 * 2.0
    assert expected_saving("conv", 2.0, 1.0, {"": 1.0}) == 0.5
    assert headroom(4.0, 1.0) == 0.75**2


@pytest.mark.feature("F081")
@pytest.mark.parametrize("name", Machine.names())
def test_an_open_choice_expects_by_the_machine_at_hand(name: str) -> None:
    """The seconds that one machine needs are another one's limit."""
    machine = Machine.named(name)
    shape = (32, 256, 14, 14)
    op, x = Conv(window("conv2d", (3, 3), 1, 1)), Spec(shape, bfloat16, channels_last(shape))
    w = Spec((256, 256, 3, 3), bfloat16)
    device = Device("cuda", machine=machine)
    with plan_problems.drafted(), mock.patch.object(formulations, "is_measured", return_value=False):
        plan = backends.get(device).plan(op, (x, w), Policy())
    least = machine.seconds(op.flops(x, w), x.nbytes + w.nbytes, "bfloat16")
    assert plan.open is not None
    assert plan.open.expected(least, least) == 0
    assert plan.open.expected(3 * least, least) == pytest.approx(FACTORS["conv"] * 4 / 9 * 3 * least)
