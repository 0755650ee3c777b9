"""The problems of common networks for which several plans compete, found without a GPU.

    python -m benchmarks.plan_problems [FILE] [--networks NAME …] [--unknown]

Training and inference of networks of lamina.nn.models, the suite's workloads, and transformer layers of typical
sizes are planned for an absent H200. Each query of the backend is a `Request`: an op, the
specs of its operands, and the permitted arithmetic. Those with competing candidates are written once each,
those needed by most networks first; with `--unknown` only those that the package's database does not contain yet.
It needs cuDNN 9.19 and a libcuda, with or without devices.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import lamina as lm
from benchmarks import decoders, peer_lamina
from benchmarks.workloads import GPU, MODERN, Workload
from lamina import backends, ops, optim
from lamina.backends import Backend, NoKernel
from lamina.backends.cuda.conv import conv
from lamina.backends.cuda.matmul import matmul
from lamina.backends.cuda.select import formulations
from lamina.cudnn import EngineConfig, database_of
from lamina.cudnn import graph as cudnn_graph
from lamina.graph import Executable, Graph, compile
from lamina.graph.ir.serialize import decode_op, encode_op
from lamina.graph.planning.layout import Plans
from lamina.infer import predictor as inference
from lamina.nn import init, models
from lamina.ops.core import Op
from lamina.runtime import Device, Machine
from lamina.spec import Layout, Policy, Spec, as_dtype, float32, int64
from lamina.train import compiled_step as training

#: The list that `plan_contests` measures.
LIST = Path(__file__).with_name("plan_problems.jsonl.gz")
#: Batch sizes of training steps and of inference.
TRAINED, INFERRED = (128,), (1, 128)
#: One or a few of each family; `--networks` selects others.
NETWORKS = (
    *("resnet18", "resnet34", "resnet50", "resnext50_32x4d", "regnet_y_3_2gf", "regnet_x_3_2gf"),
    *("efficientnet_b0", "convnext_tiny", "vit_b_16", "swin_t", "densenet121", "mobilenet_v2"),
    *("AlexNet", "alexnet", "vgg16", "vgg16_bn", "googlenet", "inception_v3", "squeezenet1_1"),
    *("mobilenet_v3_large", "mnasnet1_0", "shufflenet_v2_x1_0", "efficientnet_v2_s", "swin_v2_t", "vit_b_32"),
)
#: Typical transformer layers: width, heads, batch, length.
_LAYERS = (
    *((256, 4, 64, 256), (384, 6, 128, 197), (512, 8, 64, 128), (768, 12, 32, 128), (768, 12, 16, 512)),
    *((1024, 16, 8, 512), (1024, 16, 4, 1024), (2048, 16, 4, 1024), (4096, 32, 2, 1024)),
)
#: Planned in addition to the named networks; recurrent networks have contests of their own.
WORKLOADS = (
    *(w for w in (*GPU, *MODERN) if w.network not in ("lstm", "gru")),
    *(
        Workload(f"encoder-{d}x{s}-{kind}-{n}", kind, "encoder", (n, s, d), (heads, 1))
        for d, heads, batch, s in _LAYERS
        for kind, n in (("both", batch), ("infer", 1))
    ),
    *(
        Workload(f"gpt2-{d}-train-{n}", "train", "gpt2", (n, 1024), (50257, d, 1, heads))
        for d, heads, n in ((1024, 16, 4), (1280, 20, 4), (1600, 25, 2))
    ),
)
_FASTEST = Policy(algorithm="fastest")


@dataclass(frozen=True)
class Request:
    """A query of a backend: an op on operands of these specs, with or without TF32."""

    op: Op
    specs: tuple[Spec, ...]
    tf32: bool = False

    @property
    def policy(self) -> Policy:
        """A policy by which all candidates are timed."""
        return Policy(algorithm="fastest", tf32=self.tf32)

    @property
    def record(self) -> list[Any]:
        """As JSON."""
        return [self.op.name, encode_op(self.op), [_recorded(s) for s in self.specs], self.tf32]

    @staticmethod
    def of(record: Sequence[Any]) -> Request:
        """From `record`. Raises ValueError, KeyError or TypeError for anything else."""
        name, fields, specs, tf32 = record
        return Request(decode_op(name, fields), tuple(_spec(*s) for s in specs), bool(tf32))

    @property
    def name(self) -> str:
        """A name, the same for equal requests."""
        return json.dumps(self.record, sort_keys=True)


def _recorded(spec: Spec) -> list[Any]:
    layout = spec.layout
    lies = None if layout is None else [list(layout.strides), [list(b) for b in layout.blocks]]
    return [list(spec.shape), spec.dtype.name, lies]


def _spec(shape: Sequence[int], dtype: str, layout: Any) -> Spec:
    lies = None if layout is None else Layout(tuple(layout[0]), tuple((a, n) for a, n in layout[1]))
    return Spec(tuple(shape), as_dtype(dtype), lies)


# --------------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True)
class Draft:
    """Replaces a cuDNN plan: nothing is compiled."""

    config: EngineConfig
    workspace: int = 0


@contextmanager
def drafted() -> Iterator[None]:
    """Within the block cuDNN plans are not made: the first entry of its heuristics is taken as the plan."""

    def draft(config: EngineConfig, target: Any, **options: Any) -> Draft:
        return Draft(config)

    with mock.patch.object(cudnn_graph, "attempt", draft):
        yield


@contextmanager
def recorded(asked: set[Request]) -> Iterator[None]:
    """Within the block every request with candidates to time is added to `asked`."""
    whole, of_node = Backend.plan, Plans.plan

    def note(op: Op, specs: Sequence[Spec], policy: Policy) -> None:
        if policy.algorithm == "fastest":
            asked.add(Request(op, tuple(specs), policy.tf32))

    def plan(self: Backend, op: Op, specs: Sequence[Spec], policy: Policy) -> Any:
        note(op, specs, policy)
        return whole(self, op, specs, policy)

    def plan_of_node(self: Plans, op: Op, specs: Sequence[Spec], policy: Policy) -> Any:
        note(op, specs, policy)
        return of_node(self, op, specs, policy)

    with mock.patch.object(Backend, "plan", plan), mock.patch.object(Plans, "plan", plan_of_node):
        yield


@contextmanager
def choices_noted() -> Iterator[list[formulations.Problem]]:
    """A list of every problem with a choice between formulations or engines within the block."""
    conv._cached.cache_clear()
    matmul._cached.cache_clear()
    found: list[formulations.Problem] = []
    choose = formulations._choose

    def noted(problem: formulations.Problem, *rest: Any) -> Any:
        found.append(problem)
        return choose(problem, *rest)

    with mock.patch.object(formulations, "_choose", noted):
        yield found


def choices_of(request: Request, device: Device) -> list[formulations.Problem]:
    """The problems of a request that involve a choice; none if a kernel is fixed, or there is none."""
    with choices_noted() as found:
        try:
            backends.get(device).plan(request.op, request.specs, request.policy)
        except NoKernel:
            return []
    return found


def is_known(request: Request, device: Device) -> bool:
    """Whether the package's database has a choice for every problem of a request that has a place in it."""
    database = database_of(device)
    places = [problem.place for problem in choices_of(request, device) if problem.kind]
    return database is not None and all(p.sizes in database.placed(p.nature) for p in places)


