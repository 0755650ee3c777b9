"""PyTorch's own samples of its modules (ModuleInfo), given to `lamina.nn` and to torch: agreement, refusal or fault.

    python -m tests.judges.moduleinfo              the table, by module
    python -m tests.judges.moduleinfo write        writes tests/judges/moduleinfo_table.json, which a test holds
    python -m tests.judges.moduleinfo show Conv2d  each sample of one module that is refused or wrong

A module of `torch.testing._internal.common_modules.module_db` counts if a class of its name is in `lamina.nn`.
Compared are the outputs, the state afterwards, and the gradients of a weighted sum of the outputs by the inputs and
parameters.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina import nn, ops
from lamina._tree import flatten, leaves, unflatten
from tests.judges.opinfo import TYPED, Outcome, _mine, reason

TABLE = Path(__file__).with_name("moduleinfo_table.json")
#: Modules that torch does not differentiate by the second input.
FIRST_ALONE = ("SoftMarginLoss",)
#: Arguments that say where and how something is computed, not what: a network is moved as a whole.
ELSEWHERE = ("device", "dtype", "options")
#: Tolerance, relative and absolute: float32 through a few layers.
CLOSE = 2e-4


@cache
def entries() -> dict[str, Any]:
    """The modules that share a name."""
    from torch.testing._internal.common_modules import module_db

    named = {info.module_cls.__name__: info for info in module_db}
    return {name: info for name, info in sorted(named.items()) if name in nn.__all__}


def samples(name: str) -> Iterator[tuple[str, Any]]:
    """Each sample of a module with a description."""
    import torch

    info = entries()[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=True
        )
    for sample in found:
        made = sample.constructor_input
        text = ", ".join([*map(repr, made.args), *(f"{k}={v!r}" for k, v in made.kwargs.items())])
        yield f"{name}({text})", sample


def judge(name: str) -> Outcome:
    """All samples of a module."""
    outcome = Outcome()
    for text, sample in samples(name):
        verdict, why = compare(name, sample)
        if verdict == "agree":
            outcome.agree += 1
        elif verdict == "refused":
            outcome.refused[reason(why)] += 1
        else:
            outcome.wrong.append(f"{text}: {why}")
    return outcome


def compare(name: str, sample: Any) -> tuple[str, str]:
    """("agree", ""), ("refused", the error) or ("wrong", what differs) of one sample."""
    import torch

    made, given = sample.constructor_input, sample.forward_input
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = entries()[name].module_cls(*made.args, **made.kwargs)
        lazy = isinstance(theirs, torch.nn.modules.lazy.LazyModuleMixin)
        if lazy:  # the first call makes the parameters
            theirs(*given.args, **given.kwargs)
        _quiet(theirs)
        before = {k: v.detach().clone() for k, v in theirs.state_dict().items()}
        try:
            options = {k: _own(v) for k, v in made.kwargs.items() if k not in ELSEWHERE}
            mine = getattr(nn, name)(*map(_own, made.args), **options)
            if lazy:
                mine(*map(_mine, given.args), **{k: _mine(v) for k, v in given.kwargs.items()})
            _quiet(mine)
            mine.load_state_dict({k: v.numpy() for k, v in before.items()})
            outputs, slopes = _mine_run(mine, given)
        except TYPED as error:
            return "refused", f"{type(error).__name__}: {error}"
        except Exception as error:
            return "wrong", f"{type(error).__name__}: {error}"
        torch.manual_seed(1)
        wanted, wanted_slopes = _torch_run(theirs, given)
    states = [(v.numpy(), theirs.state_dict()[k].numpy()) for k, v in mine.state_dict().items()]
    for what, pairs in (
        ("output", zip(outputs, wanted, strict=False)),
        ("gradient", zip(slopes, wanted_slopes, strict=False)),
        ("state", states),
    ):
        for a, b in pairs:
            if what == "gradient" and all(np.isfinite(y).all() for y in wanted):
                b = np.where(np.isnan(b), a, b)  # a masked logarithm of a target below 0, in torch
            if problem := _difference(a, b):
                return "wrong", f"{what} {problem}"
    if (len(outputs), len(slopes)) != (len(wanted), len(wanted_slopes)):
        return (
            "wrong",
            f"{len(outputs)} outputs and {len(slopes)} gradients, torch {len(wanted)}, {len(wanted_slopes)}",
        )
    return "agree", ""


def _own(value: Any) -> Any:
    """An argument as Lamina takes it; a layer of torch's is a layer of the same arguments."""
    if type(value).__name__ != "TransformerEncoderLayer":
        return _mine(value)
    attention, first = value.self_attn, value.linear1
    return nn.TransformerEncoderLayer(
        attention.embed_dim,
        attention.num_heads,
        first.out_features,
        0.0,
        value.activation.__name__,
        value.norm1.eps,
        attention.batch_first,
        value.norm_first,
        first.bias is not None,
    )


