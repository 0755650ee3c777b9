"""ONNX's own tests of its operators as the judge of `lamina.convert.onnx`."""

import json
from collections import Counter

import pytest

from tests.judges import onnx_nodes

AGAIN = "look at what changed, then run: python -m tests.judges.onnx_nodes write"


@pytest.mark.slow
@pytest.mark.feature("B026")
def test_onnx_own_tests_agree_or_are_refused_as_listed() -> None:
    """At least 1,150 of the direct tests of operators, all nine known networks and the simple models; none is wrong.

    Each refusal is a typed error that the table lists.
    """
    found = onnx_nodes.judge()
    assert {n: text for n, (verdict, text) in found.items() if verdict == "wrong"} == {}
    table = json.loads(onnx_nodes.TABLE.read_text(encoding="utf-8"))
    assert onnx_nodes.summary(found) == table, AGAIN
    kinds = Counter(name.rpartition("/")[0] for names in table["agree"].values() for name in names)
    assert kinds[""] >= 1150
    assert kinds["simple"] == 23
    assert (kinds["real"], kinds["pytorch-converted"], kinds["pytorch-operator"]) == (9, 82, 35)


@pytest.mark.slow
def test_what_networks_are_made_of_is_among_what_agrees() -> None:
    """No operator of real tensors is refused altogether; what is refused is of types or of text, as listed."""
    table = json.loads(onnx_nodes.TABLE.read_text(encoding="utf-8"))
    agreed = set(table["agree"])
    refused = {onnx_nodes.operator(onnx_nodes.cases()[n]) for n in table["refused"]}
    assert refused - agreed == {
        "ImageDecoder", "RegexFullMatch", "TfIdfVectorizer", "TreeEnsemble",
    }  # fmt: skip