# --------------------------------------------------------------------------------------------------- programs


def planned_for(device: Device, graph: Graph, options: dict[str, Any]) -> Executable:
    """Plan a graph for an absent device; the program returned to the caller runs nowhere."""
    given = {k: v for k, v in options.items() if k != "backend"}
    compile(graph, device, **given)
    return compile(graph, "cpu", **{**options, "backend": "null"})


def train(net: lm.nn.Module, images: Spec, device: Device) -> None:
    """Plan a training step in bfloat16."""
    loss = partial(ops.cross_entropy, ignore_index=None)
    _train(net, loss, "bf16", images, Spec((images.shape[0],), int64), device)


def _train(
    net: lm.nn.Module, loss: Callable[..., Any], precision: str, inputs: Spec, labels: Spec, device: Device
) -> None:
    def compiled(graph: Graph, _: Any, **options: Any) -> Executable:
        return planned_for(device, graph, options)

    with mock.patch.object(training, "compile", compiled):
        sgd = optim.SGD(lr=0.1, momentum=0.9, weight_decay=1e-4)
        step = lm.train_step(net, loss, sgd, device="cpu", precision=precision)
        step.program(inputs, labels)


def infer(net: lm.nn.Module, images: Spec, device: Device) -> None:
    """Plan inference in bfloat16."""
    predictor = inference.Predictor(net, device="cpu", precision="bf16", backend="null")

    def compiled(graph: Graph, _: Any, **options: Any) -> Executable:
        return planned_for(device, graph, options)

    with mock.patch.object(inference, "compile", compiled):
        predictor.program(images)


def workload(w: Workload, device: Device) -> None:
    """Plan one of the suite's workloads in the way that the suite runs it."""
    with init.skipped():
        net = peer_lamina.model(w)
    x, labels = (Spec(value.shape, as_dtype(value.dtype.name)) for value in peer_lamina.inputs(w))
    if w.kind == "train":
        _train(net, partial(peer_lamina.loss, w), w.dtype, x, labels, device)
    else:
        net = peer_lamina.lowered(net.train(w.kind != "infer"), w)
        planned_for(device, peer_lamina.graph(w, net), {})