def _quiet(module: Any) -> None:
    """No random masks: dropout layers drop nothing."""
    for part in module.modules():
        if type(part).__name__ == "Dropout":
            part.p = 0.0
        elif hasattr(part, "dropout") and isinstance(part.dropout, float):
            part.dropout = 0.0


def _weights(shape: tuple[int, ...], place: int) -> np.ndarray[Any, Any]:
    """What the outputs are summed up with."""
    return np.random.default_rng(place).standard_normal(shape).astype(np.float32)


def _mine_run(module: nn.Module, given: Any) -> tuple[list[Any], list[Any]]:
    """Outputs and gradients, by one compiled function."""
    arguments, options = [_mine(a) for a in given.args], {k: _mine(v) for k, v in given.kwargs.items()}

    @lm.jit
    def run(args: Any, kwargs: Any) -> Any:
        result = leaves(module(*args, **kwargs))
        sums = [ops.sum(y * _weights(y.shape, i)) for i, y in enumerate(result) if y.dtype.is_float]
        wrt = [x for x in leaves((args, kwargs)) if hasattr(x, "spec") and x.dtype.is_float]
        wrt = [*_differentiated(module, wrt), *module.parameters()]
        total = sum(sums[1:], sums[0]) if sums else None
        return result, [] if total is None else lm.gradients(total, wrt)

    outputs, slopes = run(arguments, options)
    return [y.numpy() for y in outputs], [g.numpy() for g in slopes]


def _differentiated(module: Any, inputs: list[Any]) -> list[Any]:
    """The inputs whose gradients both have."""
    return inputs[:1] if type(module).__name__ in FIRST_ALONE else inputs


def _torch_run(module: Any, given: Any) -> tuple[list[Any], list[Any]]:
    import torch

    found, structure = flatten((given.args, given.kwargs))
    inputs = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in found]
    args, kwargs = unflatten(structure, inputs)
    floats = [x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
    wrt = [x.requires_grad_() for x in _differentiated(module, floats)] + list(module.parameters())
    result = leaves(module(*args, **kwargs))
    sums = [
        (y * torch.from_numpy(_weights(tuple(y.shape), i))).sum()
        for i, y in enumerate(result)
        if y.is_floating_point()
    ]
    outputs = [y.detach().numpy() for y in result]
    if not any(s.requires_grad for s in sums):
        return outputs, [np.zeros(tuple(x.shape), np.float32) for x in wrt]
    slopes = torch.autograd.grad(sum(sums), wrt, allow_unused=True)
    filled = [torch.zeros_like(x) if g is None else g for g, x in zip(slopes, wrt, strict=True)]
    return outputs, [g.numpy() for g in filled]


def _difference(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> str:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"is {ours.dtype}{list(ours.shape)}, torch's {theirs.dtype}{list(theirs.shape)}"
    close = np.isclose(ours.astype(np.float64), theirs.astype(np.float64), CLOSE, CLOSE, equal_nan=True)
    return "" if close.all() else f"differs in {int((~close).sum())} of {close.size} elements"


def table() -> dict[str, Outcome]:
    """Every module."""
    return {name: judge(name) for name in entries()}


def as_json(outcomes: dict[str, Outcome]) -> dict[str, dict[str, int]]:
    """What the committed file holds: by module the number that agree, and of refusals by reason."""
    return {name: {"agree": o.agree, **dict(sorted(o.refused.items()))} for name, o in outcomes.items()}


def totals(outcomes: dict[str, Outcome]) -> tuple[int, int, int]:
    """Samples that agree, are refused, are wrong."""
    every = outcomes.values()
    return (
        sum(o.agree for o in every),
        sum(o.refused.total() for o in every),
        sum(len(o.wrong) for o in every),
    )


def main(argv: list[str]) -> int:
    """The command line."""
    if argv[:1] == ["show"]:
        for text, sample in samples(argv[1]):
            verdict, why = compare(argv[1], sample)
            if verdict != "agree":
                print(verdict, text, "->", why)
        return 0
    outcomes = table()
    for name, o in outcomes.items():
        print(f"{name:28} agree {o.agree:4}  refused {o.refused.total():4}  wrong {len(o.wrong):3}")
    print(f"{len(outcomes)} modules; agree, refused, wrong: {totals(outcomes)}")
    if argv == ["write"]:
        TABLE.write_text(json.dumps(as_json(outcomes), indent=1) + "\n", encoding="utf-8")
    return int(totals(outcomes)[2] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
