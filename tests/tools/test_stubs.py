"""The stubs of the ops: operands become overloads, everything else stays."""

import ast

import pytest

from tools.stubs import HEADER, METHODS, TENSORS, Module, Stub, operators_stub, ops_stub

HOME = Module("lamina.ops.primitives.pool")  # any module: it says where `Sizes` is defined


def stubs(source: str, plain: tuple[str, str] = TENSORS) -> list[str]:
    f = ast.parse(source + "\n    pass").body[0]
    assert isinstance(f, ast.FunctionDef)
    return [ast.unparse(x) for x in Stub().function(f, f.name, HOME, plain)]


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        (
            "def f(x: Any, n: int = 1) -> Any:",
            [
                "@overload\ndef f(x: TensorLike, n: int=1) -> Tensor:\n    ...",
                "@overload\ndef f(x: Value, n: int=1) -> Value:\n    ...",
            ],
        ),
        ("def f(x: Any) -> int:", ["def f(x: Value | TensorLike) -> int:\n    ..."]),
        ("def f(n: int) -> Any:", ["def f(n: int) -> Tensor:\n    ..."]),
        (
            "def f(x: Sequence[Any], b: Any = None) -> tuple[Any, ...]:",
            [
                "@overload\ndef f(x: Sequence[TensorLike], b: TensorLike | None=None)"
                " -> tuple[Tensor, ...]:\n    ...",
                "@overload\ndef f(x: Sequence[Value | TensorLike], b: Value | TensorLike | None=None)"
                " -> tuple[Value, ...]:\n    ...",
            ],
        ),
        ("def f(n: int = LIMIT) -> None:", ["def f(n: int=...) -> None:\n    ..."]),
    ],
)
def test_a_signature(source: str, wanted: list[str]) -> None:
    assert stubs(source) == wanted


def test_a_method_gives_its_own_kind() -> None:
    assert stubs("def f(self, other: Any) -> Any:", METHODS)[0].endswith(
        "(self, other: TensorLike) -> Own:\n    ..."
    )


def test_overloads_of_a_source_are_kept() -> None:
    home = Module("lamina.ops.primitives.pool")
    code = "@overload\ndef f(x: int) -> int: ...\n@overload\ndef f(x: str) -> str: ...\ndef f(x): ..."
    home.functions["f"] = [n for n in ast.parse(code).body if isinstance(n, ast.FunctionDef)]
    assert len(home.signatures("f")) == 2


def test_both_stubs_are_generated_code() -> None:
    for text in (ops_stub(), operators_stub()):
        assert text.startswith(HEADER.rstrip("\n"))
        ast.parse(text)
