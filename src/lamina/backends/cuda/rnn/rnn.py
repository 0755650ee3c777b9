"""Recurrent networks by cuDNN, with its fastest algorithm for the sizes, or by own persistent kernels.

cuDNN needs all weights in one block of memory in its own order: one kernel gathers them there before the forward
pass, which leaves them in the reserve for the backward pass; one kernel scatters their gradients back. Everything
runs on the call's stream and may be captured in a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

import numpy as np

from lamina.backends import Call, NoKernel, Plan, Run
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Copy,
    Fill,
    Launch,
    Place,
    Program,
    kernel_plan,
    round_up,
    scratch,
    sequence,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.rnn import persistent
from lamina.backends.cuda.select.autotune import Trial
from lamina.backends.cuda.select.target import target_of
from lamina.c.errors import CudnnError
from lamina.cudnn import Choice, Handle, handle_of, plan_store
from lamina.cudnn.contest import Contest, OperandMemory
from lamina.cudnn.legacy import RNN, RNNData
from lamina.cudnn.legacy.flags import short
from lamina.cudnn.legacy.handles import handle_for
from lamina.cudnn.legacy.rnn_search import search_rnn
from lamina.cudnn.legacy.rnn_weights import GATES, WeightLayout
from lamina.cudnn.legacy.tensor import TensorDescriptor
from lamina.ops.primitives.rnn import Rnn, RnnGrad, Sizes, attributes
from lamina.runtime import Device, DeviceError, from_host
from lamina.spec import DType, Policy, Spec, bfloat16, float16, float32, uint8

#: The formulation of own kernels.
PERSISTENT = "resident"
#: The number of sequences up to which own kernels are expected to be faster than cuDNN's.
_FEW = 64
#: The machine epsilon.
_EPS = {float16: 2.0**-10, bfloat16: 2.0**-7}
#: The key of a network: the attributes that both directions share.
_Attributes = tuple[str, int, int, bool, int, bool]


# --------------------------------------------------------------------------------------------------------- networks


@dataclass(frozen=True, eq=False)
class RnnDescription:
    """A network for one batch: cuDNN's descriptors, the places of its weights, and its memory sizes.

    launches: about how many kernels a pass queues: those of each layer and time step.
    """

    rnn: RNN
    x: RNNData
    y: RNNData
    h: TensorDescriptor
    c: TensorDescriptor | None
    weights: WeightLayout
    workspace: int
    reserve: int
    algorithm: str
    launches: int

    @property
    def kept(self) -> int:
        """Bytes that the forward pass saves: the weights in cuDNN's order, then its reserve."""
        return self.reserve_at + self.reserve

    @property
    def reserve_at(self) -> int:
        """The offset of cuDNN's reserve, after the weights."""
        return round_up(self.weights.nbytes, WORKSPACE_ALIGNMENT)


@lru_cache(maxsize=256)
def _network(
    known: _Attributes,
    sizes: Sizes,
    dtype: DType,
    formulation: str,
    training: bool,
    device: Device,
    tf32: bool,
) -> RnnDescription:
    """way: cuDNN's algorithm by name, with " packed" if sequences are passed in packed layout."""
    handle = handle_for(device)
    algorithm, _, packed = formulation.partition(" ")
    try:
        rnn = _descriptor(known, sizes, dtype, tf32).replace(algorithm=algorithm, padded_io=not packed)
        if algorithm == "persist_dynamic":
            rnn.build_dynamic(handle, sizes.batch)
        x = _sequences(sizes, dtype, sizes.inputs, bool(packed))
        spaces = rnn.temp_space_sizes(handle, x, training=training)
    except CudnnError as error:
        raise NoKernel(f"cuda: cuDNN refuses rnn {known} on {tuple(sizes)} {dtype}: {error}") from None
    y = _sequences(sizes, dtype, rnn.output_size, bool(packed))
    h = TensorDescriptor(rnn.state_shape(sizes.batch), data_type=dtype.name, format=None)
    c = TensorDescriptor(rnn.cell_shape(sizes.batch), data_type=dtype.name, format=None)
    layout = rnn.weight_layout(handle)
    lstm = known[0] == "lstm"
    return RnnDescription(
        rnn,
        x,
        y,
        h,
        c if lstm else None,
        layout,
        spaces.workspace,
        spaces.reserve,
        formulation,
        known[2] * sizes.steps,
    )


