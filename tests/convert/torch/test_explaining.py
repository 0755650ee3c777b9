"""What a network would become, in words: converted, and compiled by torch.compile's backend."""

from __future__ import annotations

import logging
from typing import Any

import pytest

GOES_BACK = True
pytestmark = [pytest.mark.torch, pytest.mark.feature("B024"), pytest.mark.feature("B027")]


def test_explain_prints_what_has_no_counterpart(capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    import lamina as lm

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.airy_ai(x.detach()).relu()

    report = lm.convert.explain(Net(), torch.randn(3, 3))
    assert list(report.unknown.values()) == [1]
    assert "aten.special_airy_ai.default" in capsys.readouterr().out


def spectral(depth: int = 3) -> Any:
    import torch

    class Spectral(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(depth))
            self.norm = torch.nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = self.norm(layer(x)) * torch.special.airy_ai(x.detach())[0]
            return x

    return Spectral()


def test_what_the_backend_leaves_is_a_line_for_each_function_and_reason(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch.backend import lamina

    module, x = spectral(), torch.rand(4, 4)
    state = torch.random.get_rng_state()
    with caplog.at_level(logging.WARNING, "lamina.convert"):
        report = lm.convert.explain(torch.compile(module, backend=lamina), x)
    line, drawn = report.left
    assert list(report.left.values()) == [3, 3]
    assert drawn.startswith("Tensor.add_")  # the number of batches, which several parts would write
    assert drawn.endswith("shares memory, results or sizes with what PyTorch runs")
    assert line.startswith("torch._C._special.special_airy_ai (File")
    assert "test_explaining.py" in line
    assert report.unknown == {}
    assert report.calls["torch._C._nn.linear"] == (3, "lamina.ops.linear")
    printed = capsys.readouterr().out
    assert printed.startswith("Spectral: ")
    assert printed.count("special_airy_ai (File") == 1
    assert f"    3  PyTorch runs {line}" in printed
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert "and 2 more like it: lamina.ops has no function" in said[0]
    # Nothing of it has happened.
    assert module.norm.num_batches_tracked == 0
    assert torch.equal(state, torch.random.get_rng_state())


def test_what_is_refused_one_after_the_other_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Parts are found while the parts before them run; each refusal is that of a part."""
    import torch

    import lamina as lm
    from lamina.convert.torch.node import HANDLERS
    from tests.helpers.torch_training import compiled

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.sinh(x) + 1
        return x

    def refused(call: Any) -> Any:
        raise call.error("not today")

    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING, "lamina.convert"):
        patch.setitem(HANDLERS, "sinh", refused)
        found = compiled(f)(torch.rand(4))
        said = [r.getMessage() for r in caplog.records]
        report = lm.convert.explain(compiled(f), torch.rand(4))
    assert found.shape == (4,)
    assert len(said) == 1
    assert list(report.left.values()) == [3]


def test_a_function_is_explained_and_other_things_are_refused() -> None:
    import torch

    import lamina as lm
    from tests.helpers.torch_training import compiled

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 2

    report = lm.convert.explain(compiled(f), torch.rand(3))
    assert report.left == {}
    assert report.calls["Tensor.exp"][0] == 1
    with pytest.raises(
        TypeError, match=r"takes a torch.nn.Module, or what torch.compile gives, got function"
    ):
        lm.convert.explain(f, torch.rand(3))
