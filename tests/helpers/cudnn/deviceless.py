"""Plans for an H200 made without a GPU: run by test_deviceless.py in a process that sees a libcuda without devices.

Prints one JSON object: pattern -> result.
"""

import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from lamina import cudnn, graph, nn
from lamina.backends import NoKernel, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv import conv
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import Launches, SubPlan, source, target
from lamina.backends.cuda.matmul import matmul
from lamina.backends.cuda.matmul.bias_gelu_fusion import (
    MatmulBiasGelu,
    MatmulGeluGrad,
    _forward_formulations,
    sum_formulation,
)
from lamina.backends.cuda.norm.conv_batch_norm import statistics_formulation
from lamina.backends.cuda.norm.conv_batch_norm_fusion import ConvNorm
from lamina.backends.cuda.norm.norm import cudnn_norm
from lamina.backends.cuda.select import formulations
from lamina.c.errors import CudnnError
from lamina.cudnn import autotune
from lamina.cudnn.finalize import attempt
from lamina.graph.passes.manager import optimize, refusals
from lamina.graph.passes.pattern import Report
from lamina.graph.planning.layout import Plans, plan_graph
from lamina.ops import primitives
from lamina.ops.core import Op
from lamina.ops.primitives import (
    Add,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Div,
    Fused,
    Gelu,
    GeluGrad,
    GeluTanh,
    Matmul,
    Quantize,
    QuantizedConv,
    QuantizedMatmul,
    Relu,
    ReluGrad,
    Window,
)
from lamina.runtime import DiskCache
from lamina.spec import (
    Policy,
    Spec,
    bfloat16,
    channels_last,
    float8_e4m3fn,
    float16,
    float32,
    float64,
    int8,
)
from lamina.spec.policies import policy as lm_policy
from tests.helpers.feed_forward import FEED_FORWARD, feed_forward
from tests.helpers.planned import H200

DEVICE = H200

#: AlexNet's convolutions at batch 128: input, filter, stride, padding.
ALEXNET = {
    "conv1": ((128, 1, 224, 224), (96, 1, 11, 11), 4, 0),
    "conv2": ((128, 96, 26, 26), (256, 96, 5, 5), 1, 2),
    "conv3": ((128, 256, 12, 12), (384, 256, 3, 3), 1, 1),
    "conv4": ((128, 384, 12, 12), (384, 384, 3, 3), 1, 1),
    "conv5": ((128, 384, 12, 12), (256, 384, 3, 3), 1, 1),
}
LINEAR = {"fc1": (128, 6400, 4096), "fc2": (128, 4096, 4096), "fc3": (128, 4096, 10)}
DTYPES = {"bf16": bfloat16, "f16": float16, "f32": float32, "f64": float64}


def plan(
    op: Op, dtype: Any, *shapes: tuple[int, ...], tags: Mapping[int, str] | None = None, **policy: Any
) -> str:
    """The label of the plan, or the refusal; tags: the layouts of operands that are not row-major."""
    specs = [Spec(s, dtype) for s in shapes]
    for i, tag in (tags or {}).items():
        specs[i] = specs[i].with_tag(tag)
    try:
        made = backend(DEVICE).plan(op, specs, Policy(**policy))
    except NoKernel as error:
        return f"refused: {error}"
    return f"{made.label} workspace={made.workspace}"


def properties() -> cudnn.DeviceProperties:
    return cudnn.device_properties(DEVICE.machine)


def convolutions() -> dict[str, str]:
    found = {}
    for name, (x, w, stride, pad) in ALEXNET.items():
        win = Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1))
        y = (x[0], w[0], *win.output(x[2:], w[2:]))
        bias = (1, w[0], 1, 1)
        for short, dtype in DTYPES.items():
            key = f"{name} {short}"
            found[f"{key} forward"] = plan(Conv(win), dtype, x, w)
            found[f"{key} data"] = plan(ConvDataGrad(win, x[2:]), dtype, y, w)
            found[f"{key} filter"] = plan(ConvFilterGrad(win, w[2:]), dtype, x, y)
            if short != "f64":
                found[f"{key} bias relu"] = plan(Fused((Conv(win), Add(), Relu())), dtype, x, w, bias)
        found[f"{name} tf32 forward"] = plan(Conv(win), float32, x, w, tf32=True)
        found[f"{name} deterministic filter"] = plan(
            ConvFilterGrad(win, w[2:]), bfloat16, x, y, deterministic=True
        )
        found[f"{name} fallback"] = plan(Conv(win), bfloat16, x, w, algorithm="fallback")
    win = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
    x, w = (128, 256, 28, 28), (256, 256, 3, 3)
    residual = Fused((Conv(win), Add(), Add(), Relu()))
    found["residual bf16"] = plan(residual, bfloat16, x, w, (1, 256, 1, 1), x)
    gradient = Fused((ConvDataGrad(win, (28, 28)), ReluGrad()))
    found["data relu bf16"] = plan(gradient, bfloat16, x, w, x)
    return found


