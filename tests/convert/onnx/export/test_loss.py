"""Losses and 8-bit numbers as models of ONNX."""

import pytest

from lamina.convert.onnx.export import loss
from lamina.ops.core import Arg, Op, Sample
from lamina.ops.primitives.loss import CrossEntropy
from lamina.ops.primitives.nll_loss import NllLoss
from lamina.spec import DType, float32, int64
from tests.helpers.onnx_exports import few, verdict

pytestmark = pytest.mark.feature("B026")


@pytest.mark.parametrize(("sample", "dtype"), few(loss), ids=str)
def test_written_ops_compute_what_they_mean(sample: Sample, dtype: DType) -> None:
    assert verdict(sample, dtype) == []


@pytest.mark.parametrize("op", [CrossEntropy(0.0, -1), CrossEntropy(0.25, -1), NllLoss(-1)], ids=str)
def test_an_ignored_label_reads_the_only_class(op: Op) -> None:
    """Of one class every index but 0 is outside."""
    labels = Arg((4, 3), int64, low=-1, high=1, integers=True, differentiable=False)
    for weight in ((), ((1,),)) if isinstance(op, NllLoss) else ((),):
        assert verdict(Sample.of(op, (4, 1, 3), labels, *weight), float32) == []