def _descriptor(known: _Attributes, sizes: Sizes, dtype: DType, tf32: bool) -> RNN:
    """cuDNN's descriptor. Raises CudnnError."""
    mode, hidden, layers, bidirectional, projection, bias = known
    return RNN(
        cell=mode,
        input_size=sizes.inputs,
        hidden_size=hidden,
        layers=layers,
        projection=projection or None,
        bidirectional=bidirectional,
        bias="double" if bias else "none",
        data_type=dtype.name,
        math_type="fma" if dtype == float32 and not tf32 else None,
    )


def _sequences(sizes: Sizes, dtype: DType, width: int, packed: bool) -> RNNData:
    """Sequences of equal length: packed and padded layout are the same."""
    return RNNData(
        data_type=dtype.name,
        max_length=sizes.steps,
        batch=sizes.batch,
        vector_size=width,
        layout="packed" if packed else "sequence_major",
    )


# ------------------------------------------------------------------------------------------------------ formulations

#: The choice under "auto", for the lifetime of the process: a reserve must be read by the formulation that wrote it,
#: even if another one has been found to be faster since.
_settled: dict[tuple[Device, str], str] = {}


def _formulation(
    op: Rnn | RnnGrad, inputs: Sequence[Spec], training: bool, device: Device, policy: Policy
) -> str:
    """cuDNN's algorithm by name, with " packed" if sequences are passed in packed layout; or `PERSISTENT`.

    "standard", or under "fastest" the fastest one here, which is remembered, for "auto" too, which otherwise takes
    the one expected to be faster; under "direct" the own kernels if they support the network. Forward and backward
    pose the same question, and get the same answer.
    """
    own = _tiling(op, inputs, device) is not None
    if own and (policy.algorithm == "direct" or not isinstance(target_of(device), Handle)):
        return PERSISTENT
    if not isinstance(target_of(device), Handle):
        raise NoKernel(
            f"cuda: {op.name} is planned by cuDNN on the GPU itself, which is not here, and own kernels do not take "
            f"{inputs[0]} with {op.layers} layers of {op.hidden} units on {device.name}"
        )
    if policy.algorithm not in ("fastest", "auto"):
        return "standard"
    return _fastest(attributes(op), Sizes(*inputs[0].shape), inputs[0].dtype, own, training, device, policy)


def _tiling(op: Rnn | RnnGrad, inputs: Sequence[Spec], device: Device) -> persistent.Tiling | None:
    dtypes = [s.dtype for s in inputs if s.dtype != uint8]
    return persistent.tiling(op, Sizes(*inputs[0].shape), dtypes, device.machine)


def _fastest(
    known: _Attributes, sizes: Sizes, dtype: DType, own: bool, training: bool, device: Device, policy: Policy
) -> str:
    """The fastest formulation here, under "auto" as far as it is known.

    own: whether own kernels compete. Without measurements they are used for few sequences: for 8 to 64 they took 0.2
        to 0.85 of the time of cuDNN's captured launches (float16, compute capability 9.0).
    """
    store = plan_store(device)
    limit = f"tf32={policy.tf32} deterministic={policy.deterministic} limit={policy.workspace_limit}"
    key = f"rnn {known} {tuple(sizes)} {dtype} training={training} recorded {limit}{' own' * own}"
    if policy.algorithm == "auto" and (device, key) in _settled:
        return _settled[device, key]
    remembered = store.get(key)
    if policy.algorithm == "auto":
        few = own and sizes.batch <= _FEW and policy.workspace_limit is None
        taken = remembered.formulation if remembered else PERSISTENT if few else "standard"
        return _settled.setdefault((device, key), taken)
    if remembered is not None:
        return remembered.formulation
    formulation, milliseconds = _fastest_of_library(known, sizes, dtype, training, device, policy)
    if own:
        formulation, milliseconds = _duel(known, sizes, dtype, formulation, training, device, policy) or (
            formulation,
            milliseconds,
        )
    if milliseconds:
        store.put(key, Choice(formulation, milliseconds=milliseconds))
    return formulation