def products() -> dict[str, str]:
    found = {}
    for name, (m, k, n) in LINEAR.items():
        for short, dtype in DTYPES.items():
            found[f"{name} {short} forward"] = plan(Matmul(False, True), dtype, (m, k), (n, k))
            found[f"{name} {short} data"] = plan(Matmul(), dtype, (m, n), (n, k))
            found[f"{name} {short} weight"] = plan(Matmul(True), dtype, (m, n), (m, k))
        epilogue = Fused((Matmul(False, True), Add(), Relu()))
        found[f"{name} bf16 bias relu"] = plan(epilogue, bfloat16, (m, k), (n, k), (n,))
        for form in ("none", "tanh"):
            gradient = Fused((Matmul(), GeluGrad(form)))
            found[f"{name} bf16 gelu grad {form}"] = plan(gradient, bfloat16, (m, n), (n, k), (m, k))
    steps = Fused((Matmul(False, True), Add(), Div()))  # only after a product of row-major operands
    shapes = ((12, 12), (8, 12), (12, 8), (12, 1))
    found["f32 add div"] = plan(steps, float32, *shapes)
    found["f32 add div of columns"] = plan(steps, float32, *shapes, tags={1: "ba"})
    found["batched bf16"] = plan(Matmul(), bfloat16, (8, 64, 32), (8, 32, 48))
    found["batched f32"] = plan(Matmul(), float32, (8, 64, 32), (8, 32, 48))
    found["batched tf32"] = plan(Matmul(), float32, (8, 64, 32), (8, 32, 48), tf32=True)
    return found


def gelus() -> dict[str, str]:
    """A feed-forward block in training: its plans, by form and type; cuDNN's gradient with the bias' sum.

    Its products are small, and are treated as larger ones are.
    """
    with mock.patch.object(matmul, "small_product", return_value=None):
        return _gelus()


def _gelus() -> dict[str, str]:
    found = {}
    for form in ("none", "tanh"):
        for short, dtype in (("bf16", bfloat16), ("f16", float16), ("f32", float32)):
            for tf32 in (False, True) if dtype == float32 else (False,):
                with lm_policy(tf32=tf32):
                    traced = graph.trace(partial(feed_forward, form), *(Spec(s, dtype) for s in FEED_FORWARD))
                reports: list[Report] = []
                better = optimize(traced, backend(DEVICE), reports=reports)
                plans = plan_graph(better, Plans(backend(DEVICE)), {}, range(2, 6))
                key = f"{form} {short}{' tf32' * tf32}"
                found[key] = " | ".join(s.plan.label for s in plans.steps if not s.plan.view)
                found[f"{key} refused"] = " | ".join(r for r in refusals(reports) if "gelu" in r)
        for m, k, n in ((512, 128, 256), (33, 12, 8)):
            p, h = Product(1, m, n, k, False, False), Spec((m, n), bfloat16).fixed
            sum_only = sum_formulation(MatmulGeluGrad(Matmul(), GeluGrad(form)), p, h, h)
            found[f"{form} sum {m}"] = first_candidate(sum_only, h)
            gelu, turned = (Gelu() if form == "none" else GeluTanh()), Product(1, m, n, k, False, True)
            inputs = [Spec(s, bfloat16).fixed for s in ((m, k), (n, k), (n,))]
            both = _forward_formulations(
                MatmulBiasGelu(Matmul(False, True), gelu), turned, inputs, h, DEVICE, Policy()
            )
            found[f"{form} both {m}"] = " | ".join(first_candidate(one, h) for one in both)
    return found


