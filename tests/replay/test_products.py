"""Products as cuBLASLt sees them: shapes as they lie, and what epilogues read or write."""

import pytest

from lamina.replay.products import Matrices


def matrices(a: bool = False, b: bool = False, epilogue: str = "") -> Matrices:
    return Matrices(2, 3, 4, 5, a, b, False, "bfloat16", "float32", epilogue, False)


def test_shapes_as_they_lie() -> None:
    assert matrices().shapes == ((3, 5), (5, 4), (3, 4), (3, 4))
    assert matrices(a=True, b=True).shapes == ((5, 3), (4, 5), (3, 4), (3, 4))


@pytest.mark.parametrize(
    ("epilogue", "bias", "aux"),
    [
        ("", False, False),
        ("relu_bias", True, False),
        ("gelu_aux_bias", True, True),
        ("dgelu_bgrad", True, True),
    ],
)
def test_what_an_epilogue_takes(epilogue: str, bias: bool, aux: bool) -> None:
    found = matrices(epilogue=epilogue)
    assert (found.has_bias, found.has_aux) == (bias, aux)
