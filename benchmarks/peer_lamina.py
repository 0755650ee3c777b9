"""The workloads in Lamina, by its public API."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np

import lamina as lm
from benchmarks.common import versions
from benchmarks.limits import of_graph, of_sequence
from benchmarks.peer import Prepared
from benchmarks.workloads import Workload
from lamina import nn, ops, optim
from lamina.graph import Executable, Graph, gradients
from lamina.runtime import Machine

DTYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}
#: Networks that have no dropout take the classes alone.
NETWORKS: dict[str, Callable[[int, float], nn.Module]] = {
    "alexnet": lambda classes, dropout: nn.AlexNet(1, classes, dropout),
    "alexnet_owt": lambda classes, dropout: nn.AlexNetImageNet(classes, dropout),
    "overfeat": lambda classes, dropout: nn.OverFeat(classes, dropout),
    "vgg11": lambda classes, dropout: nn.vgg11(classes, dropout),
    "googlenet": lambda classes, dropout: nn.GoogLeNet(classes, dropout),
    "resnet18": lambda classes, dropout: nn.resnet18(classes),
    "resnet50": lambda classes, dropout: nn.resnet50(classes),
    "mobilenet_v2": lambda classes, dropout: nn.mobilenet_v2(classes, dropout),
}


def model(w: Workload) -> nn.Module:
    """The workload's network, on the CPU in float32."""
    if w.is_image:
        return NETWORKS[w.network](w.size[0], w.dropout)
    if w.network == "conv":
        return nn.Conv2d(w.shape[1], w.size[0], w.size[1], padding=w.size[1] // 2, bias=False)
    if w.network == "encoder":
        width = w.shape[2]
        layer = nn.TransformerEncoderLayer(width, w.size[0], 4 * width, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, w.size[1])
    return {"lstm": nn.LSTM, "gru": nn.GRU}[w.network](w.shape[2], *w.size)


def inputs(w: Workload) -> tuple[Any, Any]:
    """Random inputs, and labels or the gradient of the output, as host arrays."""
    rng = np.random.default_rng(0)
    dtype = DTYPES[w.dtype]
    x = rng.standard_normal(w.shape, np.float32).astype(dtype)
    if w.is_image:
        return x, rng.integers(0, w.size[0], w.batch)
    shape = (*w.shape[:-1], w.size[0]) if w.network in ("lstm", "gru") else w.shape
    return x, rng.standard_normal(shape, np.float32).astype(dtype)


def graph(w: Workload, net: nn.Module) -> Graph:
    """Forward, or forward and backward, of (parameters …, buffers …, x[, target]): the result, then gradients."""
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    count = len(dict(net.named_parameters()))
    x, target = inputs(w)

    def forward(*values: Any) -> Any:
        state, x = dict(zip(held, values, strict=False)), values[len(held)]
        with nn.substitute(net, state):
            y = net(x)
        y = y[0] if isinstance(y, tuple) else y
        if w.kind == "infer":
            return y
        given = values[len(held) + 1]
        wrt = [*values[:count], *([] if w.is_image else [x])]
        if w.is_image:
            loss = ops.cross_entropy(ops.cast(y, "float32"), given, ignore_index=None)
            return [loss, *gradients(loss, wrt)]
        return [y, *gradients(y, wrt, [given])]

    specs = [t.spec.open for t in held.values()]
    specs.append(lm.tensor(x).spec.open)
    if w.kind == "infer":
        return lm.trace(forward, *specs)
    return lm.trace(forward, *specs, lm.tensor(target).spec.open)


def _resident(w: Workload, device: str) -> tuple[Executable, Callable[[], Any]]:
    """All inputs but one lie in place, in the layout that the plans ask for, as they do for the peers.

    Were all of them resident, nothing would change between runs and the first layers would be computed once only.
    So one small operand of the first layer is handed over in each call: its weight where the input is an image, the
    input of the others.
    """
    net = _lowered(model(w).train(w.kind != "infer"), w)
    given = [lm.tensor(v, device=device) for v in inputs(w)]
    state = [*net.parameters(), *net.buffers(), *(given[:1] if w.kind == "infer" else given)]
    free = 0 if w.is_image or w.network == "conv" else len(state) - (1 if w.kind == "infer" else 2)
    kept = {i: x for i, x in enumerate(state) if i != free}
    executable = lm.compile(graph(w, net), device, resident=kept)
    executable.load(kept)
    handed = state[free].to(device)
    return executable, lambda: executable(handed)


def _lowered(net: nn.Module, w: Workload) -> nn.Module:
    """Weights in the type that is computed in; what belongs to norms stays float32."""
    net.to(np.dtype(DTYPES[w.dtype]).name)
    for module in net.modules():
        if getattr(module, "computes_in_master", False):
            module.to("float32")
    return net


def _training(w: Workload, device: str) -> tuple[Executable, Callable[[], Any]]:
    """`train_step`: float32 master weights, images in the type that is computed in, on the device."""
    sgd = optim.SGD(lr=0.01, momentum=0.9, weight_decay=5e-4)
    step = lm.train_step(
        model(w), partial(ops.cross_entropy, ignore_index=None), sgd, device=device, precision=w.dtype
    )
    x, labels = (lm.tensor(v, device=device) for v in inputs(w))
    step.program(x.spec, labels.spec)
    return step.executable, lambda: step(x, labels)


def least(w: Workload, machine: Machine) -> dict[str, Any]:
    """FLOP and the least time of one iteration."""
    if w.network in ("lstm", "gru", "encoder"):
        work = of_sequence(w, machine)
    else:
        # Dropout multiplies nothing; its generator's state is no input of this graph.
        same = replace(w, kind="both" if w.kind == "train" else w.kind, dropout=0.0)
        net = _lowered(model(same).train(w.kind != "infer"), w)
        made = graph(same, net)
        work = of_graph(made, machine, sum(p.numel() for p in net.parameters()) if w.kind == "train" else 0)
    return {"flops": work.flops, "limit_ms": 1e3 * work.seconds}


def warm(device: str) -> dict[str, Any]:
    """Open the device, so that it does not count as a part of the first step; the versions."""
    lm.zeros((1,), dtype="float32", device=device)
    names = ["lamina", "numpy", "cuda-core", "nvidia-cudnn-cu13", "onednn-cpu-gomp"]
    return {"versions": versions(names), "device": lm.device(device).name}


_policy = ExitStack()


def prepare(w: Workload, mode: str, device: str, policy: str) -> Prepared:
    """The workload; mode is always "lamina". policy: how kernels are chosen."""
    _policy.close()
    _policy.enter_context(lm.policy(algorithm=policy))
    where = lm.device(device)
    gc.collect()
    where.reset_peak()
    executable, run = (_training if w.kind == "train" else _resident)(w, device)

    # A GPU's rates are from a file; a CPU's would be measured beside whatever else runs on it.
    machine = where.machine if where.kind == "cuda" else None

    def after() -> dict[str, Any]:
        return {
            "kernels": len(executable.program.steps),
            "captured": executable.is_captured,
            "planned_bytes": executable.peak_bytes,
            **(least(w, machine) if machine else {}),
        }

    return Prepared(
        run,
        where.synchronize,
        warm_up=4,
        peak=lambda: where.statistics().peak,
        reset_peak=where.reset_peak,
        after=after,
    )