def first_candidate(formulation: formulations.Formulation, h: Spec) -> str:
    """The heuristic's first plan of one formulation."""
    problem = formulations.Problem("one", "one", (h,), (h,), (formulation,), 0.0)
    first = next(formulations.candidates(problem, properties(), Policy(), ("a",), []), None)
    return first.label if first else "refused"


def eights_int8() -> dict[str, str]:
    """See `_eights`."""
    return _eights(int8)


def eights_fp8() -> dict[str, str]:
    """See `_eights`."""
    return _eights(float8_e4m3fn)


def _eights(dtype: Any) -> dict[str, str]:
    """AlexNet's convolutions, a layer for each window of more than one channel, and products, large and small.

    The possible epilogues of an op are the same for layers of all sizes: each layer is planned with the full
    epilogue, the first of its kind also with less (cuDNN compiles each kernel for a second or two).
    """
    found = {}
    for name in ("conv2", "conv3"):
        x, w, stride, pad = ALEXNET[name]
        win = Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1))
        found |= _forms(name, QuantizedConv(win), dtype, x, w, (1, w[0], 1, 1), every=name == "conv2")
    m, k, n = LINEAR["fc1"]
    found |= _forms("fc1", QuantizedMatmul(), dtype, (m, k), (n, k), (n,))
    found |= _forms("one row", QuantizedMatmul(), dtype, (1, 64), (32, 64), (32,))
    return found | _forms("ten classes", QuantizedMatmul(), dtype, (16, 64), (10, 64), (10,))


def _forms(
    name: str, op: Any, dtype: Any, x: Any, w: Any, bias: Any, *, every: bool = True
) -> dict[str, str]:
    """The plans of an op with bias, ReLU and an 8-bit result; every: also alone, and with bias and ReLU."""
    specs = [Spec(x, dtype), Spec(w, dtype), Spec((w[0],), float32)]
    made: dict[str, Callable[[], Plan]] = {}
    if every:
        made[name] = lambda: backend(DEVICE).plan(op, specs, Policy())
        fused = Fused((op, Add(), Relu()))
        made[f"{name} bias relu"] = lambda: backend(DEVICE).plan(
            fused, [*specs, Spec(bias, float32)], Policy()
        )
    chain = Fused((op, Add(), Relu(), Quantize(dtype)))
    given = [*specs, Spec(bias, float32), Spec((), float32)]
    made[f"{name} bias relu quantize"] = lambda: backend(DEVICE).plan(chain, given, Policy())
    found = {}
    for key, make in made.items():
        try:
            found[key] = make().label
        except NoKernel as error:
            found[key] = f"refused: {error}"
    return found


def limited() -> dict[str, str]:
    """A workspace limit, and the behavior when nothing fits."""
    x, w, stride, _ = ALEXNET["conv1"]
    win = Window((stride, stride), ((0, 0), (0, 0)), (1, 1))
    return {
        "no workspace": plan(Conv(win), float32, x, w, workspace_limit=0),
        "impossible": plan(
            Fused((Conv(win), Add(), Add(), Relu())), float64, x, w, (1, 96, 1, 1), (1, 96, 1, 1)
        ),
    }


def pools() -> dict[str, str]:
    """Resample forward and backward by the object API."""
    found = {}
    strides = (96 * 54 * 54, 1, 54 * 96, 96)
    for mode in ("maxpool", "avgpool_include_padding", "avgpool_exclude_padding"):
        graph = cudnn.Graph()
        x = graph.tensor((8, 96, 54, 54), strides, "float16")
        y = graph.tensor((8, 96, 26, 26), (96 * 26 * 26, 1, 26 * 96, 96), "float16")
        graph.pool(cudnn.Resample(mode, window=(3, 3), stride=(2, 2), pre=(0, 0)), x, y)
        found[mode] = str(graph.plan(properties()))
    graph = cudnn.Graph()
    x = graph.tensor((8, 96, 54, 54), strides, "float32")
    y = graph.tensor((1, 96, 1, 1), (96, 1, 96, 96), "float32")
    graph.reduce("add", x, y)
    found["reduce"] = str(graph.candidates(properties()).refusals or "candidates")
    return found


