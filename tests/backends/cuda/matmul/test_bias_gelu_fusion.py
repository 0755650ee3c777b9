"""A product, its bias and gelu are one op, and their gradient is one: patterns, values, refusals, plans."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.backends import NoKernel, get
from lamina.backends.cuda.cudnn_graphs.epilogue import Vector
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import Fill, Place, scratch, source, target
from lamina.backends.cuda.matmul import bias_gelu_fusion, cublaslt
from lamina.backends.cuda.matmul.bias_gelu_fusion import (
    BIAS_GELU,
    BIAS_GELU_GRAD,
    MatmulBiasGelu,
    MatmulGeluGrad,
    sum_formulation,
)
from lamina.backends.cuda.select.formulations import Formulation, Problem, candidates, make_plan
from lamina.backends.reference import run_reference
from lamina.c import cublaslt as c
from lamina.cudnn import handle_of
from lamina.graph import Graph, gradients, trace
from lamina.graph.passes.attention import reshape_behind
from lamina.graph.passes.fusion import fuse_patterns
from lamina.graph.passes.manager import optimize, refusals
from lamina.graph.passes.pattern import Report
from lamina.ops.core import Op, bind
from lamina.ops.primitives import Fused, Gelu, GeluGrad, GeluTanh, Matmul
from lamina.runtime import Device
from lamina.spec import DType, Policy, ShapeError, Spec, bfloat16, float16, float32, float64
from tests.helpers import ROOT
from tests.helpers.cudnn.installed import needs_cudnn_919, planning_environment
from tests.helpers.eager import execute, mismatch
from tests.helpers.encoder import names, same
from tests.helpers.feed_forward import FEED_FORWARD, feed_forward
from tests.helpers.planned import H200
from tests.helpers.stand_in import StandIn

rng = np.random.default_rng(0)
FORMS: tuple[Literal["none", "tanh"], ...] = ("none", "tanh")


def traced(f: Callable[..., Any], *specs: Spec) -> Graph:
    return trace(f, *(specs or (Spec(s, bfloat16) for s in FEED_FORWARD)))


def fused(graph: Graph, backend: StandIn | None = None) -> tuple[Graph, list[str]]:
    """The graph as all passes leave it, and what was refused of these two fusions."""
    reports: list[Report] = []
    better = optimize(graph, backend or StandIn(_without_steps), reports=reports)
    return better, [line for line in refusals(reports) if line.startswith(("bias_gelu", "matmul_"))]


def _without_steps(op: Any, specs: Any) -> str:
    return "" if isinstance(op, Fused) else "fused"


# -------------------------------------------------------------------------------------------------------- patterns


@pytest.mark.feature("B013")
@pytest.mark.parametrize("form", FORMS)
def test_a_feed_forward_block_in_training(form: Literal["none", "tanh"]) -> None:
    """One node forward, which gives gelu's input too, and one backward; the numbers stay."""
    arrays = [rng.standard_normal(s) for s in FEED_FORWARD]
    better, refused = fused(traced(partial(feed_forward, form)))
    found = names(better)
    assert found["matmul_bias_gelu"] == found["matmul_gelu_grad"] == 1
    assert not {"gelu", "gelu_tanh", "gelu_grad"} & set(found)
    assert (found["matmul"], found["reduce"], refused) == (4, 1, [])
    graph = trace(partial(feed_forward, form), *arrays)
    wide = _unchecked(graph)
    assert names(wide)["matmul_bias_gelu"] == names(wide)["matmul_gelu_grad"] == 1
    same(graph, wide, arrays)


def _unchecked(graph: Graph) -> Graph:
    """The graph with both fusions made although there is no kernel for float64."""
    from_any = [replace(fusion, check=lambda match: "") for fusion in (BIAS_GELU, BIAS_GELU_GRAD)]
    return fuse_patterns(reshape_behind(graph), from_any, StandIn(), Report())


@pytest.mark.feature("B013")
def test_an_encoder_with_gelu() -> None:
    net = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
    parameters = dict(net.named_parameters())

    def layer(x: Any, g: Any, *values: Any) -> Any:
        with nn.substitute(net, dict(zip(parameters, values, strict=True))):
            y = net(x)
        return [y, *gradients(y, [x, *values], [g])]

    kinds = {n: float32 if "norm" in n else bfloat16 for n in parameters}
    specs = [Spec((2, 8, 16), bfloat16)] * 2 + [Spec(p.shape, kinds[n]) for n, p in parameters.items()]
    found = names(fused(trace(layer, *specs))[0])
    assert found["matmul_bias_gelu"] == found["matmul_gelu_grad"] == 1