def _fastest_of_library(
    known: _Attributes, sizes: Sizes, dtype: DType, training: bool, device: Device, policy: Policy
) -> tuple[str, float]:
    """cuDNN's fastest algorithm and its milliseconds; 0 where none could be timed."""
    try:
        rnn = _descriptor(known, sizes, dtype, policy.tf32)
    except CudnnError as error:
        raise NoKernel(f"cuda: cuDNN refuses rnn {known} on {tuple(sizes)} {dtype}: {error}") from None
    times: dict[str, float] = {}
    for packed in (False, True):
        found = search_rnn(
            handle_for(device),
            rnn.replace(padded_io=not packed),
            _sequences(sizes, dtype, sizes.inputs, packed),
            training=training,
            deterministic=policy.deterministic,
            workspace_limit=policy.workspace_limit,
        )
        times |= {short(p.algorithm) + " packed" * packed: p.time for p in found if not p.reason}
    if not times:
        return "standard", 0.0
    formulation = min(times, key=lambda name: times[name])
    return formulation, times[formulation]


@dataclass(frozen=True)
class _Entrant:
    """A formulation in the contest: its plan, captured as a CUDA graph."""

    label: str
    plan: Plan

    @property
    def workspace(self) -> int:
        """Bytes of scratch memory."""
        return self.plan.workspace

    @property
    def steps(self) -> tuple[Bindable, ...]:
        """What runs."""
        return (self,)

    def bind(self, device: Device, call: Call) -> Run:
        """Capture it at these addresses; if that is not possible, it runs as it is."""
        run = self.plan.bind(call)
        run()  # initialization at the first call is not captured
        try:
            # A separate stream: other threads' work is not captured.
            with device.stream() as side:
                again = self.plan.bind(call._replace(stream=side.handle))
                with side.capture(home=device.default_stream) as graph:
                    again()
            return graph.bind()
        except (CudnnError, DeviceError):
            return run


def _duel(
    known: _Attributes,
    sizes: Sizes,
    dtype: DType,
    formulation: str,
    training: bool,
    device: Device,
    policy: Policy,
) -> tuple[str, float] | None:
    """cuDNN's formulation against the own kernels: the faster, and its milliseconds; None where neither is correct.

    Training: all gradients, after a forward pass. Weights are realistically small, so that errors do not grow from
    step to step; the tolerance covers the accumulated rounding of all steps.
    """
    op = RnnGrad(*known) if training else Rnn(*known)
    states, weights = op.state_shapes(sizes.batch), op.weight_shapes(sizes.inputs)
    y = op.output_shape(sizes)
    shapes = [tuple(sizes), *states, *([y, y, *states] if training else []), *weights]
    inputs = [Spec(shape, dtype).fixed for shape in shapes]
    plans = [(name, _in_formulation(op, inputs, name, device, policy)) for name in (formulation, PERSISTENT)]
    limit = policy.workspace_limit
    entries = [Trial(device, _Entrant(*one)) for one in plans if limit is None or one[1].workspace <= limit]
    rng, first = np.random.default_rng(0), len(shapes) - len(weights)
    drawn = [(rng.uniform(-1, 1, s) / op.hidden**0.5).astype(dtype.numpy) for s in weights]
    held = [from_host(w.view(np.uint8), device) for w in drawn]
    values = {first + i: buffer.pointer for i, buffer in enumerate(held)}
    given, wanted = (
        [OperandMemory(s.nbytes, s.dtype.name) for s in specs] for specs in (inputs, plans[0][1].outputs)
    )
    contest = Contest(device, given, wanted, _EPS[dtype] * (sizes.steps * op.layers) ** 0.5, values)
    found = contest.best(entries, refusals=[]) if entries else None
    return None if found is None else (found[0].label, found[1])


def _in_formulation(
    op: Rnn | RnnGrad, inputs: Sequence[Spec], formulation: str, device: Device, policy: Policy
) -> Plan:
    if isinstance(op, Rnn):
        return forward(op, inputs, formulation, device, policy)
    return gradient(op, inputs, formulation, device, policy)


# ---------------------------------------------------------------------------------------------------------- weights


