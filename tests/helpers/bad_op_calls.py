"""Generated bad calls over every public function of `lamina.ops`, Tensor's methods and `lamina` itself.

    python -m tests.helpers.bad_op_calls --count 20000
    python -m tests.helpers.bad_op_calls --seed 3 --only 417          one call again

A call takes a plausible call's arguments and replaces one or two of them by nonsense values. It may
succeed, or raise one of the documented errors; an internal AttributeError, KeyError, RecursionError, … is a
fault, and so is an error without a message.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import lamina as lm
from lamina import ops
from lamina.runtime import NoGpuError

#: Permitted errors for invalid arguments.
DOCUMENTED = (TypeError, ValueError, IndexError, NotImplementedError, MemoryError, NoGpuError)
#: Errors of DLPack exporters for arrays that they cannot describe.
FOREIGN = {"lamina.from_dlpack": BufferError}
#: Public names that are no functions of values: they take functions, files or devices, or run for long.
LEFT_OUT = {
    "fit",
    "train_step",
    "evaluate",
    "load_safetensors",
    "load_torch",
    "load_weights",
    "save_safetensors",
    "save_torch",
    "save_weights",
    "policy",
    "compile",
    "jit",
}


class Odd:
    """A useless object."""

    def __repr__(self) -> str:
        return "Odd()"


def nonsense() -> list[Any]:
    """Values of kinds that a parameter may not expect."""
    return [
        None, True, False, -1, -7, 0, 3, 10**30, 0.5, float("nan"), float("inf"), -float("inf"), 1j, "", "x",
        "float7", b"1", (), (1,), (1, 2, 3, 4, 5, 6, 7), (-1, -1), ("a",), [None], [[1], [2, 3]], {}, {"a": 1},
        {1, 2}, object, Odd(), len, ..., slice(1), np.array(["a"]), np.zeros((0,)), np.zeros((2, 3), np.int8),
        np.array(None), np.zeros((1,) * 9, np.float32), np.float64("nan"), lm.float32, int, lm.zeros(3, dtype="bool"),
        np.zeros(2, np.complex64), lm.ones((2, 3, 4, 5)), (0.5, 0.5), range(3), np.iinfo(np.int64).min,
    ]  # fmt: skip


def plausible(name: str, parameter: inspect.Parameter, rng: np.random.Generator) -> Any:
    """An argument that a parameter of this name may accept."""
    floats = rng.standard_normal((2, 3, 4, 4)).astype(np.float32)
    by_name: dict[str, Any] = {
        "weight": floats[:, :, :3, :3], "dim": 1, "dim0": 0, "dim1": 1, "dims": (0, 1), "kernel_size": 2,
        "shape": (6, 16), "size": (2, 3, 4, 4), "target": floats, "num_classes": 3, "p": 0.5, "dtype": "float32",
        "tensors": [floats, floats], "running_mean": np.zeros(3, np.float32), "exponent": 2.0, "block": 2,
        "running_var": np.ones(3, np.float32), "normalized_shape": 4, "num_groups": 3, "output_size": 2,
        "state": np.zeros(2, np.int64), "condition": floats > 0, "pad": (1, 1), "chunks": 2, "hi": 6.0, "scale": 2,
        "split_size_or_sections": 1, "upscale_factor": 1,
    }  # fmt: skip
    if name in by_name:
        return by_name[name]
    return floats if parameter.default is parameter.empty else parameter.default


def targets() -> dict[str, Callable[..., Any]]:
    """Every public function, method and constructor by name."""
    found: dict[str, Callable[..., Any]] = {f"ops.{n}": getattr(ops, n) for n in ops.__all__}
    for name in sorted(dir(lm.Tensor)):
        method = getattr(lm.Tensor, name)
        if not name.startswith("_") and callable(method):
            found[f"Tensor.{name}"] = method
    for name in lm.__all__:
        value = getattr(lm, name)
        if inspect.isfunction(value) and name not in LEFT_OUT:
            found[f"lamina.{name}"] = value
    return found


def make(seed: int, k: int) -> tuple[str, Callable[..., Any], list[Any], dict[str, Any]]:
    """Call k of a seed: its name, the function, the positional and keyword arguments."""
    rng = np.random.default_rng((seed, k))
    every = targets()
    name = list(every)[k % len(every)]
    function = every[name]
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    args: list[Any] = [lm.tensor(rng.standard_normal((2, 3, 4, 4)))] if name.startswith("Tensor.") else []
    options: dict[str, Any] = {}
    for p in parameters:
        value = plausible(p.name, p, rng)
        if p.kind is p.VAR_POSITIONAL:
            args.append(1)
        elif p.kind is p.KEYWORD_ONLY or (p.default is not p.empty and p.kind is p.POSITIONAL_OR_KEYWORD):
            options[p.name] = value
        elif p.kind is not p.VAR_KEYWORD:
            args.append(value)
    for _ in range(int(rng.integers(1, 3))):
        _spoil(args, options, int(name.startswith("Tensor.")), rng)
    return name, function, args, options


def _spoil(args: list[Any], options: dict[str, Any], first: int, rng: np.random.Generator) -> None:
    """Replace one argument by a nonsense value, except the tensor of a method."""
    bad = nonsense()
    value = bad[int(rng.integers(len(bad)))]
    places: list[Any] = [*range(first, len(args)), *options]
    place = places[int(rng.integers(len(places)))] if places else None
    if place is None:
        args.append(value)
    elif isinstance(place, int):
        args[place] = value
    else:
        options[place] = value


def check(seed: int, k: int) -> tuple[str, str]:
    """(outcome, fault or ""): the outcome is "taken" or the error's type."""
    name, function, args, options = make(seed, k)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(*args, **options)
    except DOCUMENTED as error:
        return type(error).__name__, "" if str(error) else f"{name}: an error without a message"
    except Exception as error:
        if isinstance(error, FOREIGN.get(name, ())):
            return type(error).__name__, ""
        return type(error).__name__, f"{name}{_shown(args, options)}: {type(error).__name__}: {error}"
    return "taken", ""


def _shown(args: Sequence[Any], options: dict[str, Any]) -> str:
    parts = [*(_short(a) for a in args), *(f"{k}={_short(v)}" for k, v in options.items())]
    return f"({', '.join(parts)})"


def _short(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"array{list(shape)}" if shape else repr(value)[:40]


def faults(seed: int, calls: Sequence[int]) -> Iterator[str]:
    """One line for each faulty call."""
    for k in calls:
        _, problem = check(seed, k)
        if problem:
            yield f"python -m tests.helpers.bad_op_calls --seed {seed} --only {k}   # {problem}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 1 if there is a faulty call."""
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.bad_op_calls", description=__doc__)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--count", default=1000, type=int)
    parser.add_argument("--only", type=int)
    options = parser.parse_args(arguments)
    ends: Counter[str] = Counter()
    wrong = 0
    for k in range(options.count) if options.only is None else [options.only]:
        outcome, problem = check(options.seed, k)
        ends[outcome] += 1
        if problem:
            wrong += 1
            print(f"--seed {options.seed} --only {k}: {problem}")
    print(f"{ends.total()} calls: {dict(ends.most_common())}; {wrong} end as they should not")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
