"""How the operands of a product lie."""

import pytest

from lamina.backends.cuda.matmul.matmul import _is_transposed
from lamina.spec import Shape, Spec, float32


@pytest.mark.parametrize(
    ("shape", "tag", "transposed"),
    [
        ((4, 5), "ba", True),
        ((4, 5), "ab", False),
        ((4, 5), "", False),  # anywhere
        ((3, 4, 5), "acb", True),
        ((3, 4, 5), "abc", False),
        ((3, 4, 5), "bac", False),
        ((4, 1), "ba", False),  # a column lies as a row does
        ((0, 5), "ba", False),
    ],
)
def test_a_matrix_that_lies_by_columns_is_read_as_it_lies(shape: Shape, tag: str, transposed: bool) -> None:
    spec = Spec(shape, float32)
    assert _is_transposed(spec.with_tag(tag) if tag else spec) is transposed
