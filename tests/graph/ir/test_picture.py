"""Pictures of graphs: every node once, each below what it reads, texts escaped, too large ones refused."""

import re
from xml.etree import ElementTree

import lamina as lm
from lamina import nn, ops
from lamina.graph import trace
from lamina.graph.ir.picture import LARGEST, picture
from lamina.spec import Spec, float32

X = Spec((4, 3), float32)


def boxes(svg: str) -> dict[str, tuple[float, float]]:
    """Left upper corners by the first line of their texts."""
    found = {}
    for group in ElementTree.fromstring(svg).iter("g"):
        box, text = group.find("rect"), group.find("text")
        assert box is not None
        assert text is not None
        found[str(text.text)] = float(box.attrib["x"]), float(box.attrib["y"])
    return found


def test_each_node_is_below_what_it_reads() -> None:
    graph = trace(lambda x, y: ops.add(ops.relu(ops.exp(x)), ops.neg(y)), X, X, names=["x", "y"])
    svg = picture(graph)
    found = boxes(svg)
    assert set(found) == {"%x", "%y", "exp", "neg", "relu", "add"}
    heights = {name: y for name, (_, y) in found.items()}
    assert (
        heights["%x"] == heights["%y"] < heights["exp"] == heights["neg"] < heights["relu"] < heights["add"]
    )
    assert len(set(found.values())) == len(found)
    assert svg.count("<path") == 5  # x, y, exp, relu, neg
    assert found["exp"][0] < found["neg"][0]  # as x and y


def test_results_and_operands_have_colours_of_their_own() -> None:
    """By what they are, not by what they are equal to."""
    graph = trace(lambda x: (ops.relu(ops.exp(x)), ops.exp(ops.neg(x))), X, names=["x"])
    found: dict[str, set[str]] = {}
    for group in ElementTree.fromstring(picture(graph)).iter("g"):
        box, tip = group.find("rect"), group.find("title")
        assert box is not None
        assert tip is not None
        found.setdefault(box.attrib["fill"], set()).add(str(tip.text).split("\n")[0])
    operands, steps, results = (found[colour] for colour in ("#f3efe2", "#dde8f7", "#d9f2dd"))
    assert operands == {"%x: f32[4,3]"}
    assert steps == {"exp()", "neg()"}
    assert results == {"relu()", "exp()"}


def test_tips_say_what_it_is_and_where_it_comes_from() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    svg = picture(trace(lambda x: net(x), X))
    tips = [t.text or "" for t in ElementTree.fromstring(svg).iter("title")]
    assert any("f32[4,2]" in t and t.startswith("relu") for t in tips)


def test_notebooks_get_the_picture_and_the_text() -> None:
    graph = trace(lambda x: ops.gt(ops.exp(x), 0.0), X, names=["<b>"])
    html = graph._repr_html_()
    assert "<svg" in html
    assert "<b>%" not in html
    assert "&lt;b&gt;" in html
    assert "= exp(" in html


def test_nobody_is_shown_thousands_of_nodes() -> None:
    def long(x: lm.Tensor) -> lm.Tensor:
        for _ in range(LARGEST + 1):
            x = ops.exp(x)
        return x

    text = picture(trace(long, X))
    assert "<svg" not in text
    assert re.search(rf"{LARGEST + 1} nodes are more than a picture shows", text)


def test_a_graph_without_nodes() -> None:
    assert set(boxes(picture(trace(lambda x: x, X, names=["x"])))) == {"%x"}