def decoder(size: decoders.DecoderSize, shape: tuple[int, ...], device: Device) -> None:
    """Plan a training step of two layers of a language model in bfloat16."""
    with init.skipped():
        net = lm.nn.Sequential(decoders.DecoderLayer(size), decoders.DecoderLayer(size))
    vectors = Spec(shape, float32)
    _train(net, ops.mse_loss, "bf16", vectors, vectors, device)


def programs(
    names: Sequence[str] = NETWORKS, workloads: Sequence[Workload] = (), layers: bool = False
) -> Iterator[tuple[str, Callable[[Device], None]]]:
    """Programs (network, kind, batch) of networks by name, workloads by theirs, layers of language models, with
    functions that plan them."""
    for w in workloads:
        yield f"{w.network} {w.name}", partial(workload, w)
    for name, size, shape in decoders.layers() if layers else ():
        yield name, partial(decoder, size, shape)
    for name in names:
        builder = models.builders()[name]
        image = (builder.channels, builder.size, builder.size)
        for plan, batches in ((train, TRAINED), (infer, INFERRED)):
            for batch in batches:
                with init.skipped():
                    net = builder(builder.channels, builder.classes)
                program = f"{name} {plan.__name__} {batch}"
                yield program, partial(_planned, plan, net, Spec((batch, *image), float32))


def _planned(plan: Callable[..., None], net: lm.nn.Module, images: Spec, device: Device) -> None:
    plan(net, images, device)


def collect(
    names: Sequence[str] = NETWORKS,
    workloads: Sequence[Workload] = (),
    told: Callable[[str], None] = print,
    layers: bool = False,
) -> dict[Request, set[str]]:
    """Each request with competing candidates, and the programs that need it."""
    device = Device("cuda", machine=Machine.named("h200"))
    needed: dict[Request, set[str]] = {}
    other: set[Request] = set()
    with drafted():
        for program, plan in programs(names, workloads, layers):
            began, asked = time.perf_counter(), set[Request]()
            try:
                with recorded(asked), init.skipped(), lm.policy(_FASTEST):
                    plan(device)
            except (NoKernel, ValueError, TypeError) as error:
                told(f"{program}: {type(error).__name__}: {str(error).splitlines()[0]:.200}")
            for request in asked - other:
                if request in needed or choices_of(request, device):
                    needed.setdefault(request, set()).add(program)
                else:
                    other.add(request)
            took = time.perf_counter() - began
            told(f"{program}: {len(asked)} requests, {len(needed)} to be timed, {took:.1f} s")
    return needed


def ordered(needed: Mapping[Request, Collection[str]], machine: Machine) -> list[Request]:
    """Requests needed by most networks first; among equals each program's heaviest, second heaviest, … in turn."""
    turns: Counter[str] = Counter()
    rank: dict[Request, tuple[int, int, str]] = {}
    for request in sorted(needed, key=lambda r: (-least(r, machine), r.name)):
        turn = min(turns[program] for program in needed[request])
        turns.update(needed[request])
        networks = {program.split()[0] for program in needed[request]}
        rank[request] = (-len(networks), turn, request.name)
    return sorted(rank, key=lambda r: rank[r])


def least(request: Request, machine: Machine) -> float:
    """The least seconds that a machine takes for a request."""
    nbytes = sum(s.nbytes for s in (*request.specs, *request.op.infer(*request.specs)))
    work = request.op.flops(*request.specs) / machine.rate(request.specs[0].dtype.name, tf32=request.tf32)
    return max(work, nbytes / machine.bandwidth)


def write(file: Path, needed: Mapping[Request, Collection[str]], machine: Machine) -> None:
    """A line for each request: how many networks and programs need it, and the request."""
    lines = []
    for request in ordered(needed, machine):
        networks = {program.split()[0] for program in needed[request]}
        lines.append(json.dumps([len(networks), len(needed[request]), request.record], sort_keys=True))
    file.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))


def read(file: Path = LIST) -> list[Request]:
    """The requests of a list, in its order."""
    lines = gzip.decompress(file.read_bytes()).decode().splitlines()
    return [Request.of(json.loads(line)[2]) for line in lines]


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, nargs="?", default=LIST)
    parser.add_argument(
        "--networks", nargs="*", help="these alone (default: those of the list, and workloads)"
    )
    parser.add_argument("--unknown", action="store_true", help="without what the package's database knows")
    parser.add_argument("--layers", action="store_true", help="layers of language models alone")
    options = parser.parse_args(arguments)
    machine = Machine.named("h200")
    if options.layers:
        needed = collect((), layers=True)
    elif options.networks is not None:
        needed = collect(options.networks)
    else:
        needed = collect(NETWORKS, WORKLOADS, layers=True)
    if options.unknown:
        device = Device("cuda", machine=machine)
        with drafted():
            needed = {r: programs for r, programs in needed.items() if not is_known(r, device)}
    write(options.file, needed, machine)


if __name__ == "__main__":
    main()
