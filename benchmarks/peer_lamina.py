"""The workloads in Lamina, by its public API."""

from __future__ import annotations

import gc
import math
import time
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
from lamina.graph.run.tuning import BEGIN
from lamina.nn import init, models
from lamina.nn.models.conformer import ConformerLayer
from lamina.ops.primitives.conv import Conv
from lamina.runtime import Machine
from lamina.train import Step

#: Maximum seconds -> facts to record (`Prepared.settle`); the fewest steps of it.
Settle = Callable[[float], dict[str, Any]]
_LEAST = 200  # steps, for the percentiles

DTYPES = {"bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32}


class Dilated(nn.Module):
    """`benchmarks.networks.dilated`: (N, C, T) -> (N, classes, T)."""

    def __init__(self, classes: int, channels: int, depth: int, inputs: int) -> None:
        self.first = nn.Conv1d(inputs, channels, 1)
        steps = [1 << index % 10 for index in range(depth)]
        self.blocks = nn.ModuleList(nn.Conv1d(channels, channels, 3, padding=d, dilation=d) for d in steps)
        self.last = nn.Conv1d(channels, classes, 1)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        for block in self.blocks:
            y = ops.relu(block(y) + y)
        return self.last(y)


def _vit_s_16(w: Workload) -> nn.Module:
    return models.VisionTransformer(224, 16, 12, 6, 384, 1536, num_classes=w.size[0])


def _conformer(w: Workload) -> nn.Module:
    heads, hidden, kernel = w.size
    return ConformerLayer(w.shape[2], hidden, heads, kernel)


def _gpt2(w: Workload) -> nn.Module:
    tokens, width, layers, heads = w.size
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return models.GPT2LMHeadModel(tokens, n_embd=width, n_layer=layers, n_head=heads, **none)


def _encoder(w: Workload) -> nn.Module:
    width = w.shape[2]
    layer = nn.TransformerEncoderLayer(width, w.size[0], 4 * width, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, w.size[1])


#: Networks of torchvision that are not listed here come from `nn.models.get_model`.
NETWORKS: dict[str, Callable[[Workload], nn.Module]] = {
    "alexnet": lambda w: nn.AlexNet(1, w.size[0], w.dropout),
    "alexnet_owt": lambda w: nn.AlexNetImageNet(w.size[0], w.dropout),
    "overfeat": lambda w: nn.OverFeat(w.size[0], w.dropout),
    "vgg11": lambda w: nn.vgg11(w.size[0], w.dropout),
    "googlenet": lambda w: nn.GoogLeNet(w.size[0], w.dropout),
    "mobilenet_v2": lambda w: nn.mobilenet_v2(w.size[0], w.dropout),
    "vit_s_16": _vit_s_16,
    "unet": lambda w: models.UNet(w.shape[1], w.size[0], width=w.size[1]),
    "dilated": lambda w: Dilated(*w.size, inputs=w.shape[1]),
    "conformer": _conformer,
    "gpt2": _gpt2,
    "conv": lambda w: nn.Conv2d(w.shape[1], w.size[0], w.size[1], padding=w.size[1] // 2, bias=False),
    "encoder": _encoder,
    "lstm": lambda w: nn.LSTM(w.shape[2], *w.size),
    "gru": lambda w: nn.GRU(w.shape[2], *w.size),
}


def model(w: Workload) -> nn.Module:
    """The workload's network, on the CPU in float32."""
    if w.network in NETWORKS:
        return NETWORKS[w.network](w)
    return models.get_model(w.network, num_classes=w.size[0])


def inputs(w: Workload) -> tuple[Any, Any]:
    """Random inputs, and labels or the gradient of the output, as host arrays."""
    rng = np.random.default_rng(0)
    dtype = DTYPES[w.dtype]
    if w.takes_ids:
        x: Any = rng.integers(0, w.size[0], w.shape)
    else:
        x = _normal(rng, w.shape, dtype)
    if w.labels is not None:
        return x, rng.integers(0, w.size[0], w.labels)
    shape = (*w.shape[:-1], w.size[0]) if w.network in ("lstm", "gru") else w.shape
    return x, _normal(rng, shape, dtype)


def _normal(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Any:
    """Normal random numbers, a million of which are drawn and repeated: drawing is no part of a first step."""
    drawn = rng.standard_normal(min(math.prod(shape), 1 << 20), np.float32).astype(dtype)
    return np.resize(drawn, shape)


def loss(w: Workload, y: Any, labels: Any) -> Any:
    """The cross-entropy of outputs in float32; the classes are the second axis, or the last one after tokens."""
    if w.takes_ids:
        y, labels = ops.flatten(y, 0, -2), ops.flatten(labels)
    return ops.cross_entropy(y, labels, ignore_index=None)


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
        if w.labels is None:
            return [y, *gradients(y, [*values[:count], x], [given])]
        found = loss(w, ops.cast(y, "float32"), given)
        return [found, *gradients(found, values[:count])]

    specs = [t.spec.open for t in held.values()]
    specs.append(lm.tensor(x).spec.open)
    if w.kind == "infer":
        return lm.trace(forward, *specs)
    return lm.trace(forward, *specs, lm.tensor(target).spec.open)


def _resident(w: Workload, device: str) -> tuple[Executable, Callable[[], Any]]:
    """All inputs but one are resident, in the layout that the plans prefer, as for the peers.

    If all were resident, nothing would change between runs and the first layers would be computed only once.
    So one small operand of the first layer is passed in each call: its weight if it meets the input in a
    convolution, else the input.
    """
    net = lowered(model(w).train(w.kind != "infer"), w)
    given = [lm.tensor(v, device=device) for v in inputs(w)]
    state = [*net.parameters(), *net.buffers(), *(given[:1] if w.kind == "infer" else given)]
    traced = graph(w, net)
    free = _handed_over(traced, len(state) - (1 if w.kind == "infer" else 2))
    kept = {i: x for i, x in enumerate(state) if i != free}
    executable = lm.compile(traced, device, resident=kept)
    executable.load(kept)
    handed = state[free].to(device)
    return executable, lambda: executable(handed)


def _handed_over(traced: Graph, x: int) -> int:
    """The index of the graph's input that is passed in each call; x is the index of the network's input."""
    numbers = {id(value): number for number, value in enumerate(traced.inputs)}
    for node in traced.nodes:
        read = [numbers.get(id(value)) for value in node.inputs]
        if isinstance(node.op, Conv) and read[0] == x and read[1] is not None:
            return read[1]
    return x


def lowered(net: nn.Module, w: Workload) -> nn.Module:
    """Weights in the computation's dtype; those of norms stay float32."""
    net.to(np.dtype(DTYPES[w.dtype]).name)
    for module in net.modules():
        if getattr(module, "computes_in_master", False):
            module.to("float32")
    return net


def _training(w: Workload, device: str, tuning: bool) -> tuple[Executable, Callable[[], Any], Settle]:
    """`train_step`: float32 master weights, images in the computation's dtype, on the device."""
    sgd = optim.SGD(lr=0.01, momentum=0.9, weight_decay=5e-4)
    step = lm.train_step(model(w), partial(loss, w), sgd, device=device, precision=w.dtype, tuning=tuning)
    x, labels = (lm.tensor(v, device=device) for v in inputs(w))
    step.program(x.spec, labels.spec)
    return step.executable, lambda: step(x, labels), partial(settled, step, x, labels) if tuning else _at_once


def settled(step: Step, x: lm.Tensor, labels: lm.Tensor, seconds: float) -> dict[str, Any]:
    """Train until no plan is open, for at most this many seconds, reading each loss: percentiles of a step's time.

    Plans are opened after the first seconds of steps; until then none is.
    """
    times, start = [], time.perf_counter()
    while (took := (begin := time.perf_counter()) - start) < seconds:
        if took > 2 * BEGIN and len(times) >= _LEAST and not step.tuning.open:
            break
        step(x, labels).item()
        times.append(1e3 * (time.perf_counter() - begin))
    p50, p99 = (float(np.percentile(times, q)) for q in (50, 99))
    took = time.perf_counter() - start
    return {"settle_s": took, "settle_p50_ms": p50, "settle_p99_ms": p99, "tuning": str(step.tuning)}


def _at_once(seconds: float) -> dict[str, Any]:
    """For modes that do not get faster by themselves."""
    return {}


def least(w: Workload, machine: Machine) -> dict[str, Any]:
    """FLOP and the least time of one iteration."""
    if w.network in ("lstm", "gru", "encoder"):
        work = of_sequence(w, machine)
    else:
        # In eval mode: dropout and norms do no arithmetic, and a generator's state is no input of this graph.
        with init.skipped():
            net = lowered(model(w).eval(), w)
        made = graph(replace(w, kind="both" if w.kind == "train" else w.kind), net)
        work = of_graph(made, machine, sum(p.numel() for p in net.parameters()) if w.kind == "train" else 0)
    return {"flops": work.flops, "limit_ms": 1e3 * work.seconds}


def warm(device: str) -> dict[str, Any]:
    """Open the device, so that it does not count in the first step; the versions."""
    lm.zeros((1,), dtype="float32", device=device)
    names = ["lamina", "numpy", "cuda-core", "nvidia-cudnn-cu13", "onednn-cpu-gomp"]
    return {"versions": versions(names), "device": lm.device(device).name}


_policy = ExitStack()


def end() -> None:
    """Leave the policy of the last prepared workload."""
    _policy.close()


def prepare(w: Workload, mode: str, device: str, policy: str) -> Prepared:
    """The workload. mode: how kernels are selected; as `policy` says for "lamina", and "tuned" (between steps)."""
    end()
    _policy.enter_context(lm.policy(algorithm=policy if mode in ("lamina", "tuned") else mode))
    where = lm.device(device)
    gc.collect()
    where.reset_peak()
    if w.kind == "train":
        executable, run, settle = _training(w, device, mode == "tuned")
    else:
        (executable, run), settle = _resident(w, device), _at_once

    # A GPU's rates are from a file; a CPU's would be measured beside other programs.
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
        settle=settle,
    )