def round_trip() -> dict[str, str]:
    """A plan serialized to JSON and back, and rebuilt from its engine number and knobs."""
    graph = cudnn.Graph()
    x = graph.tensor((8, 64, 56, 56), (200704, 1, 3584, 64), "bfloat16")
    w = graph.tensor((128, 64, 3, 3), (576, 1, 192, 64), "bfloat16")
    y = graph.tensor((8, 128, 56, 56), (401408, 1, 7168, 128), "bfloat16")
    graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
    target = properties()
    first = graph.plan(target)
    again = cudnn.ExecutionPlan(json=first.json, target=target)
    rebuilt = graph.rebuild(target, first.config.key)
    engines = graph.candidates(target, ("a", "b", "fallback"))
    keys = [config.key for config in engines]
    return {
        "workspace": str((first.workspace, again.workspace, rebuilt.workspace)),
        "same key": str(rebuilt.config.key == first.config.key),
        "json": str(json.loads(first.json) == json.loads(again.json)),
        "engines": str(len(keys)),
        "distinct": str(len(set(keys)) == len(keys)),
        "notes": str(first.config.engine.numerical_notes),
        "knobs": str(all(k.get("minimum") <= k.get("maximum") for k in first.config.engine.knobs())),
    }


def threads() -> dict[str, str]:
    """Compare all candidates of a graph made in several threads with those made sequentially."""
    graph = cudnn.Graph()
    x = graph.packed((8, 64, 28, 28), "bfloat16", channels_last=True)
    w = graph.packed((64, 64, 3, 3), "bfloat16", channels_last=True)
    y = graph.packed((8, 64, 28, 28), "bfloat16", channels_last=True)
    graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
    target = properties()
    named = graph.candidates(target, ("a", "fallback"))
    few, refusals = autotune.few_compiled(0), list[str]()
    configs = autotune.accepted(named, few, refusals)
    made = autotune.build_all(configs, target, [None] * len(configs))
    alone = [attempt(config, target) for config in configs]
    none = autotune.build_all(configs, target, [-1] * len(configs))
    return {
        "keys": str(_keys(made) == _keys(alone)),
        "plans": str(sum(not isinstance(p, str) for p in made)),
        "over the limit": str(all(isinstance(p, str) and "workspace" in p for p in none)),
        "compiled": " ".join(refusals),
    }


def _keys(plans: list[cudnn.ExecutionPlan | str]) -> list[object]:
    return [p if isinstance(p, str) else p.config.key if p.config else "" for p in plans]


def choices() -> dict[str, str]:
    """Plans by name, once for all sizes, per direction, and half types as float32."""
    win, w = Window((1, 1), ((1, 1), (1, 1)), (1, 1)), (64, 64, 3, 3)
    first = plan(Conv(win), bfloat16, (8, 64, 28, 28), w)
    engine = first.split()[3].split("{")[0]
    found = {"first": first}
    found["by name"] = plan(Conv(win), bfloat16, (8, 64, 28, 28), w, algorithm=f"plain {engine}")
    found["own kernel"] = plan(Conv(win), bfloat16, (8, 64, 28, 28), w, algorithm="direct")
    fused = Fused((Conv(win), Add(), Relu()))
    found["fused by name"] = plan(fused, bfloat16, (8, 64, 28, 28), w, (1, 64, 1, 1), algorithm="direct")
    found["no such engine"] = plan(Conv(win), bfloat16, (8, 64, 28, 28), w, algorithm="plain eng9999")
    found["no such way"] = plan(Conv(win), bfloat16, (8, 64, 28, 28), w, algorithm="deep eng1")
    found["product by name"] = plan(Matmul(), bfloat16, (640, 640), (640, 640), algorithm="plain eng9999")
    found["own gradient"] = plan(
        ConvDataGrad(win, (28, 28)), bfloat16, (8, 64, 28, 28), w, algorithm="fallback", data_grad="direct"
    )
    large, small = (256, 64, 112, 112), (1, 64, 7, 7)
    found["small"] = plan(Conv(win), bfloat16, small, w)
    found["large"] = plan(Conv(win), bfloat16, large, w)
    found["small once"] = plan(Conv(win), bfloat16, small, w, algorithm="guess_once")
    found["large once"] = plan(Conv(win), bfloat16, large, w, algorithm="guess_once")
    formulations._first_choices.clear()
    conv._cached.cache_clear()
    found["large first"] = plan(Conv(win), bfloat16, large, w, algorithm="guess_once")
    found["half refused"] = half_refused(Conv(win), (8, 64, 28, 28), w)
    found["wide"] = plan(Conv(win), bfloat16, (8, 64, 28, 28), w, algorithm="wide eng0")
    return found


