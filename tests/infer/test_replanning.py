"""A plan for another machine is refused, or made anew where that is asked for."""

from pathlib import Path

import numpy as np
import pytest

from lamina.infer import OtherMachineError, load
from tests.helpers.many_threads import small_network
from tests.infer.test_inferer import floats
from tests.infer.test_saved import bits, plan, saved

__all__ = ["plan"]


def test_planned_anew_where_the_machine_is_another(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = floats(3, 1, 3, 16, 16)
    with load(plan) as found:
        wanted = found(x)
    monkeypatch.setattr("lamina.replay.host.platform.machine", lambda: "vax")
    with pytest.raises(OtherMachineError, match=r"processor was 'x86_64', here it is 'vax'.*replan=True"):
        load(plan)
    with load(plan, replan=True) as anew:
        assert anew.planned_anew
        np.testing.assert_allclose(anew(x), wanted, rtol=1e-5, atol=1e-6)
        assert anew(np.concatenate([x, x])).shape == (2, *wanted.shape[1:])
        assert "planned anew" in repr(anew)


def test_another_version_is_another_machine(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.infer.saved.__version__", "9.9")
    with pytest.raises(OtherMachineError, match=r"written by Lamina .*, this is 9\.9"):
        load(plan)
    with load(plan, replan=True) as anew:
        assert anew.planned_anew


def test_without_graphs_it_cannot_be_planned_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = floats(0, 1, 3, 16, 16)
    wanted = saved(small_network(), tmp_path / "p", x, portable=False)
    with load(tmp_path / "p") as found:
        assert bits(found(x)) == wanted[0]
    monkeypatch.setattr("lamina.replay.host.platform.machine", lambda: "vax")
    with pytest.raises(OtherMachineError, match="portable=False"):
        load(tmp_path / "p", replan=True)
