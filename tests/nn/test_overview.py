"""Summaries: shapes, parameters and arithmetic of every module, against what is counted by hand."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.spec import ShapeError, Spec, float32, int64

pytestmark = pytest.mark.feature("B031")


def test_a_network_module_by_module() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)
    )
    found = nn.summary(net, (2, 3, 4, 4))
    assert [(r.name, r.kind, r.depth) for r in found.rows] == [
        ("", "Sequential", 0),
        ("0", "Conv2d", 1),
        ("1", "BatchNorm2d", 1),
        ("2", "ReLU", 1),
        ("3", "Flatten", 1),
        ("4", "Linear", 1),
    ]
    by_name = {r.name: r for r in found.rows}
    conv, linear = 2 * 2 * 8 * 16 * 27, 2 * 2 * 128 * 10
    assert by_name["0"].outputs == (Spec((2, 8, 4, 4), float32),)
    assert (by_name["0"].parameters, by_name["0"].flops) == (224, conv)
    assert (by_name["1"].parameters, by_name["1"].flops) == (16, 0)
    assert (by_name["4"].parameters, by_name["4"].flops) == (1290, linear)
    assert (by_name[""].parameters, by_name[""].flops) == (1530, conv + linear)
    assert by_name[""].outputs == (Spec((2, 10), float32),)
    assert (found.parameters, found.flops) == (1530, conv + linear)
    assert found.buffers == 8 + 8 + 1
    assert found.parameter_bytes == sum(x.nbytes for x in (*net.parameters(), *net.buffers()))
    assert found.activation_bytes == 4 * 2 * (4 * 128 + 10)


def test_the_network_is_as_before() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    before = [set(vars(m)) for m in net.modules()]
    nn.summary(net, (1, 4))
    assert [set(vars(m)) for m in net.modules()] == before
    assert net.training
    with pytest.raises(ShapeError):
        nn.summary(net, (1, 5))
    assert [set(vars(m)) for m in net.modules()] == before


class Shared(nn.Module):
    """A layer that is called three times, a weight that two layers share, and a layer that nobody calls."""

    def __init__(self) -> None:
        self.again = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.again.weight
        self.idle = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        for _ in range(3):
            x = self.again(x)
        return {"y": self.tied(x), "x": x}


def test_calls_again_shared_weights_and_idle_layers() -> None:
    found = nn.summary(Shared(), (5, 4))
    by_name = {r.name: r for r in found.rows}
    assert (by_name["again"].calls, by_name["again"].flops) == (3, 3 * 2 * 5 * 16)
    assert (by_name["again"].parameters, by_name["tied"].parameters) == (20, 4)
    assert (by_name["idle"].outputs, by_name["idle"].parameters) == ((), 6)
    assert found.parameters == 30
    assert len(by_name[""].outputs) == 2
    assert " ×3" in str(found)


def test_several_inputs_of_any_type() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            self.words = nn.Embedding(7, 3)

        def forward(self, words: Any, x: Any) -> Any:
            return self.words(words) + x

    words, x = Spec((2, 5), int64), Spec((2, 5, 3), float32)
    for given in ((words, x), {"x": x, "words": words}, (np.zeros((2, 5), np.int64), lm.zeros(2, 5, 3))):
        found = nn.summary(Two(), given)
        assert found.rows[0].outputs == (x,)
        assert {s.shape for s in found.inputs} == {(2, 5), (2, 5, 3)}
    assert nn.summary(nn.Embedding(7, 3), (4,), dtype="int64").rows[0].outputs == (Spec((4, 3), float32),)
    with pytest.raises(TypeError, match="summary: inputs"):
        nn.summary(Two(), "text")


def test_depth_and_text() -> None:
    net = nn.resnet18(num_classes=10)
    whole, short = nn.summary(net, (1, 3, 64, 64)), nn.summary(net, (1, 3, 64, 64), depth=1)
    assert len(short.rows) == 1 + len(list(net.children())) < len(whole.rows)
    assert short.flops == whole.flops > 2e8
    lines = str(short).splitlines()
    assert lines[0].split() == ["module", "outputs", "parameters", "MFLOP"]
    assert lines[1].startswith("ResNet")
    assert any(line.split()[:3] == ["layer1:", "Sequential", "f32[1,64,16,16]"] for line in lines)
    assert lines[-2].startswith("parameters: 11,181,642, and ")
    assert "<table>" in short._repr_html_()
    assert "layer1: Sequential" in short._repr_html_()