def half_refused(op: Conv, x: tuple[int, ...], w: tuple[int, ...]) -> str:
    """The plan if no engine takes the half type."""
    last = [Spec(s, float16, channels_last(s)) for s in (x, w, (x[0], w[0], *x[2:]))]
    problem = conv.conv_problem(Conv, Operands(op.window, *last), DEVICE)

    def refuse() -> Any:
        raise CudnnError(3000, "cudnnBackendFinalize", "no half type here", "")

    left = tuple(
        replace(formulation, graph=refuse)
        if formulation.name in ("plain", "turned", "relaid")
        else formulation
        for formulation in problem.formulations
    )
    return formulations.choose(replace(problem, formulations=left), DEVICE, Policy()).label


def faults() -> dict[str, str]:
    """The filter gradient of unevenly padded images: heuristics name engines that compute wrong results."""
    found = {}
    for flip in (False, True):
        graph = cudnn.Graph()
        x, w, y = (graph.packed(s, "float32") for s in ((1, 2, 10, 8), (2, 2, 5, 5), (1, 2, 4, 2)))
        graph.conv_filter_grad(x, y, w, stride=(2, 3), pre=(0, 1), post=(1, 0), flip=flip)
        target = properties()
        refusals: list[str] = []
        plans = graph.plans(target, refusals=refusals)
        taken = [one.config.key[0] for one in plans if one.config is not None]
        every = [config.key[0] for config in graph.candidates(target, wrong=True)]
        win = Window((2, 3), ((0, 1), (1, 0)), (1, 1), flip=flip)
        found[f"flip={flip}"] = json.dumps(
            {
                "every": every,
                "taken": taken,
                "refusals": refusals,
                "op": plan(ConvFilterGrad(win, (5, 5)), float32, (1, 2, 10, 8), (1, 2, 4, 2)),
            }
        )
    return found


def forms() -> dict[str, str]:
    """The plan of each formulation: its first engine, and engines beyond the heuristics' lists."""
    found = {}
    shapes = {
        "7x7": ((64, 128, 112, 112), (128, 128, 7, 7), square(1, 3)),
        "1x1": ((32, 64, 56, 56), (256, 64, 1, 1), square(1, 0)),
        "1x1 by 2": ((32, 256, 56, 56), (512, 256, 1, 1), square(2, 0)),
        "depthwise": ((32, 96, 56, 56), (96, 1, 3, 3), square(1, 1, 96)),
        "groups": ((32, 128, 56, 56), (128, 4, 3, 3), square(1, 1, 32)),
        "groups of 24": ((64, 576, 14, 14), (576, 24, 3, 3), square(1, 1, 24)),
        "groups of 24 by 2": ((64, 576, 28, 28), (576, 24, 3, 3), square(2, 1, 24)),
        "dilated": ((16, 128, 8192), (128, 128, 3), Window((1,), ((512, 512),), (256,))),
    }
    target = properties()
    for name, (x, w, win) in shapes.items():
        y = (x[0], w[0], *win.output(x[2:], w[2:]))
        o = Operands(win, *(Spec(s, bfloat16, channels_last(s)) for s in (x, w, y)))
        bias = Epilogue((Add(), Relu()), (Spec((w[0], *(1,) * win.rank), bfloat16),), 2)
        for direction in (Conv, ConvDataGrad, ConvFilterGrad):
            problems = {direction.name: conv.conv_problem(direction, o, DEVICE)}
            if direction is Conv:
                problems["steps"] = conv.conv_problem(direction, o, DEVICE, bias)
            for kind, problem in problems.items():
                for formulation in problem.formulations:
                    single = replace(problem, formulations=(formulation,))
                    first = next(formulations.candidates(single, target, Policy(), ("a",), []), None)
                    found[f"{name} {kind} {formulation.name}"] = first.label if first else "refused"
    return found


def square(stride: int, pad: int, groups: int = 1) -> Window:
    """A window that is the same along both axes."""
    return Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1), groups)


