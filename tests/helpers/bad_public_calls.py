"""Generated bad calls over the public names above the ops: layers, initializers, optimizers, schedules, training,
serving, data, function transformations, conversion.

    python -m tests.helpers.bad_public_calls --count 20000            in processes of 500 calls
    python -m tests.helpers.bad_public_calls --seed 3 --only 417      one call again

A call takes valid arguments (`Example`s: by the names and annotations of the parameters, or listed for a
class) and replaces one or two of them by nonsense values. Constructors, methods and `__call__` of instances
are tested. A call may succeed, or raise one of the documented errors with a message. It must not end
the process, take longer than `PATIENCE`, or leak threads, files or memory.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import lamina as lm
from lamina import nn, ops, optim
from lamina.backends import NoKernel
from lamina.runtime import Device
from lamina.train import CheckpointError, DivergedError, ResumeError
from tests.helpers.bad_op_calls import _shown, nonsense

#: Permitted errors for invalid arguments. KeyError: for missing names; OSError: for files; DivergedError: for runs;
#: RuntimeError: for missing earlier calls (a lazy layer, an optimizer without parameters);
#: BufferError: from DLPack exporters.
DOCUMENTED = (
    TypeError, ValueError, IndexError, KeyError, NotImplementedError, MemoryError, OSError, DivergedError,
    CheckpointError, ResumeError, NoKernel, RuntimeError, BufferError,
)  # fmt: skip
#: Also documented: for missing names of a module.
NAMED = ("get_submodule", "set_submodule", "get_parameter", "get_buffer")
#: Time limit of one call in seconds.
PATIENCE = 60.0
MODULES = {
    "nn": ("nn",),
    "init": ("nn.init",),
    "utils": ("nn.utils", "nn.utils.rnn", "nn.utils.parametrize", "nn.utils.parametrizations"),
    "optim": ("optim", "optim.lr_scheduler", "optim.schedule"),
    "train": ("train", "train.metrics", "train.callbacks"),
    "infer": ("infer",),
    "data": ("data", "data.transforms"),
    "lamina": ("",),
    "graph": ("graph",),
    "convert": ("convert.onnx",),
}
#: Not called, besides whole networks (`nn.models`): classes not instantiated by users, and process-wide state.
LEFT_OUT = {
    "train.Step", "train.State", "lamina.use_deterministic_algorithms", "infer.QuantizedPredictor",
    "infer.SavedInferer", "lamina.Tensor", "lamina.Device", "graph.Executable", "graph.Node", "graph.Value",
    "graph.Profile", "graph.Graph", "nn.utils.parametrize.ParametrizationList", "optim.ParameterGroup",
    "convert.onnx.OnnxNode", "nn.Summary", "train.callbacks.Run",
}  # fmt: skip


def _x(*shape: int) -> Any:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def _net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3))


def _step() -> Any:
    return lm.train_step(_net(), ops.cross_entropy, optim.SGD(lr=0.1), device="cpu")


def _batches() -> Any:
    return lm.data.arrays(_x(6, 4), np.arange(6) % 3, batch_size=3)


def _grads() -> Any:
    return {"a": lm.tensor(_x(3)), "b": lm.tensor(_x(2, 2))}


def _packed() -> Any:
    return nn.utils.rnn.pack_padded_sequence(_x(4, 2, 3), [4, 2])


def _square(x: Any) -> Any:
    return ops.sum(x * x)


def _onnx() -> Any:
    import onnx

    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    place = partial(onnx.helper.make_tensor_value_info, elem_type=1, shape=[2, 3])
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [place("x")], [place("y")]))


#: Plausible arguments by parameter name, optionally with the area ("optim.params"); made anew for each call.
BY_NAME: dict[str, Callable[[], Any]] = {
    "module": lambda: nn.Linear(4, 3), "model": _net, "net": _net, "layer": lambda: nn.Linear(4, 3),
    "conv": lambda: nn.Conv2d(3, 4, 3).eval(), "bn": lambda: nn.BatchNorm2d(4).eval(), "norm": lambda: None,
    "linear": lambda: nn.Linear(3, 4).eval(), "encoder_layer": lambda: nn.TransformerEncoderLayer(4, 2, 4),
    "decoder_layer": lambda: nn.TransformerDecoderLayer(4, 2, 4), "optimizer": lambda: optim.SGD(_net(), lr=0.1),
    "step": _step, "data": _batches, "loader": _batches, "source": _batches, "batches": lambda: [_x(2, 4)],
    "train.path": lambda: "kept.safetensors", "loss_fn": lambda: ops.cross_entropy, "epochs": lambda: 1,
    "grads": _grads, "max_norm": lambda: 1.0, "total_norm": lambda: lm.tensor(2.0), "clip_value": lambda: 0.1,
    "parameters": lambda: [nn.Parameter(_x(3)), nn.Parameter(_x(2, 2))], "vec": lambda: lm.tensor(_x(7)),
    "tensor": lambda: nn.Parameter(_x(3, 3)), "tensor_name": lambda: "weight", "parametrization": nn.Identity,
    "sparsity": lambda: 0.5, "shape": lambda: (3, 4), "initialize": lambda: nn.init.small_,
    "input": lambda: _x(4, 2, 3),
    "lengths": lambda: [4, 2], "utils.sequence": _packed, "sequences": lambda: [_x(4, 3), _x(2, 3)],
    "padded_sequences": lambda: _x(4, 2, 3), "packed": _packed, "packed_sequences": _packed,
    "permutation": lambda: [1, 0], "utils.data": lambda: lm.tensor(_x(6, 3)), "batch_sizes": lambda: [2, 2, 1, 1],
    "optim.params": lambda: _net().parameters(), "optim.parameters": lambda: {"w": lm.tensor(_x(3))},
    "params": lambda: _net().parameters(), "rule": lambda: optim.SGD(lr=0.1), "optim.schedule": lambda: 0.1,
    "T_max": lambda: 5, "T_0": lambda: 5, "base_lr": lambda: 0.01, "max_lr": lambda: 0.1, "gamma": lambda: 0.5,
    "lr_lambda": lambda: lambda n: 0.5, "milestones": lambda: [2], "step_size": lambda: 2, "total_steps": lambda: 5,
    "lr": lambda: 0.1, "total_iters": lambda: 5, "steps": lambda: 2, "function": lambda: ops.mse_loss,
    "first": lambda: [1, 2, 3], "second": lambda: [1, 3], "log_probs": lambda: _x(5, 2, 4),
    "outputs": lambda: _x(4, 3),
    "targets": lambda: np.array([0, 1, 2, 1]), "infer.path": lambda: "there.plan", "path": lambda: "there.bin",
    "fn": lambda: _square, "primals": lambda: [_x(3)], "tangents": lambda: [_x(3)],
    "graph": lambda: lm.trace(_square, _x(3)),
    "executable": lambda: lm.compile(lm.trace(_square, _x(3)), "cpu"), "op": lambda: type(ops.primitives.Relu()),
    "state": lambda: _net().state_dict(), "dataset": lambda: lm.data.TensorDataset(_x(6, 4), np.arange(6)),
    "datasets": lambda: [lm.data.TensorDataset(_x(6, 4))], "indices": lambda: [0, 2], "batch_size": lambda: 2,
    "samples": lambda: [_x(3, 2), _x(5, 2)], "images": lambda: np.zeros((2, 3, 8, 8), np.uint8), "size": lambda: 4,
    "image": lambda: np.zeros((3, 8, 8), np.uint8), "folder": lambda: "none", "root": lambda: "none",
    "count": lambda: 2,
    "load": lambda: lambda rows, rng: (_x(len(rows), 4), rows % 3),
    "transform": lambda: lm.data.transforms.Grayscale(),
    "transforms": lambda: [lm.data.transforms.Grayscale()], "mean": lambda: 0.5, "std": lambda: 0.5,
    "num_classes": lambda: 3, "in_channels": lambda: 4, "out_channels": lambda: 4, "kernel_size": lambda: 2,
    "num_features": lambda: 4, "num_groups": lambda: 2, "num_channels": lambda: 4, "groups": lambda: 1,
    "normalized_shape": lambda: 4, "padding": lambda: 1, "output_size": lambda: 2, "embed_dim": lambda: 4,
    "num_heads": lambda: 2, "d_model": lambda: 4, "nhead": lambda: 2, "dim_feedforward": lambda: 4,
    "num_encoder_layers": lambda: 1, "num_decoder_layers": lambda: 1, "input_size": lambda: 3,
    "hidden_size": lambda: 4,
    "unflattened_size": lambda: (2, 2), "dim": lambda: 1, "cutoffs": lambda: [2], "n_classes": lambda: 5,
    "in_features": lambda: 4, "upscale_factor": lambda: 2, "downscale_factor": lambda: 2, "modules": lambda: [],
    "values": lambda: {"weight": lm.zeros((3, 4))}, "inputs": lambda: _x(2, 4), "x": lambda: _x(3, 4),
    "device": lambda: "cpu", "exponent": lambda: 2.0, "examples": lambda: _x(3), "wrt": lambda: [], "seed": lambda: 1,
    "threshold": lambda: 0.5, "value": lambda: 0.0, "ceiling": lambda: 6.0, "norm_type": lambda: 2.0,
    "num_embeddings": lambda: 5, "embedding_dim": lambda: 3, "num_layers": lambda: 1,
    "schedulers": lambda: [optim.lr_scheduler.StepLR(optim.SGD(_net(), lr=0.1), 2)],
    "mapping": lambda: {}, "tensors": lambda: _x(4, 2), "alpha": lambda: 1.0, "p": lambda: 0.5, "mode": lambda: True,
    "convert.model": _onnx,
    "degrees": lambda: 10, "bits": lambda: 3, "sharpness_factor": lambda: 2.0, "lambd": lambda: np.flipud,
    "reduction": lambda: "mean", "patience": lambda: 2, "monitor": lambda: "loss",
}  # fmt: skip
#: Arguments that a class requires.
NEEDED: dict[str, dict[str, Callable[[], Any]]] = {
    "FractionalMaxPool2d": {"output_size": lambda: 2},
    "FractionalMaxPool3d": {"output_size": lambda: 2},
    "GaussianBlur": {"kernel_size": lambda: 3},
    "Regularized": {"optimizer": lambda: optim.SGD(lr=0.1)},
    "OneCycleLR": {"total_steps": lambda: 5},
    "functional_call": {"inputs": lambda: _x(2, 4)},
    "SequentialLR": {"milestones": list},
    "Upsample": {"scale_factor": lambda: 2},
    "UpsamplingBilinear2d": {"scale_factor": lambda: 2},
    "UpsamplingNearest2d": {"scale_factor": lambda: 2},
}
#: Arguments of an instance's call, by class: those of its forward function or `__call__`.
CALLED: dict[str, Callable[[], tuple[Any, ...]]] = {}
for _name in ("Linear", "LazyLinear", "LayerNorm", "RMSNorm", "GLU", "Identity", "Softmax", "ReLU", "PReLU"):
    CALLED[_name] = lambda: (_x(2, 4),)
for _name in (
    "Conv",
    "LazyConv",
    "MaxPool",
    "AvgPool",
    "BatchNorm",
    "InstanceNorm",
    "AdaptiveAvgPool",
    "ConstantPad",
):
    for _rank in (1, 2, 3):
        CALLED[f"{_name}{_rank}d"] = lambda rank=_rank: (_x(2, 4, *(4,) * rank),)
for _name in ("RNN", "LSTM", "GRU", "PeepholeLSTM"):
    CALLED[_name] = lambda: (_x(4, 2, 3), None)
for _name in ("RNNCell", "LSTMCell", "GRUCell", "PeepholeLSTMCell"):
    CALLED[_name] = lambda: (_x(2, 3), None)
CALLED |= {
    "MultiheadAttention": lambda: (_x(3, 2, 4),) * 3,
    "TransformerEncoderLayer": lambda: (_x(3, 2, 4), None, None),
    "TransformerDecoderLayer": lambda: (_x(3, 2, 4), _x(3, 2, 4), None),
    "TransformerEncoder": lambda: (_x(3, 2, 4), None),
    "TransformerDecoder": lambda: (_x(3, 2, 4), _x(3, 2, 4)),
    "Transformer": lambda: (_x(3, 2, 4), _x(3, 2, 4), None),
    "Embedding": lambda: (np.array([[0, 1], [2, 3]]),),
    "EmbeddingBag": lambda: (np.array([[0, 1], [2, 3]]), None),
    "CrossEntropyLoss": lambda: (_x(4, 3), np.array([0, 1, 2, 1])),
    "NLLLoss": lambda: (_x(4, 3), np.array([0, 1, 2, 1])),
    "CTCLoss": lambda: (_x(5, 2, 4), np.array([[1, 2], [1, 3]]), [5, 4], [2, 1]),
    "TripletMarginLoss": lambda: (_x(2, 4),) * 3,
    "Bilinear": lambda: (_x(2, 4), _x(2, 4)),
    "Predictor": lambda: (_x(2, 4),),
    "Inferer": lambda: (_x(2, 4),),
    "OnnxGraph": lambda: ({"x": _x(2, 3)},),
    "Flatten": lambda: (_x(2, 3, 4),),
}
#: Methods common to a kind of class, each tried on one of its classes.
METHODS = {
    "nn.Linear": nn.Module,
    "nn.Sequential": nn.Sequential,
    "optim.SGD": optim.Optimizer,
    "optim.lr_scheduler.StepLR": optim.lr_scheduler.LRScheduler,
}
#: Methods called by the library and written by users: of callbacks, metrics, schedules and optimizers.
WRITTEN = {
    "train.callbacks": {"begin", "step", "epoch", "end", "state_dict", "load_state_dict"},
    "train.metrics": {"sums", "merge", "result", "of_counts", "of_difference"},
    "optim": {"init", "update", "first", "factor", "get_lr", "rate"},
    "infer": {"program", "traced", "compiled", "known", "made", "spec_of", "policy", "flattened"},
    "data.transforms": {"mix", "changed"},
    "lamina": {"same_memory"},
}
#: Methods that users do not call, or that run for long.
NOT_CALLED = {"generators", "masters", "wait", "close", "ask", "cuda"}


class Target(NamedTuple):
    """A callable: `make` gives the function, its parameters without `self`, and an instance if it has one."""

    name: str
    area: str
    parameters: tuple[inspect.Parameter, ...]
    function: Callable[[], Callable[..., Any]]
    given: Callable[[], tuple[Any, ...]] | None = None


def _parameters(function: Any, drop: int = 0) -> tuple[inspect.Parameter, ...]:
    try:
        return tuple(inspect.signature(function).parameters.values())[drop:]
    except ValueError:
        return ()


@cache
def targets() -> tuple[Target, ...]:
    """Every public function, constructor, method and `__call__`."""
    found: list[Target] = []
    for area, names in MODULES.items():
        for name in names:
            module = importlib.import_module(f"lamina.{name}".rstrip("."))
            for key in getattr(module, "__all__", None) or _own(module):
                full = f"{name or 'lamina'}.{key}"
                value = getattr(module, key)
                if full not in LEFT_OUT and not getattr(value, "__module__", "").startswith(
                    "lamina.nn.models."
                ):
                    found += _of(full, area, value)
    return tuple(found)


def _own(module: types.ModuleType) -> list[str]:
    return [
        n for n, v in vars(module).items() if n[0] != "_" and getattr(v, "__module__", "") == module.__name__
    ]


def _of(full: str, area: str, value: Any) -> Iterator[Target]:
    if inspect.isfunction(value) or (callable(value) and not inspect.isclass(value) and not _is_type(value)):
        yield Target(full, area, _parameters(value), lambda: value)
    if not inspect.isclass(value) or issubclass(value, BaseException) or not _parameters_known(value):
        return
    yield Target(full, area, _parameters(value), lambda: value)
    if inspect.isabstract(value) or getattr(value, "_is_protocol", False):
        return
    make = partial(_instance, value, area)
    for name, method in sorted({**vars(METHODS.get(full, object)), **vars(value)}.items()):
        written = any(full.startswith(kind) and name in names for kind, names in WRITTEN.items())
        if (
            inspect.isfunction(method)
            and name[0] != "_"
            and name not in NOT_CALLED | {"forward"}
            and not written
        ):
            yield Target(
                f"{full}().{name}", area, _parameters(method, 1), lambda name=name: getattr(make(), name)
            )
    call = getattr(value, "forward", None) or vars(value).get("__call__")
    if call is not None:
        yield Target(f"{full}()()", area, _parameters(call, 1), make, CALLED.get(value.__name__))


def _is_type(value: Any) -> bool:
    return getattr(value, "__module__", "") in ("typing", "types", "collections.abc")


def _parameters_known(value: type) -> bool:
    try:
        inspect.signature(value)
    except ValueError:
        return False
    return True


def _instance(kind: type, area: str) -> Any:
    """A valid instance."""
    args, options = arguments(_parameters(kind), area)
    needed = {name: value() for name, value in NEEDED.get(kind.__name__, {}).items()}
    places = [p.name for p in _parameters(kind) if p.kind is p.POSITIONAL_OR_KEYWORD]
    for place, name in enumerate(places[: len(args)]):
        args[place] = needed.pop(name, args[place])
    return kind(*args, **{**options, **needed})


def arguments(parameters: Sequence[inspect.Parameter], area: str) -> tuple[list[Any], dict[str, Any]]:
    """Plausible arguments, positional and keyword."""
    args: list[Any] = []
    options: dict[str, Any] = {}
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            args += [BY_NAME[p.name]()] if p.name in BY_NAME and p.name != "modules" else []
        elif p.kind is p.KEYWORD_ONLY:
            options[p.name] = plausible(p, area)
        elif p.kind is not p.VAR_KEYWORD:
            args.append(plausible(p, area))
    return args, options


def plausible(p: inspect.Parameter, area: str) -> Any:
    """A plausible argument for a parameter."""
    for name in (f"{area}.{p.name}", p.name):
        if (p.default is p.empty and name in BY_NAME) or name == "device":
            return BY_NAME[name]()
    if p.default is not p.empty:
        return p.default
    note = str(p.annotation)
    for word, value in (("int", 2), ("float", 0.5), ("bool", True), ("str", "mean"), ("Callable", _square)):
        if word in note:
            return value
    return _x(4, 3)


def foreign() -> list[Any]:
    """More nonsense: objects of the library in the wrong place."""
    return [
        nn.Linear(2, 2), nn.Linear, optim.SGD(lr=0.1), lm.trace(_square, _x(3)), lm.Spec((2,), lm.float32), _square,
        (x for x in range(2)), [nn.Linear(2, 2)], {"x": lm.ones(2)}, [_x(2), _x(3)], "cpu",
        np.zeros((3, 4), np.int64),
        lm.nn.Parameter(_x(2)), Path("there"), np.ones((2, 3), bool), [1.0, "a"], -0.5, "sum", lambda: None,
    ]  # fmt: skip


def make(seed: int, k: int) -> tuple[str, Callable[[], Any], list[Any], dict[str, Any]]:
    """Call k of a seed: its name, a factory of the function, the positional and keyword arguments."""
    rng = np.random.default_rng((seed, k))
    every = targets()
    target = every[k % len(every)]
    if target.given is None:
        args, options = arguments(target.parameters, target.area)
    else:
        args, options = list(target.given()), {}
    bad = nonsense() + foreign()
    for _ in range(int(rng.integers(1, 3))):
        value = bad[int(rng.integers(len(bad)))]
        places: list[Any] = [*range(len(args)), *options]
        if not places or rng.random() < 0.03:
            args.append(value)
        elif isinstance(place := places[int(rng.integers(len(places)))], int):
            args[place] = value
        else:
            options[place] = value
    return target.name, target.function, args, options


class TookTooLong(BaseException):
    """A call ran longer than `PATIENCE`."""


def _alarm(*_: Any) -> None:
    raise TookTooLong


def check(seed: int, k: int) -> tuple[str, str]:
    """(outcome, fault or ""): the outcome is "taken" or the error's type."""
    lm.manual_seed(0)
    name, function, args, options = make(seed, k)
    text = f"{name}{_shown(args, options)}"
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            found = function()(*args, **options)
            if isinstance(found, types.GeneratorType):
                next(found, None)
            if hasattr(found, "close") and not isinstance(found, type):
                found.close()
    except DOCUMENTED as error:
        return type(error).__name__, "" if str(error) else f"{text}: {type(error).__name__} without a message"
    except TookTooLong:
        return "too long", f"{text}: takes longer than {PATIENCE} s"
    except Exception as error:
        if isinstance(error, AttributeError) and name.endswith(NAMED):
            return "AttributeError", ""
        return type(error).__name__, f"{text}: {type(error).__name__}: {str(error)[:150]}"
    return "taken", ""


