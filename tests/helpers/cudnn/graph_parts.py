"""Plans, notes, knobs, caches and explanations for an H200, made without a GPU; prints one JSON object."""

import json
from collections.abc import Callable
from typing import Any

from lamina import cudnn
from lamina.cudnn import DeviceProperties, Graph
from lamina.cudnn.rewrite import operands
from tests.helpers.cudnn.graph_cases import attention_grad, reduction
from tests.helpers.cudnn.graph_run import properties
from tests.helpers.cudnn.graph_values import SCENARIOS

WINDOW: dict[str, Any] = {"stride": (1, 1), "pre": (1, 1)}


def conv(c: int, k: int, kind: str, *, last: bool = True, compute: str = "float32") -> Graph:
    g = Graph(compute)
    x, w, y = (g.packed(s, kind, channels_last=last) for s in ((8, c, 32, 32), (k, c, 3, 3), (8, k, 32, 32)))
    g.conv(x, w, y, **WINDOW)
    return g


def fused(c: int, k: int, kind: str, out: str, *, last: bool, compute: str, tail: str) -> Graph:
    g = Graph(compute)
    x, w = (g.packed(s, kind, channels_last=last) for s in ((8, c, 32, 32), (k, c, 3, 3)))
    y = g.conv(x, w, g.packed((8, k, 32, 32), compute, channels_last=last, virtual=True), **WINDOW)
    g.pointwise(tail, y, out=g.packed((8, k, 32, 32), out, channels_last=last))
    return g


def chain(channels: int) -> Graph:
    """Scale, bias and ReLU before a convolution, statistics after it."""
    g = Graph()
    x, scale = (
        g.packed(s, "float16", channels_last=True) for s in ((8, channels, 16, 16), (1, channels, 1, 1))
    )
    w, y = (g.packed(s, "float16", channels_last=True) for s in ((64, channels, 3, 3), (8, 64, 16, 16)))
    g.conv(g.pointwise("relu_fwd", g.pointwise("add", g.pointwise("mul", x, scale), scale)), w, y, **WINDOW)
    total, squares = (g.packed((1, 64, 1, 1), "float32", channels_last=True) for _ in range(2))
    g.gen_stats(y, total, squares)
    return g


def two_convolutions() -> Graph:
    g = Graph()
    x, z = (g.packed((8, 32, 16, 16), "float16", channels_last=True) for _ in range(2))
    w = g.packed((32, 32, 3, 3), "float16", channels_last=True)
    y = g.packed((8, 32, 16, 16), "float16", channels_last=True, virtual=True)
    g.conv(x, w, y, **WINDOW)
    g.conv(y, w, z, **WINDOW)
    return g


def layer_norm() -> Graph:
    """35 features: they cannot be padded without changing the mean."""
    g = Graph()
    x, y = (g.packed((64, 35, 1, 1), "float64", channels_last=True) for _ in range(2))
    scale, bias = (g.packed((1, 35, 1, 1), "float32", channels_last=True) for _ in range(2))
    g.norm("layer", x, y, scale=scale, bias=bias, epsilon=g.scalar(), phase="inference")
    return g


def built(build: Callable[[Graph], Any]) -> Graph:
    g = Graph()
    build(g)
    return g


EXPLAINED: dict[str, Callable[[], Graph]] = {
    "supported": lambda: conv(16, 32, "bfloat16"),
    "int8": lambda: conv(3, 5, "int8"),
    "int8 in rows": lambda: fused(32, 64, "int8", "float32", last=False, compute="int32", tail="identity"),
    "odd channels": lambda: chain(35),
    "double arithmetic": lambda: fused(
        16, 32, "float16", "float16", last=True, compute="float64", tail="relu_fwd"
    ),
    "two convolutions": two_convolutions,
    "hopeless": lambda: built(lambda g: reduction(g, "mul")),
    "refused graph": lambda: built(attention_grad),
    "layer norm": layer_norm,
}


def explained(graph: Graph, target: DeviceProperties) -> dict[str, Any]:
    found = graph.explain(target)
    return {
        "supported": found.supported,
        "rewrite": list(found.rewrite.changes) if found.rewrite else [],
        "parts": len(found.rewrite.parts) if found.rewrite else 0,
        "engines": len(found.verdicts),
        "text": str(found),
        "verdict": str(found.verdicts[0]),
    }