def halves() -> dict[str, str]:
    """A convolution of many taps as three of half as many: the plan of each, by name."""
    win, (x, w) = Window((1, 1), ((3, 3), (3, 3)), (1, 1)), ((64, 128, 112, 112), (128, 128, 7, 7))
    found = {}
    for op in (Conv(win), ConvDataGrad(win, x[2:])):
        made = backend(DEVICE).plan(op, [Spec(x, bfloat16), Spec(w, bfloat16)], Policy(algorithm="halved"))
        assert isinstance(made.make, Launches)
        parts = [step.plan for step in made.make.steps if isinstance(step, SubPlan)]
        found[op.name] = made.label
        found |= {f"{op.name} {i} {part.inputs[1].shape}": part.label for i, part in enumerate(parts)}
        held = sum(part.outputs[0].nbytes for part in parts)
        found[f"{op.name} room"] = str(held < made.workspace < held + (300 << 20))
    return found


def variants() -> dict[str, str]:
    """Configurations beyond the heuristics' lists."""
    graph = cudnn.Graph()
    x = graph.packed((64, 128, 112, 112), "bfloat16", channels_last=True)
    w = graph.packed((128, 128, 7, 7), "bfloat16", channels_last=True)
    y = graph.packed((64, 128, 112, 112), "bfloat16", channels_last=True)
    graph.conv_data_grad(y, w, x, stride=(1, 1), pre=(3, 3))
    target = properties()
    built, named = graph.build(target), graph.candidates(target, ("a",))
    first = next(iter(named)).key
    near = [config.key for config in autotune.neighbours(built, first)]
    beyond = autotune.unnamed(built, {config.key[0] for config in named})
    plans = [attempt(config, target) for config in autotune.neighbours(built, first) + beyond]
    return {
        "near": str(len(near)),
        "one knob": str(all(len(set(first[1]) - set(key[1])) == 1 for key in near)),
        "beyond": str([config.key[0] for config in beyond]),
        "named": str(sorted({config.key[0] for config in named})),
        "plans": str(sum(not isinstance(plan, str) for plan in plans)),
    }


def sequences() -> dict[str, str]:
    """An encoder layer, forward and backward: its plans, in order."""
    net = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    parameters = dict(net.named_parameters())

    def layer(x: Any, g: Any, *values: Any) -> Any:
        with nn.substitute(net, dict(zip(parameters, values, strict=True))):
            y = net(x)
        return [y, *graph.gradients(y, [x, *values], [g])]

    kinds = {name: float32 if "norm" in name else bfloat16 for name in parameters}
    specs = [Spec((32, 512, 512), bfloat16)] * 2 + [Spec(p.shape, kinds[n]) for n, p in parameters.items()]
    better = optimize(graph.trace(layer, *specs), backend(DEVICE))
    program = plan_graph(better, Plans(backend(DEVICE)), {}, range(2, len(specs)))
    steps = [s for s in program.steps if not s.plan.view]
    return {f"{i} {s.label}": f"{s.plan.label} workspace={s.plan.workspace}" for i, s in enumerate(steps)}


def statistics() -> dict[str, str]:
    """The first engine for batch norm's statistics after a convolution, and the steps before and after it."""
    found = {}
    window = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
    x, w = (128, 64, 56, 56), (64, 64, 3, 3)
    op = ConvNorm(Conv(window), primitives.BatchNorm(1e-5))
    for dtype in (bfloat16, float16):
        o = Operands(window, *(Spec(s, dtype, channels_last(s)) for s in (x, w, x)))
        formulation = statistics_formulation(op, o, [target(5), *map(source, range(2, 6))], DEVICE.machine)
        problem = formulations.Problem("statistics", "conv_norm", (o.x, o.w), (o.y,), (formulation,), 0.0)
        first = next(formulations.candidates(problem, properties(), Policy(), ("a",), []), None)
        found[f"behind {dtype}"] = first.label if first else "refused"
        for name, build in (("in front", _prologue), ("weight gradients", _weight_gradients)):
            graph = cudnn.Graph()
            build(graph, dtype.name, x, w)
            engines = [config.key[0] for config in graph.candidates(properties(), ("a",))]
            found[f"{name} {dtype}"] = f"engines {engines}" if engines else "refused"
        for norm in (
            primitives.BatchNorm(1e-5, relu=True),
            primitives.BatchNorm(1e-5, relu=True, residual=True, hi=6.0),
        ):
            problem = formulations.Problem("norm", "norm", (o.y,), (o.y,), (cudnn_norm(norm, o.y),), 0.0)
            first = next(formulations.candidates(problem, properties(), Policy(), ("a",), []), None)
            found[f"{norm.residual * 'add, '}relu {dtype}"] = first.label if first else "refused"
    return found


