"""The workloads in PyTorch, in its usual modes: eager, compiled, and captured as a CUDA graph.

Modes: "eager"; "compile" and "reduce-overhead" (torch.compile's); "captured" (one torch.cuda.CUDAGraph of the whole
iteration). Suffixes: "-compile" captures the output of torch.compile; "-amp" computes under autocast with float32
master weights, without it everything is in the low precision; "-nchw" keeps row-major images, without it they are
channels-last.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from benchmarks import networks, torch_networks
from benchmarks.common import versions
from benchmarks.peer import Prepared
from benchmarks.workloads import Workload

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Residual(nn.Module):
    def __init__(self, body: nn.Module, shortcut: nn.Module, relu: bool) -> None:
        super().__init__()
        self.body, self.shortcut, self.relu = body, shortcut, relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x) + self.shortcut(x)
        return nn.functional.relu(y, inplace=True) if self.relu else y


class Branches(nn.ModuleList):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self], 1)


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)


def build(layers: networks.Layers, shape: tuple[int, ...]) -> nn.Sequential:
    """The network of a description, for samples (C, H, W) or (C, T)."""
    return _sequence(layers, shape)[0]


def _sequence(layers: networks.Layers, shape: tuple[int, ...]) -> tuple[nn.Sequential, tuple[int, ...]]:
    """The modules, and the shape of one sample after them."""
    modules = []
    for layer in layers:
        module = _module(layer, shape)
        modules.append(module)
        shape = networks.shape_behind(layer, shape)
    return nn.Sequential(*modules), shape


def _module(layer: Any, shape: tuple[int, ...]) -> nn.Module:
    match layer:
        case networks.Conv(filters, k, s, p, bias, depthwise, dilation):
            groups = shape[0] if depthwise else 1
            make = nn.Conv1d if len(shape) == 2 else nn.Conv2d
            return make(shape[0], filters, k, s, p, dilation, groups, bias)
        case networks.Norm():
            return nn.BatchNorm2d(shape[0])
        case networks.Relu(ceiling):
            return nn.ReLU6(inplace=True) if ceiling else nn.ReLU(inplace=True)
        case networks.MaxPool(k, s, p, ceil):
            return nn.MaxPool2d(k, s, p, ceil_mode=ceil)
        case networks.Mean():
            return Mean()
        case networks.Flatten():
            return nn.Flatten()
        case networks.Linear(features):
            return nn.Linear(shape[0], features)
        case networks.Dropout(share):
            return nn.Dropout(share)
        case networks.Residual(body, shortcut, relu):
            return Residual(_sequence(body, shape)[0], _sequence(shortcut, shape)[0], relu)
        case networks.Branches(branches):
            return Branches(_sequence(b, shape)[0] for b in branches)
    raise TypeError(f"no layer of PyTorch for {layer!r}")


class Recurrent(nn.Module):
    """An LSTM or a GRU that returns only its outputs."""

    def __init__(self, kind: str, inputs: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.net = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](inputs, hidden, layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)[0]


def model(w: Workload) -> nn.Module:
    """The workload's network, on the CPU in float32."""
    if w.network in networks.NETWORKS:
        return build(networks.NETWORKS[w.network](*w.size, dropout=w.dropout), w.shape[1:])
    if w.network in torch_networks.NETWORKS:
        return torch_networks.NETWORKS[w.network](*torch_networks.sizes(w))
    if w.network == "conv":
        return nn.Conv2d(w.shape[1], w.size[0], w.size[1], padding=w.size[1] // 2, bias=False)
    if w.network == "encoder":
        width = w.shape[2]
        layer = nn.TransformerEncoderLayer(width, w.size[0], 4 * width, dropout=0.0, batch_first=True)
        return nn.TransformerEncoder(layer, w.size[1], enable_nested_tensor=False)
    return Recurrent(w.network, w.shape[2], *w.size)


class Case:
    """A workload in one mode."""

    def __init__(self, w: Workload, mode: str, device: str) -> None:
        self.mode, *endings = mode.replace("reduce-overhead", "reduce").split("-")
        self.w, self.device, self.amp = w, device, "amp" in endings
        torch.backends.cudnn.benchmark = True
        self.compute = DTYPES[w.dtype]
        self.compiles = self.mode in ("compile", "reduce") or "compile" in endings
        last = w.is_image and "nchw" not in endings
        self.layout = torch.channels_last if last else torch.contiguous_format
        self.net = model(w).train(w.kind != "infer").to(device, torch.float32 if self.amp else self.compute)
        if w.is_image:
            self.net = self.net.to(memory_format=self.layout)
        self.x = self._input()
        self.optimizer: torch.optim.Optimizer | None = None
        if w.kind == "train":
            self.optimizer = torch.optim.SGD(
                self.net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, fused=True
            )
        self.target = self._target()
        self.forward: Callable[..., Any] = self._compiled(self._infer if w.kind == "infer" else self._loss)

    def _input(self) -> torch.Tensor:
        """Token ids, or numbers in the computation's dtype."""
        if self.w.takes_ids:
            return torch.randint(0, self.w.size[0], self.w.shape, device=self.device)
        x = torch.randn(self.w.shape, device=self.device)
        return x.to(self.compute, memory_format=self.layout)

    def _target(self) -> torch.Tensor:
        """Labels, or the gradient of an output in the shape of the input."""
        if self.w.labels is not None:
            return torch.randint(0, self.w.size[0], self.w.labels, device=self.device)
        self.x.requires_grad_(self.w.kind == "both")
        shape = (*self.w.shape[:-1], self.w.size[0]) if self.w.network in ("lstm", "gru") else self.w.shape
        return torch.randn(shape, device=self.device).to(self.compute)

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.compiles:
            return torch.compile(function, mode="reduce-overhead" if self.mode == "reduce" else "default")
        return function

    def _autocast(self) -> AbstractContextManager[Any]:
        if not self.amp:
            return nullcontext()
        return torch.autocast(self.device, dtype=self.compute, cache_enabled=self.mode != "captured")

    def _infer(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def _loss(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss if there are labels; the output itself if its gradient is given."""
        with self._autocast():
            y = self.net(x)
        if self.w.labels is None:
            return y
        if self.w.takes_ids:
            y, target = y.flatten(0, -2), target.flatten()
        return nn.functional.cross_entropy(y.float(), target)

    def run(self) -> Any:
        """One iteration."""
        if self.mode == "reduce":
            torch.compiler.cudagraph_mark_step_begin()
        if self.w.kind == "infer":
            with torch.no_grad(), self._autocast():
                return self.forward(self.x)
        self.net.zero_grad(set_to_none=True)
        self.x.grad = None
        found = self.forward(self.x, self.target)
        found.backward(self.target if self.w.labels is None else None)
        if self.optimizer is not None:
            self.optimizer.step()
        return found

    def captured(self) -> Callable[[], Any]:
        """The iteration as one CUDA graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.run()
        torch.cuda.current_stream().wait_stream(side)
        self.net.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.kept = self.run()
        return graph.replay


def warm(device: str) -> dict[str, Any]:
    """Open the device, so that it does not count in the first step; the versions."""
    torch.zeros(1, device=device)
    facts: dict[str, Any] = {"versions": versions(["torch", "triton", "nvidia-cudnn-cu13"])}
    if device == "cuda":
        facts |= {"device": torch.cuda.get_device_name(), "cudnn": torch.backends.cudnn.version()}
    return facts


def prepare(w: Workload, mode: str, device: str, policy: str) -> Prepared:
    """The workload in a mode of PyTorch; policy has no meaning here."""
    torch._dynamo.reset()
    gc.collect()
    on_gpu = device == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    case = Case(w, mode, device)
    return Prepared(
        case.captured() if case.mode == "captured" else case.run,
        torch.cuda.synchronize if on_gpu else lambda: None,
        warm_up=5,
        peak=torch.cuda.max_memory_allocated if on_gpu else lambda: None,
        reset_peak=torch.cuda.reset_peak_memory_stats if on_gpu else lambda: None,
    )
