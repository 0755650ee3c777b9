"""The table of functions that ops are written with."""

import itertools
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from lamina.ops.core import REGISTRY, Op
from lamina.ops.primitives.collective import Collective
from lamina.ops.primitives.marker import CustomGradient
from lamina.ops.primitives.update import Update
from lamina.spec import Spec, bfloat16, bool_, uint8

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]

#: What PyTorch has no function for beside gradients, updates and what several ranks do.
LACKING = {
    "foreach",
    "fused",
    "fused_elementwise",
    "keep_boxes",
    "max_pool_gather",
    "roi_align",
}
#: What draws other numbers each time, and the loss whose second result PyTorch does not give.
REST = {"dropout", "dropout_mask", "random_normal", "random_uniform", "ctc_loss"}


def made(op: type[Op]) -> Op:
    """One of the class, of whatever attributes."""
    return op.__new__(op)


def test_every_op_has_a_function_or_a_reason() -> None:
    from lamina.convert.torch.functions import refusal, writer_of
    from lamina.convert.torch.functions.step import WRITERS
    from tests.helpers.written_functions import registered

    lacking = [op for op in registered() if op not in WRITERS and (fields(op) or not writer_of(op()))]
    rest = {op.name for op in lacking if not issubclass(op, (Collective, Update)) and "_grad" not in op.name}
    assert rest == LACKING
    assert all(refusal(made(op)) for op in lacking)


def test_dtypes_have_the_same_names() -> None:
    import torch

    from lamina.convert.torch.functions import torch_dtype

    found = [torch_dtype(dtype) for dtype in (bfloat16, bool_, uint8)]
    assert found == [torch.bfloat16, torch.bool, torch.uint8]


def test_each_result_is_given_where_it_alone_is_read() -> None:
    """Results that nobody reads may be left out, those that are read are as beside all others."""
    import torch

    from lamina.convert.torch.functions.step import WRITERS
    from tests.helpers.written_functions import dtype_of, step_of

    checked = set()
    for op in (o for o in REGISTRY.values() if o in WRITERS and o.name not in REST):
        for sample in itertools.islice(op.samples(), 2):
            arrays = sample.draw(np.random.default_rng(0), dtype_of(sample))
            step = step_of(sample.op, arrays)
            if len(step.wanted) == 1:
                continue
            whole = step.written([torch.from_numpy(a.copy()) for a in arrays])
            for i in range(len(whole)):
                wanted = tuple(j == i for j in range(len(whole)))
                found = replace(step, wanted=wanted).written([torch.from_numpy(a.copy()) for a in arrays])
                assert (found[i] is None) == (whole[i] is None), (str(sample), i)
                torch.testing.assert_close(found[i], whole[i], msg=f"{sample}: result {i}", equal_nan=True)
                checked.add(op.name)
    assert checked >= {"batch_norm", "layer_norm", "rms_norm", "group_norm", "max_pool", "attention"}


def test_an_op_of_your_own_is_entered() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError, writes
    from lamina.convert.torch.functions.step import WRITERS
    from tests.helpers.written_functions import step_of

    @dataclass(frozen=True)
    class WrittenCube(Op, abstract=True):
        def infer(self, x: Spec) -> tuple[Spec]:
            return (x,)

    x = np.array([2.0, -1.0], np.float32)
    with pytest.raises(
        TorchConversionError, match=r"to_torch: written_cube\(\) .*no function of this meaning"
    ):
        step_of(WrittenCube(), [x]).written([torch.from_numpy(x)])

    @writes(WrittenCube)
    def cube(step: Any, x: Any) -> Any:
        return x**3

    try:
        (y,) = step_of(WrittenCube(), [x]).written([torch.from_numpy(x)])
        assert y.tolist() == [8.0, -1.0]
    finally:
        del WRITERS[WrittenCube]


def test_a_gradient_of_its_own_has_no_function_but_a_graph() -> None:
    from lamina.convert.torch.functions import writer_of

    assert writer_of(CustomGradient(lambda kept, grads: grads, 1, 1)) is None