def kept() -> dict[str, str]:
    """A plan whose kernels are compiled at run time: stored on disk, loaded, and rebuilt if the file is bad."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAMINA_CACHE"] = folder
        graph = cudnn.Graph()
        x, w = (graph.packed(s, "bfloat16", channels_last=True) for s in ((8, 64, 56, 56), (64, 64, 3, 3)))
        y = graph.conv(x, w, graph.like(x), stride=(1, 1), pre=(1, 1))
        graph.pointwise("relu_fwd", y, out=graph.packed(x.dimensions, "bfloat16", channels_last=True))
        compiled = ["runtime_compilation"]
        first, other = itertools.islice(graph.plans(properties(), ("a", "b"), require=compiled), 2)
        disk = DiskCache(Path(folder) / "compiled")
        (key,) = (f.name for f in disk.folder.iterdir() if disk.get(f.name) == first.json.encode())
        found = {"files": str(len(list(disk.folder.iterdir()))), "known": str(first.config)}
        again = graph.plan(properties(), require=compiled)
        found["again"] = str((again.json == first.json, again.workspace == first.workspace, again.config))
        disk.put(key, other.json.encode())  # so that the stored plan is the one loaded
        found["loaded"] = str(graph.plan(properties(), require=compiled).json == other.json)
        disk.put(key, b"{}")
        made = graph.plan(properties(), require=compiled)
        found["anew"] = str(str(made.config) == str(first.config))
        found["healed"] = str(disk.get(key) == made.json.encode())
        graph = cudnn.Graph(dynamic=True)
        graph.conv(
            *(_big(graph, s, "bfloat16") for s in (x.dimensions, w.dimensions, x.dimensions)), **_WINDOW
        )
        graph.plan(properties())
        found["dynamic"] = str(len(list(disk.folder.iterdir())))
    return found


_WINDOW: dict[str, Any] = {"stride": (1, 1), "pre": (1, 1)}


def _big(graph: cudnn.Graph, shape: tuple[int, ...], kind: str, **more: Any) -> cudnn.Tensor:
    return graph.packed(shape, kind, channels_last=True, **more)


def _prologue(graph: cudnn.Graph, kind: str, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    """scale, bias, relu > convolution > statistics."""
    window = {"stride": (1, 1), "pre": (1, 1)}
    scale, bias = (_big(graph, (1, x[1], 1, 1), kind) for _ in range(2))
    value = graph.pointwise("add", graph.pointwise("mul", _big(graph, x, kind), scale), bias)
    y = graph.conv(graph.pointwise("relu_fwd", value), _big(graph, w, kind), _big(graph, x, kind), **window)
    graph.gen_stats(y, *(_big(graph, (1, w[0], 1, 1), "float32") for _ in range(2)))


def _weight_gradients(graph: cudnn.Graph, kind: str, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    """Gradient of the data > gradient of relu > gradients of a norm's scale and bias."""
    window = {"stride": (1, 1), "pre": (1, 1)}
    names = ("mean", "inv_std", "scale", "dscale", "dbias", "eq_dy_scale", "eq_x_scale", "eq_bias")
    small = {name: _big(graph, (1, x[1], 1, 1), "float32") for name in names}
    bias, image, masked = _big(graph, (1, x[1], 1, 1), "float32"), _big(graph, x, kind), _big(graph, x, kind)
    dx = graph.conv_data_grad(
        _big(graph, x, kind), _big(graph, w, kind), _big(graph, x, kind, virtual=True), **window
    )
    normal = graph.pointwise("mul", graph.pointwise("sub", image, small["mean"]), small["inv_std"])
    y = graph.pointwise("add", graph.pointwise("mul", normal, small["scale"]), bias)
    graph.pointwise("relu_bwd", y, dx, masked)
    graph.bn_weight_grad(masked, image, **small)


PARTS: dict[str, Callable[[], dict[str, str]]] = {
    f.__name__: f
    for f in (
        *(
            convolutions,
            products,
            gelus,
            eights_int8,
            eights_fp8,
            limited,
            pools,
            round_trip,
            threads,
            choices,
        ),
        *(faults, forms, halves, variants, statistics, sequences, kept),
    )
}

if __name__ == "__main__":
    print(json.dumps({name: part() for name, part in PARTS.items() if name in sys.argv[1:]}))
