"""A recurrent network's gradient in stages: the numbers of the whole, and messages that go beside later stages."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.backends.cuda import backend as cuda_backend
from lamina.backends.cuda.rnn import persistent
from lamina.backends.cuda.rnn.gradient_stages_fusion import RnnGradStage
from lamina.backends.cuda.rnn.persistent import Tiling
from lamina.backends.reference import run_reference
from lamina.distributed import all_reduce_each
from lamina.graph import Graph, compile, gradients, trace
from lamina.graph.passes.manager import optimize, refusals
from lamina.graph.passes.pattern import Report
from lamina.graph.planning.cost import least_seconds
from lamina.graph.planning.streams import BEHIND_MESSAGES, MESSAGES, assign_streams
from lamina.ops.core import Array
from lamina.ops.primitives.rnn import Rnn, RnnGrad, Sizes, rnn
from lamina.runtime import Device
from lamina.spec import DType, Group, Policy, Spec, as_dtype, bfloat16, float16, float32, float64
from tests.backends.cuda.rnn.test_persistent import CPU, compiler, multiplied, operands, run
from tests.helpers import slow_from
from tests.helpers.planned import H200

# ------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    "op",
    [RnnGrad("lstm", 4, 2, True, 3), RnnGrad("gru", 3, 3, bias=False), RnnGrad("tanh", 2, 1, True)],
    ids=str,
)
def test_stages_are_parts_of_the_whole(op: RnnGrad) -> None:
    """Each result is made in one stage: the weights of what is above first, W_ih before W_hh and W_hr."""
    sizes, rng = Sizes(3, 2, 4), np.random.default_rng(0)
    shapes = [s for s in op.operand_shapes(sizes) if s is not None] + op.weight_shapes(sizes.inputs)
    arrays = [rng.uniform(-1, 1, s) for s in shapes]
    whole = run_reference(op, arrays, float64)
    stages = op.stages(len(whole))
    assert sorted(set(stages)) == [*range(2 * op.layers + 1)]
    for stage in set(stages):
        found = run_reference(RnnGradStage(**vars(op), stage=stage), arrays, float64)
        wanted = [y for y, s in zip(whole, stages, strict=True) if s == stage]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    matrices = [i for i, y in enumerate(whole) if i > op.states and y.ndim == 2]
    by_layer = np.split(np.array([stages[i] for i in matrices]), op.layers)
    assert all(below.min() > above.max() for below, above in pairwise(by_layer))


@pytest.mark.parametrize("stage", [-1, 5])
def test_a_stage_that_a_network_does_not_have(stage: int) -> None:
    op, sizes = RnnGradStage("tanh", 3, 2, stage=stage), Sizes(2, 2, 3)
    specs = [Spec(s, float32) for s in (*op.operand_shapes(sizes), *op.weight_shapes(3)) if s is not None]
    with pytest.raises(ValueError, match=f"rnn_grad_stage: stage must be 0 to 4 for 2 layers, got {stage}"):
        op.infer(*specs)


#: op, sizes, (wave, units, groups, chains), type
CASES = [
    (Rnn("lstm", 128, 2), Sizes(3, 11, 16), (False, 8, 1, 1), float16),
    (Rnn("gru", 128, 2), Sizes(4, 5, 8), (True, 32, 1, 1), bfloat16),
    (Rnn("gru", 128, 2, bias=False), Sizes(3, 5, 8), (False, 128, 1, 1), bfloat16),
    (Rnn("lstm", 128, 3, bias=False), Sizes(4, 13, 16), (True, 32, 2, 2), float16),
    (Rnn("gru", 256, 2), Sizes(4, 10, 8), (False, 32, 1, 1), float16),
]


@compiler
@pytest.mark.parametrize(("op", "sizes", "shared", "dtype"), slow_from(3, CASES, several=True), ids=str)
def test_kernels_of_stages_give_the_bits_of_the_whole(
    op: Rnn, sizes: Sizes, shared: tuple[bool, int, int, int], dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent, "matmul_plan", multiplied)
    monkeypatch.setattr(persistent, "_SMALL_FLOPS", 0)
    found = Tiling(H200.machine, sizes.steps, sizes.batch, op.hidden, op.layers, *shared)
    arrays, head = operands(op, sizes, dtype), 1 + op.states
    training = replace(op, reserve=True)
    plan = persistent.forward_plan(training, specs_of(arrays), found, CPU, Policy())
    *outputs, reserve = run(plan, arrays)
    rng = np.random.default_rng(1)
    grads = [np.asarray(rng.uniform(-1, 1, a.shape), dtype.numpy) for a in outputs]
    given = [*arrays[:head], outputs[0], *grads, reserve, *arrays[head:]]
    whole = RnnGrad(op.mode, op.hidden, op.layers, bias=op.bias, reserve=True)
    wanted = run(persistent.gradient_plan(whole, specs_of(given), found, CPU, Policy()), given)
    first = RnnGradStage(**vars(whole))
    *data, dgates = run(persistent.data_gradient_plan(first, specs_of(given), found, CPU, Policy()), given)
    stages = whole.stages(len(wanted))
    equal(data, [y for y, s in zip(wanted, stages, strict=True) if s == 0 and y.dtype != np.uint8])
    given.insert(3 + 2 * op.states + 1, dgates)
    for stage in range(1, 2 * op.layers + 1):
        one = replace(first, stage=stage)
        plan = persistent.matrix_gradient_plan(one, specs_of(given), one.matrix, found, CPU, Policy())
        equal(run(plan, given), [y for y, s in zip(wanted, stages, strict=True) if s == stage])


def specs_of(arrays: Sequence[Array]) -> list[Spec]:
    return [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays]


def equal(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


# -------------------------------------------------------------------------------------------------------- messages


def step(ranks: int, sizes: Sizes, op: Rnn, bucket_bytes: int = 25 << 20) -> Graph:
    """Training of parameters in float32 by gradients in bfloat16, which so many ranks add."""

    def graph(x: Any, rate: Any, *rest: Any) -> list[Any]:
        weights, momenta = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        weights_in_half = [w.cast(x.dtype) for w in weights]
        known: dict[str, Any] = {f: getattr(op, f) for f in ("hidden", "layers", "bidirectional", "bias")}
        y = rnn(op.mode, x, None, weights_in_half, **known)[0].cast(float32)
        found = gradients((y * y).sum(), list(weights))
        group = Group(range(ranks))
        found = all_reduce_each(found, "mean", group=group, bucket_bytes=bucket_bytes)
        parts = zip(weights, found, momenta, strict=True)
        return [new for w, g, m in parts for new in ops.sgd_update(w, g, m, rate, momentum=0.9)]

    shapes = op.weight_shapes(sizes.inputs)
    return trace(
        graph, Spec(tuple(sizes), bfloat16), Spec((), float32), *(Spec(s, float32) for s in shapes * 2)
    )


def donated(graph: Graph) -> dict[int, int]:
    """Parameters and momenta by where their new values are."""
    count = len(graph.outputs) // 2
    return {2 + i: 2 * (i % count) + i // count for i in range(2 * count)}


LARGE = Sizes(100, 64, 1024)


@pytest.mark.parametrize("mode", ["lstm", "gru"])
def test_what_is_finished_travels_and_is_used_beside_later_stages(mode: str) -> None:
    graph = step(4, LARGE, Rnn(mode, 1024, 2))
    program = compile(graph, H200, donate=donated(graph)).program
    steps = [s for s in program.steps if not s.plan.view]
    streams = assign_streams(steps, [least_seconds(s, H200.machine) for s in steps])
    names = [s.label.split()[0] for s in steps]
    made = [i for i, s in enumerate(steps) if s.node is not None and isinstance(s.node.op, RnnGradStage)]
    sent = [i for i, name in enumerate(names) if name == "start_all_reduce"]
    assert [steps[i].node.op.stage for i in made] == [0, 1, 2, 3, 4]  # type: ignore[union-attr]
    assert made[2] < sent[0] < made[3] < sent[1] < made[4] < sent[2]
    assert {streams[i] for i in sent} == {MESSAGES}
    used = [i for i, k in enumerate(streams) if k == BEHIND_MESSAGES]
    assert sent[1] < used[0] < sent[2] < used[-1]  # the first updates need not wait for the last message
    assert not {MESSAGES, BEHIND_MESSAGES}.intersection(streams[i] for i in made)


def stages_in(graph: Graph, device: Device = H200) -> tuple[list[int], list[str]]:
    """The stages in a graph that is improved for a GPU, and what was refused."""
    reports: list[Report] = []
    better = optimize(graph, cuda_backend(device), reports=reports)
    found = [n.op.stage for n in better.nodes if isinstance(n.op, RnnGradStage)]
    return found, [r for r in refusals(reports) if r.startswith("rnn_grad_stage")]


def test_only_where_messages_take_results_apart() -> None:
    assert stages_in(step(1, LARGE, Rnn("lstm", 1024, 2))) == ([], [])
    assert stages_in(step(4, Sizes(100, 64, 128), Rnn("lstm", 128, 2))) == ([], [])  # one message has all
    assert stages_in(step(2, LARGE, Rnn("lstm", 1024))) == ([0, 1, 2], [])


def test_not_where_a_library_has_all_stages_in_one() -> None:
    found, reasons = stages_in(step(4, LARGE, Rnn("lstm", 1024, 2, bidirectional=True)))
    assert not found
    assert "cuDNN runs the network" in reasons[0]


def test_not_where_small_products_are_one_launch() -> None:
    found, reasons = stages_in(step(4, Sizes(2, 8, 512), Rnn("lstm", 512, 2)))
    assert not found
    assert "runs in one launch with others" in reasons[0]


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_without_what_the_forward_pass_left_a_stage_is_taken_from_the_whole(stage: int) -> None:
    op, sizes = RnnGradStage("lstm", 128, stage=stage), Sizes(2, 8, 16)
    shapes = [*(s for s in op.operand_shapes(sizes) if s is not None), *op.weight_shapes(16)]
    specs = [Spec(s, bfloat16) for s in shapes]
    plan = cuda_backend(H200).plan(op, specs, Policy())
    assert [s.open for s in plan.outputs] == [s.open for s in op.infer(*specs)]
    whole = cuda_backend(H200).plan(RnnGrad("lstm", 128), specs, Policy())
    left = sum(s.nbytes for s in whole.outputs) - sum(s.nbytes for s in plan.outputs)
    assert plan.workspace >= whole.workspace + left