def notes(target: DeviceProperties) -> dict[str, Any]:
    graph = conv(32, 64, "float16")
    fusion = fused(32, 64, "float16", "float16", last=True, compute="float32", tail="relu_fwd")
    compiled = cudnn.note("runtime_compilation")
    native = "supports_cuda_graph_native_api"

    def has(graph: Graph, **filters: Any) -> list[bool]:
        plans = list(graph.plans(target, ("a",), **filters))[:3]
        return sorted({compiled in plan.config.engine.behavior_notes for plan in plans})

    refusals: list[str] = []
    list(graph.plans(target, ("a",), require=["winograd"], refusals=refusals))
    plans = list(graph.plans(target, ("a", "fallback"), require=[native]))
    return {
        "compiled only": has(fusion, require=["runtime_compilation"]),
        "not compiled": has(graph, forbid=["runtime_compilation"]),
        "refusal": refusals[0],
        "native": sorted({plan.has_native_graph for plan in plans}),
    }


def engines(target: DeviceProperties) -> dict[str, Any]:
    graph = conv(32, 64, "float16")
    accepting = graph.engines(target)
    best = graph.plan(target).config
    wanted = best.knobs
    info = {int(k.get("knob")): k for k in best.engine.knobs()}
    assert all(value in info[knob].choices for knob, value in wanted.items())
    made = cudnn.EngineConfig(graph.build(target), best.engine.index, wanted)
    plan = graph.plan_engine(target, best.engine.index, wanted)
    return {
        "count": graph.build(target).engine_count,
        "accepting": len(accepting),
        "first knobs": [repr(k) for k in info.values()],
        "set": sorted(wanted.items()),
        "got": sorted(made.knobs.items()),
        "plan": sorted(plan.config.knobs.items()),
    }


def sm_count(target: DeviceProperties) -> dict[str, Any]:
    graph = conv(32, 64, "float16")
    modes = ("a", "b", "fallback", "instant")
    built_graph = graph.build(target)
    return {
        "all": len(graph.candidates(target, ("a",))),
        "whole": len(graph.candidates(target, ("a",), sm_count=132)),
        "half": graph.candidates(target, ("a",), sm_count=66).refusals[0],
        "modes": {mode: len(built_graph.heuristic(mode)) > 0 for mode in modes},
    }


def kernel_cache(target: DeviceProperties) -> dict[str, Any]:
    graph = Graph(dynamic=True)
    a, b = graph.packed((1, 256, 128), "float16"), graph.packed((1, 128, 64), "float16")
    graph.matmul(a, b, graph.packed((1, 256, 64), "float16"))
    cache = cudnn.KernelCache(graph.build(target))
    plan = graph.plan(target, require=["runtime_compilation"], kernel_cache=cache)
    text = cache.json
    again = cudnn.KernelCache(graph.build(target), json=text)
    return {"engine": cudnn.key_text(plan.config.key), "text": len(text), "again": len(again.json)}


def workspace(target: DeviceProperties) -> dict[str, Any]:
    graph = conv(32, 64, "float32")
    limit = 1 << 16
    refusals: list[str] = []
    plans = list(graph.plans(target, ("a", "fallback"), workspace_limit=limit, refusals=refusals))
    over = [reason for reason in refusals if "the limit is 65536" in reason]
    return {"limit": limit, "sizes": [plan.workspace for plan in plans], "over": len(over)}


def scenarios(target: DeviceProperties) -> dict[str, str]:
    """The scenarios of graph_values.py that a GPU would not run: the refusal, or tensors without numbers."""
    found = {}
    for name, make in SCENARIOS.items():
        if name.startswith(("pointwise", "reduction")):
            continue
        work = make()
        used = {t.uid for operation in work.graph.operations for t in operands(operation) if not t.virtual}
        unbound = used - {t.uid for t in (*work.inputs, *work.outputs)}
        try:
            work.graph.plan(target)
        except cudnn.NoPlanError as error:
            found[name] = str(error)
        if unbound:
            found[name] = f"no numbers for {sorted(unbound)}"
    return found


if __name__ == "__main__":
    place = properties()
    parts = {f.__name__: f(place) for f in (notes, engines, sm_count, kernel_cache, workspace, scenarios)}
    print(json.dumps(parts | {f"explain {n}": explained(make(), place) for n, make in EXPLAINED.items()}))