def test_a_gradient_that_is_no_product_stays() -> None:
    """Behind a mask, as dropout makes one, gelu's gradient reads masked values; the forward is fused all the same."""

    def masked(x: Any, w: Any, b: Any, mask: Any) -> Any:
        y = ops.gelu(ops.linear(x, w, b)) * mask
        return [y, *gradients(ops.sum(y * y), [x, w, b])]

    found = names(fused(trace(masked, *_specs((16, 8), (32, 8), (32,), (16, 32))))[0])
    assert (found["matmul_bias_gelu"], found["matmul_gelu_grad"], found["gelu_grad"]) == (1, 0, 1)


def test_without_a_gradient_nothing_is_kept() -> None:
    """Inference takes bias and gelu as steps of one fused node."""
    graph = traced(lambda x, w, b: ops.gelu(ops.linear(x, w, b)), *_specs((16, 8), (32, 8), (32,)))
    backend = StandIn()
    assert [node.op.name for node in fused(graph, backend)[0].nodes] == ["fused"]
    assert {type(op) for op, _ in backend.asked} == {Fused}


def _specs(*shapes: tuple[int, ...], dtype: Any = bfloat16) -> list[Spec]:
    return [Spec(s, dtype) for s in shapes]


def _with_input(x: Any, w: Any, b: Any, transposed: bool = False) -> Any:
    h = bind(Matmul(transposed, transposed), x, w)[0] + b
    return ops.gelu(h), h


@pytest.mark.parametrize(
    ("specs", "transposed", "reason"),
    [
        (_specs((16, 8), (8, 12), (12,)), False, "rows of a multiple of 8 elements, not as bf16[16,12]"),
        (_specs((3, 16, 8), (3, 8, 16), (16,)), False, "not behind a batch of them: bf16[3,16,16]"),
        (_specs((16, 8), (8, 32), (32,), dtype=float64), False, "behind a product of float64"),
        (_specs((16, 8), (8, 32), (16, 32)), False, "no bias, one number for each column: bf16[16,32]"),
        (_specs((16, 8), (8, 32), (16, 1)), False, "no bias, one number for each column: bf16[16,1]"),
        (_specs((8, 16), (32, 8), (32,)), True, "both operands are transposed"),
    ],
)
def test_why_a_sum_is_not_fused(specs: list[Spec], transposed: bool, reason: str) -> None:
    graph = trace(partial(_with_input, transposed=transposed), *specs)
    report, backend = Report(), StandIn()
    assert fuse_patterns(graph, [BIAS_GELU], backend, report) is graph
    assert backend.asked == []
    assert report.refused
    assert all(line.startswith("bias_gelu: gelu(): ") and reason in line for line in report.refused)


def test_why_a_gradient_is_not_fused() -> None:
    def f(a: Any, b: Any, h: Any) -> Any:
        dh = bind(GeluGrad(), h, ops.matmul(a, b))[0]
        return dh, ops.sum(dh, 0)

    report = Report()
    graph = trace(f, *_specs((16, 8), (8, 20), (16, 20)))
    assert fuse_patterns(graph, [BIAS_GELU_GRAD], StandIn(), report) is graph
    (line,) = report.refused
    assert line.endswith("gelu's input is kept in rows of a multiple of 8 elements, not as bf16[16,20]")


@pytest.mark.parametrize(
    ("verdict", "reason"), [("unfused", "the unfused form is as fast"), ("", "nothing for it")]
)
def test_the_parts_stay_where_they_are_as_fast(verdict: str, reason: str) -> None:
    with lm.policy(algorithm="fastest"):
        graph = traced(partial(feed_forward, "none"))
    backend = StandIn(lambda op, specs: "" if isinstance(op, Fused) else verdict)
    better, refused = fused(graph, backend)
    assert {"gelu", "gelu_grad"} <= set(names(better))
    assert [line.endswith(reason) for line in refused] == [True, True]


def test_bad_operands() -> None:
    op = MatmulGeluGrad(Matmul(), GeluGrad())
    with pytest.raises(ShapeError, match="gelu's input and gradient must be alike"):
        op.infer(*_specs((16, 8), (8, 32), (16, 16)))