def what_is_held() -> dict[str, int]:
    """Threads, open files and bytes of memory of this process."""
    gc.collect()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    held = Device("cpu").statistics().in_use
    return {"threads": threading.active_count(), "files": files, "bytes": held}


def run(seed: int, calls: Sequence[int]) -> dict[str, Any]:
    """Run the calls in this process: the count of each outcome, and the faults."""
    targets()  # imports are not part of a call
    signal.signal(signal.SIGALRM, _alarm)
    outcomes: Counter[str] = Counter()
    wrong = []
    for k in calls:
        print(k, file=sys.stderr, flush=True)
        signal.setitimer(signal.ITIMER_REAL, PATIENCE)
        outcome, problem = check(seed, k)
        signal.setitimer(signal.ITIMER_REAL, 0)
        outcomes[outcome] += 1
        if problem:
            wrong.append(f"--seed {seed} --only {k}: {problem}")
    return {"outcomes": outcomes, "wrong": wrong, "held": what_is_held()}


def in_process(seed: int, calls: range) -> dict[str, Any]:
    """`run` in a process of its own, in an empty folder; if the process dies, the call is named."""
    code = f"import json; from tests.helpers.bad_public_calls import run; print(json.dumps(run({seed}, {calls!r})))"
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True,
            text=True, stdin=subprocess.DEVNULL, timeout=60 + 2 * len(calls),
        )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        last = next((line for line in reversed(lines) if line.isdigit()), "?")
        return {
            "outcomes": {"ended": 1},
            "wrong": [f"--seed {seed} --only {last}: the process ends ({done.returncode}): {lines[-1:]}"],
            "held": {},
        }
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 1 if there is a faulty call."""
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.bad_public_calls", description=__doc__)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--count", default=1000, type=int)
    parser.add_argument("--only", type=int)
    options = parser.parse_args(argv)
    if options.only is not None:
        print(check(options.seed, options.only))
        return 0
    ends: Counter[str] = Counter()
    wrong: list[str] = []
    for first in range(0, options.count, 500):
        result = in_process(options.seed, range(first, min(first + 500, options.count)))
        ends.update(result["outcomes"])
        wrong += result["wrong"]
        print(first, result["held"], *result["wrong"], sep="\n", flush=True)
    print(f"{ends.total()} calls: {dict(ends.most_common())}; {len(wrong)} end as they should not")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
