"""Every error of a plan file is a ValueError, and says more where the machine is another."""

from lamina.replay.errors import OtherMachineError, PlanFileError


def test_errors_are_of_one_family() -> None:
    assert issubclass(OtherMachineError, PlanFileError)
    assert issubclass(PlanFileError, ValueError)
