"""The domain of ONNX Runtime's operators."""

from __future__ import annotations

from collections.abc import Callable

from lamina.convert.onnx.node import Handler, converts

DOMAIN = "com.microsoft"


def contributes(
    *operators: str, known: tuple[int, ...] = (), statistics: tuple[int, ...] = ()
) -> Callable[[Handler], Handler]:
    """`converts` for operators of ONNX Runtime's domain."""
    return converts(*operators, domain=DOMAIN, known=known, statistics=statistics)