# ----------------------------------------------------------------------------------------------------------- plans


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What `gelus` of tests.helpers.cudnn.deviceless found, in a process that plans for an H200."""
    environment = planning_environment(tmp_path_factory.mktemp("libcuda"))
    command = [sys.executable, "-m", "tests.helpers.cudnn.deviceless", "gelus"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])["gelus"]
    return found


@needs_cudnn_919
@pytest.mark.feature("B013", "B011")
@pytest.mark.parametrize("form", FORMS)
def test_cudnn_plans_both_forms(form: str, planned: dict[str, str]) -> None:
    """Forward gelu's input is an output of the same plan; backward the bias' gradient is.

    They compete where candidates are timed. Without timing the product and gelu are apart, which is faster; the
    gradient is a product with gelu's derivative, and a sum apart.
    """
    for key in ("bf16", "f16", "f32 tf32"):
        first, *others = planned[f"{form} {key}"].split(" | ")
        assert first.startswith("cudnn matmul+add ")
        assert any(label.startswith("cudnn matmul+gelu_grad ") for label in others)
        assert any(label.startswith("kernel gelu") for label in others)
    assert "kernel gelu" in planned[f"{form} f32"]
    for rows in (512, 33):
        assert planned[f"{form} sum {rows}"].startswith("sum eng")
        conv, matmul = planned[f"{form} both {rows}"].split(" | ")
        assert conv.startswith("conv eng")
        assert matmul.startswith("matmul eng")


@pytest.mark.parametrize("epilogue", ["gelu_aux_bias", "dgelu_bgrad", "gelu_bias", ""])
def test_what_cublaslt_is_told(epilogue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gelu's input lies as D does: columns of as many elements as a row of the product has."""
    told: dict[str, int] = {}
    monkeypatch.setattr(c, "cublasLtMatmulDescCreate", lambda compute, scale: 1)
    monkeypatch.setattr(
        c, "cublasLtMatmulDescSetAttribute", lambda made, name, value: told.update({name: value})
    )
    plain = cublaslt.matrices(Product(1, 16, 24, 8, False, True), bfloat16, Vector(), tf32=False)
    assert plain is not None
    asked = replace(plain, epilogue=epilogue)
    asked.description(512 * asked.has_bias, 1024 * asked.has_aux)
    assert told["epilogue"] == c.EPILOGUES[epilogue]
    assert told.get("bias_pointer") == (512 if epilogue else None)
    aux = (told.get("epilogue_aux_pointer"), told.get("epilogue_aux_ld"))
    assert aux == ((1024, 24) if "aux" in epilogue or epilogue.startswith("d") else (None, None))


