"""What a policy says about plans on a GPU: which engines, which choice for other sizes, which plan by name."""

import pytest

from lamina.backends.cuda.choice import unwanted
from lamina.cudnn import NumericalNote
from lamina.spec import Policy, bfloat16, float32


class _Engine:
    def __init__(self, *notes: str) -> None:
        self.numerical_notes = frozenset(NumericalNote[f"CUDNN_NUMERICAL_NOTE_{n}"] for n in notes)


class _Config:
    def __init__(self, *notes: str) -> None:
        self.engine = _Engine(*notes)


@pytest.mark.feature("B011", "B017", "F091", "F093")
def test_policies_forbid_engines() -> None:
    tensor_core, random = _Config("TENSOR_CORE"), _Config("NONDETERMINISTIC")
    assert "TF32" in unwanted(tensor_core, float32, Policy())  # type: ignore[arg-type]
    assert unwanted(tensor_core, float32, Policy(tf32=True)) == ""  # type: ignore[arg-type]
    assert unwanted(tensor_core, bfloat16, Policy()) == ""  # type: ignore[arg-type]
    assert "TF32" in unwanted(_Config("DOWN_CONVERT_INPUTS"), float32, Policy())  # type: ignore[arg-type]
    assert unwanted(random, bfloat16, Policy()) == ""  # type: ignore[arg-type]
    assert unwanted(random, bfloat16, Policy(deterministic=True)) == "not deterministic"  # type: ignore[arg-type]
    assert "half" in unwanted(_Config("REDUCED_PRECISION_REDUCTION"), bfloat16, Policy())  # type: ignore[arg-type]
