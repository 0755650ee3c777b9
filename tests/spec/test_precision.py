"""Precisions by name."""

import pytest

from lamina.spec import PRECISIONS
from lamina.spec.precision import Precision, as_precision


def test_a_name_or_a_precision_is_taken() -> None:
    for name, precision in PRECISIONS.items():
        assert as_precision(name) is as_precision(precision) is precision
        assert str(precision) == name
    own = Precision("own", PRECISIONS["fp32"].master, PRECISIONS["bf16"].compute)
    assert as_precision(own) is own
    assert not own.tf32
    assert not own.scaled


def test_other_names_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match="precision must be one of fp64, fp32, tf32, bf16, fp16, got 'fp8'"):
        as_precision("fp8")


def test_a_loss_is_scaled_where_gradients_could_vanish() -> None:
    """float16 has five bits of exponent, float32 and bfloat16 have eight."""
    for precision in PRECISIONS.values():
        assert precision.scaled == (precision.compute.name == "float16")
        assert precision.master.itemsize >= max(4, precision.compute.itemsize)
        assert precision.tf32 == (precision.name == "tf32")
