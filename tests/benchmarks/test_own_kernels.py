"""The cases of own kernels that move memory can be planned without a GPU, and two checkouts are timed in turns."""

from pathlib import Path

import pytest

from benchmarks import own_kernels
from lamina.backends.cuda.launch.program import Launches
from tests.helpers.planned import H200

CHECKOUT = Path(own_kernels.__file__).parents[1]


def test_cases_are_of_own_kernels_alone() -> None:
    found = dict(own_kernels.cases(H200))
    assert len(found) > 100
    assert all(isinstance(plan.make, Launches) and plan.make.programs for plan in found.values())
    kinds = {p.name for plan in found.values() if isinstance(plan.make, Launches) for p in plan.make.programs}
    assert kinds >= {
        "batch_norm_resident",
        "batch_grad_apply",
        "reduce_columns",
        "depthwise",
        "transpose",
        "max_pool",
    }


def test_checkouts_take_turns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[Path] = []

    def apart(checkout: Path, only: str) -> dict[str, dict[str, float]]:
        asked.append(checkout)
        return {only: {"ms": {tmp_path: 2.0, CHECKOUT: 1.0}[checkout] + 1 / len(asked)}}

    monkeypatch.setattr(own_kernels, "apart", apart)
    assert own_kernels.main(["--against", str(tmp_path), "--only", "pool"]) == 0
    assert asked == [tmp_path, CHECKOUT] * own_kernels.ROUNDS
    shown = capsys.readouterr().out.split()
    other, own = 2 + 1 / 5, 1 + 1 / 6
    assert shown == ["pool", "other_ms", f"{other:.4f}", "ms", f"{own:.4f}", "ratio", f"{own / other:.4f}"]


def test_a_checkout_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "src" / "lamina").mkdir(parents=True)
    (tmp_path / "src" / "lamina" / "__init__.py").write_text("raise RuntimeError('broken')")
    with pytest.raises(SystemExit, match=f"(?s){tmp_path}: .*RuntimeError: broken"):
        own_kernels.apart(tmp_path, "")
