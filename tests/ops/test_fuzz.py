"""Random integer-valued convolutions, poolings and products: equal to their definitions, all of them."""

import pytest

from lamina import backends
from lamina.runtime import Device
from lamina.spec import bfloat16, float64
from tests.helpers import eager, fuzz


@pytest.mark.feature("F117", "F118")
def test_reference() -> None:
    backend = backends.get(Device("cpu"), "reference")
    assert list(fuzz.failures(backend, 0, range(90))) == []
    assert list(fuzz.failures(backend, 1, range(45), float64)) == []
    assert list(fuzz.failures(backend, 2, range(45), bfloat16)) == []


@pytest.mark.feature("F117", "F118")
def test_cpu() -> None:
    """180 configurations, none of which may differ."""
    assert list(fuzz.failures(backends.get(Device("cpu"), "cpu"), 0, range(180))) == []


@pytest.mark.slow
@pytest.mark.feature("F117", "F118")
@pytest.mark.parametrize("part", range(4))
def test_cpu_at_length(part: int) -> None:
    """1,000 configurations, none of which may differ."""
    first = 180 + 250 * part
    assert list(fuzz.failures(backends.get(Device("cpu"), "cpu"), 0, range(first, first + 250))) == []


@pytest.mark.gpu
@pytest.mark.feature("F117", "F118")
def test_cuda() -> None:
    assert list(fuzz.failures(backends.get(Device("cuda:0"), "cuda"), 0, range(400))) == []


def test_cases_repeat() -> None:
    """Case k of a seed is the same whichever cases came before: the printed line makes it again."""
    for k in range(8):
        first, second = fuzz.make(5, k)[0], fuzz.make(5, k)[0]
        assert str(first) == str(second)
        assert all((a == b).all() for a, b in zip(first.arrays, second.arrays, strict=True))


def test_a_wrong_result_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Off by one in one element: the run fails, and the line names the case."""

    def wrong(*args: object, **options: object) -> object:
        outputs = eager.run_on(*args, **options)  # type: ignore[arg-type]
        outputs[0].flat[-1] += 1
        return outputs

    monkeypatch.setattr(fuzz, "run_on", wrong)
    assert fuzz.main(["--backend", "reference", "--seed", "3", "--only", "7"]) == 1
    printed = capsys.readouterr().out
    again = "python -m tests.helpers.fuzz --backend reference --dtype float32 --seed 3 --only 7   # matmul("
    assert printed.startswith(again)
    assert "1 of" in printed
    assert printed.endswith("1 cases on reference in float32, 1 mismatches\n")