@pytest.mark.parametrize("dtype", [bfloat16, float32])
def test_cublaslt_competes_for_the_tanh_form(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its epilogue stands in front of cuDNN's; the gradient by its epilogue is slower than the steps."""
    asked: list[tuple[tuple[Place, ...], str, cublaslt.Extras]] = []

    def named(*given: Any) -> list[Formulation]:
        asked.append((given[2], *given[-2:]))
        return [Formulation("blas:0")]

    monkeypatch.setattr(bias_gelu_fusion, "cublaslt_aux_formulations", named)
    policy, p = Policy(tf32=True), Product(1, 16, 32, 8, False, True)
    inputs = [s.fixed for s in _specs((16, 8), (32, 8), (32,), dtype=dtype)]
    h = Spec((16, 32), dtype).fixed
    forward, backward = bias_gelu_fusion._forward_formulations, bias_gelu_fusion._backward_formulations
    found = [
        w.name for w in forward(MatmulBiasGelu(Matmul(False, True), GeluTanh()), p, inputs, h, H200, policy)
    ]
    assert found == ["blas:0", "conv", "matmul"]
    assert [w.name for w in forward(MatmulBiasGelu(Matmul(), Gelu()), p, inputs, h, H200, policy)] == [
        "conv",
        "matmul",
    ]
    inputs[2], tanh = h, MatmulGeluGrad(Matmul(), GeluGrad("tanh"))
    assert backward(tanh, p, inputs, h, H200, policy) == []
    timed = replace(policy, algorithm="fastest")
    assert [w.name for w in backward(tanh, p, inputs, h, H200, timed)] == ["sum"]
    assert backward(tanh, p, inputs, h, H200, replace(timed, deterministic=True)) == []
    places = (source(0), source(1), target(0))
    assert asked == [(places, "gelu_aux_bias", cublaslt.Extras(source(2), aux=target(1)))]


def test_the_sum_is_as_large_as_what_is_cleared_and_rounded() -> None:
    """Its float32 numbers lie side by side at the start of the workspace, where a kernel reads them."""
    p, op = Product(1, 16, 48, 64, False, False), MatmulGeluGrad(Matmul(), GeluGrad("tanh"))
    h = Spec((16, 48), float16).fixed
    formulation = sum_formulation(op, p, h, h)
    (zeros,) = formulation.before
    assert isinstance(zeros, Fill)
    assert (zeros.place, zeros.nbytes, formulation.scratch) == (scratch(), 4 * 48, 4 * 48)
    assert formulation.graph is not None
    graph, places = formulation.graph()
    (total,) = [t for t in graph.tensors if places.get(t.uid) == scratch()]
    assert (total.dimensions, total.strides) == ((1, 1, 48), (48, 48, 1))


@pytest.mark.gpu
@pytest.mark.feature("B013")
@pytest.mark.parametrize("dtype", [bfloat16, float16, float32])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", [(256, 128, 512), (33, 24, 40)])
def test_every_formulation_on_a_gpu(
    shape: tuple[int, int, int], form: Literal["none", "tanh"], dtype: DType
) -> None:
    """The first candidate of each formulation, of either op, against the reference."""
    device, (m, k, n) = Device("cuda:0"), shape
    gelu = Gelu() if form == "none" else GeluTanh()
    for op, shapes in (
        (MatmulBiasGelu(Matmul(False, True), gelu), ((m, k), (n, k), (n,))),
        (MatmulGeluGrad(Matmul(), GeluGrad(form)), ((m, k), (k, n), (m, n))),
    ):
        arrays = [(rng.standard_normal(s) / 4).astype(dtype.numpy) for s in shapes]
        wanted = run_reference(op, arrays, float64)
        ran = set()
        for problem, formulation in _posed(op, [Spec(a.shape, dtype) for a in arrays], device):
            single = replace(problem, formulations=(formulation,))
            found = next(
                candidates(single, handle_of(device), Policy(tf32=True), ("a", "fallback"), []), None
            )
            if found is not None:
                ran.add(formulation.name.partition(":")[0])
                outputs = execute(device, make_plan(single, found, device), arrays)
                for y, ref in zip(outputs, wanted, strict=True):
                    problem_found = mismatch(y, ref, bfloat16 if dtype == float32 else dtype)  # TF32
                    assert not problem_found, f"{op} {found.label}: {problem_found}"
        assert {"unfused"} < ran


def _posed(op: Op, specs: list[Spec], device: Device) -> list[tuple[Problem, Formulation]]:
    """The problem that planning under `fastest` poses, with each of its formulations."""
    posed: list[Problem] = []

    def pose(problem: Problem, *others: object) -> None:
        posed.append(problem)
        raise NoKernel("posed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bias_gelu_fusion, "choose", pose)
        with pytest.raises(NoKernel, match="posed"):
            get(device).plan(op, specs, Policy(algorithm="fastest", tf32=True))
    (problem,) = posed
    return [(problem, formulation) for formulation in problem.formulations]


@pytest.mark.gpu
@pytest.mark.feature("B013")
@pytest.mark.parametrize("algorithm", ["heuristic", "fastest"])
@pytest.mark.parametrize("form", FORMS)
def test_a_feed_forward_block_on_a_gpu(form: Literal["none", "tanh"], algorithm: str) -> None:
    arrays = [(rng.standard_normal(s) / 4).astype(bfloat16.numpy) for s in FEED_FORWARD]
    with lm.policy(algorithm=algorithm):
        graph = trace(partial(feed_forward, form), *arrays)
    compiled = lm.compile(graph, device="cuda:0")
    wide = trace(partial(feed_forward, form), *(a.astype(np.float64) for a in arrays))
    for y, wanted in zip(compiled(*arrays), wide(*(a.astype(np.float64) for a in arrays)), strict=True):
        error = np.linalg.norm(y.numpy().astype(np.float64) - wanted.numpy()) / np.linalg.norm(wanted.numpy())
        assert error < 2e-2
