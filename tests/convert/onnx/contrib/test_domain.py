"""The handlers of ONNX Runtime's domain stand in their own entries of the table."""

from lamina.convert.onnx import HANDLERS
from lamina.convert.onnx.contrib.domain import DOMAIN, contributes
from lamina.convert.onnx.node import KNOWN, STATISTICS, OnnxNode


def test_an_operator_is_entered_under_the_domain() -> None:
    def handler(node: OnnxNode) -> None:
        return None

    try:
        assert contributes("TestOnly", known=(1,), statistics=(2,))(handler) is handler
        assert HANDLERS[DOMAIN, "TestOnly"] is handler
        assert (KNOWN[DOMAIN, "TestOnly"], STATISTICS[DOMAIN, "TestOnly"]) == ((1,), (2,))
    finally:
        for table in (HANDLERS, KNOWN, STATISTICS):
            del table[DOMAIN, "TestOnly"]


def test_both_domains_have_an_attention_of_their_own() -> None:
    assert HANDLERS["", "Attention"] is not HANDLERS[DOMAIN, "Attention"]