def pieces(layout: WeightLayout, op: Rnn | RnnGrad) -> list[tuple[int, int, int, int]]:
    """(weight, first element in it, first element in cuDNN's space, elements) of each run with the same order."""
    gates, directions = GATES[layout.cell], op.directions
    count = 2 + 2 * op.bias + bool(op.projection)
    within = {("weight", "ih"): 0, ("weight", "hh"): 1, ("bias", "ih"): 2, ("bias", "hh"): 3}
    found = []
    for entry in layout.entries:
        part = entry.part
        first = (part.layer * directions + part.reverse) * count
        index = count - 1 if part.kind == "hr" else within[entry.what, part.kind]
        begin = gates.index(part.gate) * entry.size if part.kind != "hr" else 0
        found.append((first + index, begin, entry.offset, entry.size))
    return _joined(sorted(found))


def _joined(found: Sequence[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    """Runs that are contiguous in both places merged into one."""
    joined: list[tuple[int, int, int, int]] = []
    for weight, begin, offset, size in found:
        if joined:
            w, b, o, n = joined[-1]
            if (w, b + n, o + n) == (weight, begin, offset):
                joined[-1] = (w, b, o, n + size)
                continue
        joined.append((weight, begin, offset, size))
    return joined


def transfer(
    runs: Sequence[tuple[int, int, int, int]],
    weights: Sequence[Place],
    space: Place,
    dtype: DType,
    gather: bool,
) -> tuple[Launch, Launch]:
    """One kernel that copies the weights into cuDNN's space (gather), or their gradients out of it.

    Returns the launch for addresses that are multiples of `VECTOR`, and the one for arbitrary addresses.
    """
    words = max(VECTOR // dtype.itemsize, 1)
    for _, begin, offset, size in runs:
        words = gcd(words, begin, offset, size)
    return _transfer(runs, weights, space, dtype, gather, words), _transfer(
        runs, weights, space, dtype, gather, 1
    )


def _transfer(
    runs: Sequence[tuple[int, int, int, int]],
    weights: Sequence[Place],
    space: Place,
    dtype: DType,
    gather: bool,
    words: int,
) -> Launch:
    width = words * dtype.itemsize
    kind = "Pack<u32, 4>" if width == VECTOR else {1: "u8", 2: "u16", 4: "u32", 8: "u64"}[width]
    columns = list(zip(*((w, b // words, o // words, n // words) for w, b, o, n in runs), strict=True))
    tables = "".join(
        f"__device__ const i64 {name}[] = {{{', '.join(map(str, values))}}};\n"
        for name, values in zip(("WHICH", "BEGIN", "OFFSET", "COUNT"), columns, strict=True)
    )
    const = "const " if gather else ""
    listed = ", ".join(f"{const}W *w{i}" for i in range(len(weights)))
    move = "there[i] = here[i]" if gather else "here[i] = there[i]"
    text = f"""typedef {kind} W;
{tables}
extern "C" __global__ void __launch_bounds__(256) rnn_weights({listed}, {"" if gather else "const "}W *space)
{{
    {const}W *weights[] = {{{", ".join(f"w{i}" for i in range(len(weights)))}}};
    const int k = blockIdx.y;
    {const}W *here = weights[WHICH[k]] + BEGIN[k];
    {"" if gather else "const "}W *there = space + OFFSET[k];
    for (i64 i = blockIdx.x * 256LL + threadIdx.x; i < COUNT[k]; i += gridDim.x * 256LL) {move};
}}
"""
    grid = (max(1, -(-max(columns[3]) // (256 * 4))), len(runs))
    return Launch(Program("rnn_weights", text=text), grid, (256,), (*weights, space), waves=2)


# ------------------------------------------------------------------------------------------------------------ calls


@dataclass(frozen=True, eq=False)
class _Forward:
    """cudnnRNNForward. space: the weights, and for training the reserve after them."""

    network: RnnDescription
    x: Place
    first: tuple[Place, ...]
    y: Place
    last: tuple[Place, ...]
    space: Place
    training: bool
    workspace: Place

    @property
    def launches(self) -> int:
        """About how many kernels cuDNN queues."""
        return self.network.launches

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        n, handle = self.network, handle_of(device)
        space = self.space.address(call)
        (h, *c), (hn, *cn) = ([p.address(call) for p in places] for places in (self.first, self.last))
        x, y, workspace = (p.address(call) for p in (self.x, self.y, self.workspace))

        def run() -> None:
            handle.use(call.stream)
            n.rnn.forward(
                handle,
                x_desc=n.x,
                x=x,
                y_desc=n.y,
                y=y,
                weights=(space, n.weights.nbytes),
                hx=h,
                hy=hn,
                cx=c[0] if c else None,
                cy=cn[0] if cn else None,
                training=self.training,
                h_desc=n.h,
                c_desc=n.c,
                workspace=(workspace, n.workspace),
                reserve=(space + n.reserve_at, n.reserve) if self.training else None,
            )

        return run


@dataclass(frozen=True, eq=False)
class _Backward:
    """cudnnRNNBackwardData_v8, then cudnnRNNBackwardWeights_v8, which adds to `dspace`."""

    network: RnnDescription
    x: Place
    first: tuple[Place, ...]
    y: Place
    dy: Place
    dlast: tuple[Place, ...]
    space: Place
    dx: Place
    dfirst: tuple[Place, ...]
    dspace: Place
    workspace: Place

    @property
    def launches(self) -> int:
        """About how many kernels cuDNN queues."""
        return self.network.launches

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        n, handle = self.network, handle_of(device)
        places = (self.x, self.y, self.dy, self.dx, self.space, self.dspace, self.workspace)
        x, y, dy, dx, space, dspace, workspace = (p.address(call) for p in places)
        (h, *c), (dhn, *dcn), (dh, *dc) = (
            [p.address(call) for p in group] for group in (self.first, self.dlast, self.dfirst)
        )
        reserve, work = (space + n.reserve_at, n.reserve), (workspace, n.workspace)

        def run() -> None:
            handle.use(call.stream)
            n.rnn.backward_data(
                handle,
                y_desc=n.y,
                y=y,
                dy=dy,
                x_desc=n.x,
                dx=dx,
                weights=(space, n.weights.nbytes),
                reserve=reserve,
                hx=h,
                dhy=dhn,
                dhx=dh,
                cx=c[0] if c else None,
                dcy=dcn[0] if dcn else None,
                dcx=dc[0] if dc else None,
                h_desc=n.h,
                c_desc=n.c,
                workspace=work,
            )
            n.rnn.backward_weights(
                handle,
                x_desc=n.x,
                x=x,
                y_desc=n.y,
                y=y,
                dweights=(dspace, n.weights.nbytes),
                reserve=reserve,
                hx=h,
                h_desc=n.h,
                workspace=work,
            )

        return run


@dataclass(frozen=True)
class _Unless:
    """A copy, unless source and target are the same place."""

    copy: Copy

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        if self.copy.to.address(call) == self.copy.origin.address(call):
            return sequence([])
        return self.copy.bind(device, call)


# ------------------------------------------------------------------------------------------------------------ plans


@kernels(Rnn, source="cudnn")
def rnn(op: Rnn, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(y, hn, cn, reserve) from x, the initial states and the weights; all row-major."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.fixed for s in op.infer(*inputs)]
    if not inputs[0].shape[1]:
        return kernel_plan(device, inputs, outputs, _zeros(outputs), label=op.name)
    return forward(op, inputs, _formulation(op, inputs, op.reserve, device, policy), device, policy)


def forward(op: Rnn, inputs: Sequence[Spec], formulation: str, device: Device, policy: Policy) -> Plan:
    """The forward pass in one formulation."""
    found = _tiling(op, inputs, device)
    if formulation == PERSISTENT and found is not None:
        return persistent.forward_plan(op, inputs, found, device, policy)
    sizes, count, outputs = Sizes(*inputs[0].shape), 1 + op.states, [s.fixed for s in op.infer(*inputs)]
    net = _network(attributes(op), sizes, inputs[0].dtype, formulation, op.reserve, device, policy.tf32)
    space = target(count) if op.reserve else scratch()
    at = 0 if op.reserve else net.reserve_at
    if op.reserve:
        outputs[-1] = Spec((net.kept,), uint8).fixed
    weights = [source(i) for i in range(count, len(inputs))]
    gather, plain = transfer(pieces(net.weights, op), weights, space, inputs[0].dtype, True)
    first, last = (tuple(make(1 + i) for i in range(op.states)) for make in (source, target))
    run = _Forward(net, source(0), first, target(0), last, space, op.reserve, scratch(at))
    return _plan(op, device, inputs, outputs, net, (gather, run), (plain, run), at + net.workspace)


@kernels(RnnGrad, source="cudnn")
def rnn_grad(op: RnnGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(dx, dh0, dc0, *dweights, spent reserve); without a reserve the forward pass runs first."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.fixed for s in op.infer(*inputs)]
    if not inputs[0].shape[1]:
        return kernel_plan(device, inputs, outputs, _zeros(outputs), label=op.name)
    return gradient(op, inputs, _formulation(op, inputs, True, device, policy), device, policy)


def gradient(op: RnnGrad, inputs: Sequence[Spec], formulation: str, device: Device, policy: Policy) -> Plan:
    """All gradients in one formulation.

    cuDNN modifies the reserve: it is also an output, which takes over the input's memory if that has no other reader.
    """
    found = _tiling(op, inputs, device)
    if formulation == PERSISTENT and found is not None:
        return persistent.gradient_plan(op, inputs, found, device, policy)
    inputs, outputs = list(inputs), [s.fixed for s in op.infer(*inputs)]
    sizes, states, dtype = Sizes(*inputs[0].shape), op.states, inputs[0].dtype
    net = _network(attributes(op), sizes, dtype, formulation, True, device, policy.tf32)
    head = 3 + 2 * states + op.reserve
    weights = [source(i) for i in range(head, len(inputs))]
    runs = pieces(net.weights, op)
    first = tuple(source(1 + i) for i in range(states))
    dspace, work = scratch(), scratch(net.reserve_at)
    end = net.reserve_at + round_up(net.workspace, WORKSPACE_ALIGNMENT)
    before: tuple[Bindable, ...]
    plain: tuple[Bindable, ...]
    y = source(1 + states)
    if op.reserve:
        space = target(len(outputs) - 1)
        inputs[head - 1] = outputs[-1] = Spec((net.kept,), uint8).fixed
        before = plain = (_Unless(Copy(space, source(head - 1), net.kept)),)
    else:
        space = scratch(end)
        y = scratch(end + round_up(net.kept, WORKSPACE_ALIGNMENT))
        end = y.offset + round_up(inputs[1 + states].nbytes, WORKSPACE_ALIGNMENT)
        gather, any_gather = transfer(runs, weights, space, dtype, True)
        # The last states share memory with the gradients of the initial ones, which are written later: nobody reads
        # them.
        again = _Forward(
            net, source(0), first, y, tuple(target(1 + i) for i in range(states)), space, True, work
        )
        before, plain = (gather, again), (any_gather, again)
    dlast = tuple(source(3 + states + i) for i in range(states))
    dfirst = tuple(target(1 + i) for i in range(states))
    dy = source(2 + states)
    back = _Backward(net, source(0), first, y, dy, dlast, space, target(0), dfirst, dspace, work)
    dweights = [target(1 + states + i) for i in range(len(weights))]
    spread, any_spread = transfer(runs, dweights, dspace, dtype, False)
    clear = Fill(dspace, 0, net.weights.nbytes)
    return _plan(
        op,
        device,
        inputs,
        outputs,
        net,
        (*before, clear, back, spread),
        (*plain, clear, back, any_spread),
        end,
        {len(outputs) - 1: head - 1} if op.reserve else {},
    )


def _plan(
    op: Rnn | RnnGrad,
    device: Device,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    net: RnnDescription,
    steps: tuple[Bindable, ...],
    plain: tuple[Bindable, ...],
    workspace: int,
    aliases: dict[int, int] | None = None,
) -> Plan:
    made = kernel_plan(
        device, inputs, outputs, steps, label="", workspace=workspace, aliases=aliases, plain=lambda: plain
    )
    return Plan(
        made.inputs,
        made.outputs,
        made.make,
        workspace,
        made.aliases,
        label=f"cudnn {op.name} {net.algorithm}",
    )


def _zeros(outputs: Sequence[Spec]) -> list[Bindable]:
    """An empty batch or sequence: gradients of the weights are zero."""
    return [Fill(target(i), 0, s.nbytes) for i, s in enumerate(outputs) if s.nbytes]
