"""ModuleInfo: nothing is wrong, and what agrees and what is refused is as committed."""

import json

import numpy as np
import pytest

import lamina as lm
from lamina import nn

pytest.importorskip("torch")
from tests.helpers import slow_but_every
from tests.judges import moduleinfo

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "name", slow_but_every(4, sorted(json.loads(moduleinfo.TABLE.read_text(encoding="utf-8"))))
)
def test_every_sample_agrees_or_is_refused_as_committed(name: str) -> None:
    outcome = moduleinfo.judge(name)
    assert outcome.wrong == []
    held = json.loads(moduleinfo.TABLE.read_text(encoding="utf-8"))
    assert moduleinfo.as_json({name: outcome})[name] == held[name], "python -m tests.judges.moduleinfo write"


def test_every_shared_module_is_in_the_table() -> None:
    assert sorted(moduleinfo.entries()) == sorted(json.loads(moduleinfo.TABLE.read_text(encoding="utf-8")))


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Linear(nn.Linear):
        def forward(self, x: lm.Tensor) -> lm.Tensor:
            return super().forward(x) * 1.01

    monkeypatch.setattr(nn, "Linear", Linear)
    assert moduleinfo.judge("Linear").wrong


def test_a_slope_of_zero_is_relu() -> None:
    x = np.array([-1.0, 0.0, 2.0, np.nan], np.float32)
    np.testing.assert_array_equal(nn.LeakyReLU(0.0)(lm.tensor(x)).numpy(), [0, 0, 2, np.nan])
