"""The figures of an epoch by their names."""

from xml.etree import ElementTree

import numpy as np
import pytest

from lamina.train import Epoch, History, Position, Scores


def test_every_figure_has_a_name() -> None:
    plain = Epoch(0, 0.5, None, 10.0, 1.0)
    assert plain.figures() == {"loss": 0.5}
    scores = Scores(3, 4, 0.25, {"top5": 1.0, "matrix": np.eye(2)})
    assert Epoch(0, 0.5, 0.75, 10.0, 1.0, scores).figures() == {
        "loss": 0.5,
        "accuracy": 0.75,
        "validation.loss": 0.25,
        "validation.accuracy": 0.75,
        "validation.top5": 1.0,
    }


def test_a_run_begins_with_nothing() -> None:
    one, other = History(), History()
    one.losses.append(1.0)
    assert other == History([], [], Position())


@pytest.mark.feature("B031")
def test_notebooks_see_the_losses_as_a_curve() -> None:
    losses = [2.0, float("nan"), 1.0, 1.5]
    html = History(losses, [Epoch(0, 1.5, None, 10.0, 1.0)])._repr_html_()
    root = ElementTree.fromstring(html)
    line = root.find(".//polyline")
    assert line is not None
    points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    assert [x for x, _ in points] == [0, 400, 600]  # the second is not a number
    heights = [y for _, y in points]
    assert heights[0] < heights[2] < heights[1]  # y grows downward
    assert "epoch 1: loss 1.5000" in html
    assert ElementTree.fromstring(History()._repr_html_()).find(".//polyline") is not None
