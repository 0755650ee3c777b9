"""PyTorch's own samples of its operators (OpInfo), given to `lamina.ops` and to torch: agreement, refusal or fault.

    python -m tests.judges.opinfo                 the table, by entry
    python -m tests.judges.opinfo write           writes tests/judges/opinfo_refusals.json, which a test holds
    python -m tests.judges.opinfo show conv2d     each sample of one entry that is refused or wrong
    python -m tests.judges.opinfo … bfloat16      in another dtype; written into the same file
    python -m tests.judges.opinfo on cuda SAMPLES SECONDS JOBS    on a GPU: at most so many samples of each entry

An entry of `torch.testing._internal.common_methods_invocations.op_db` counts if a function of its name is in
`lamina.ops` or `lamina`, or a method of its name on `Tensor`. At most SAMPLES samples of an entry are taken, in the
dtype if the entry takes it, else in int64 or bool. Where torch has gradients, those of a weighted sum of the results
are compared too.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina import ops
from tests.judges.beside import judged

#: The most samples of an entry, by dtype.
SAMPLES = {"float32": 150, "float64": 30, "bfloat16": 30}
REFUSALS = Path(__file__).with_name("opinfo_refusals.json")
#: Where Lamina's tensors are.
DEVICE = "cpu"
#: What a refusal is: the documented errors.
TYPED = (TypeError, ValueError, IndexError, NotImplementedError)
#: Entries whose sample holds the second argument first.
SWAPPED = ("where", "nn.functional.embedding", "nn.functional.embedding_bag", "einsum", "polygamma")
#: Entries whose function draws random numbers in torch, or gives memory that means nothing.
NO_VALUES = (
    "nn.functional.dropout", "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.alpha_dropout",
    "nn.functional.feature_alpha_dropout", "nn.functional.fractional_max_pool2d",
    "nn.functional.fractional_max_pool3d", "nn.functional.rrelu", "empty", "empty_like", "new_empty", "rand_like",
    "randn_like", "randint_like", "randint", "randn", "bernoulli", "multinomial", "normal", "uniform", "exponential",
    "cauchy", "geometric", "log_normal",
)  # fmt: skip
#: Entries whose gradients may differ: equal elements share theirs here, or are undefined in torch. Where
#: indices meet, only the element that is written last has a gradient here, all of them in torch 2.13.
NO_GRADIENTS = (
    "nn.functional.max_unpool1d",
    "nn.functional.max_unpool2d",
    "nn.functional.max_unpool3d",
    "max",
    "min",
    "median",
    "nanmedian",
    "cummax",
    "cummin",
    "sort",
    "topk",
    "kthvalue",
    "mode",
    "scatter",
    "cholesky_inverse",  # torch's has numbers in the triangle that the function does not read
    "cholesky_solve",
)
#: Entries that give indices, of any of equal elements in torch: half types have many.
UNSTABLE = ("argsort", "mode", "sort", "topk")
#: Entries with elements that are equal in half types alone, and share their gradient here.
TIED = ("msort",)
#: Entries that torch rounds to half types on the way (coordinates, some to the neighbour; powers, to NaN): compared
#: with its float32.
ROUNDED = ("nn.functional.grid_sample", "matrix_exp")
#: Names of torch.linalg that are the same function as here.
LINALG = ("cross", "diagonal", "vector_norm")
#: The error that is allowed, of the largest element.
SLACK = {"float64": 1e-7, "float32": 2e-5, "float16": 1e-2, "bfloat16": 4e-2}


@dataclass
class Outcome:
    """How the samples of one entry came out; gradients: how many of those that agree have gradients that agree."""

    agree: int = 0
    gradients: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


@cache
def entries() -> dict[str, tuple[Any, Callable[..., Any]]]:
    """The entries that share a name, with Lamina's function; a variant is named as in torch, "pow.int"."""
    from torch.testing._internal.common_methods_invocations import op_db

    found = {}
    for entry in op_db:
        short = entry.name.rsplit(".", 1)[-1]
        mine = _function(entry.name, short)
        if mine is not None and entry.name != "istft":  # its samples are complex
            variant = f".{entry.variant_test_name}" if entry.variant_test_name else ""
            found[entry.name + variant] = (entry, mine)
    return found


def _function(name: str, short: str) -> Callable[..., Any] | None:
    """A function of lamina.ops or lamina, or a method of Tensor, of a torch.*, nn.functional.* or Tensor name."""
    place = name.removesuffix(short).rstrip(".")
    if place not in ("", "nn.functional") and not (place == "linalg" and short in LINALG):
        return None
    if short in ops.__all__ and name != "unfold":  # torch's method of this name is a sliding window
        return getattr(ops, short)
    if name in lm.__all__ and callable(getattr(lm, name)):
        return getattr(lm, name)
    method = getattr(lm.Tensor, short, None)
    return method if callable(method) and not short.startswith("_") else None


def judge(name: str, dtype: str = "float32") -> Outcome:
    """All samples of an entry."""
    outcome = Outcome()
    for sample in samples(name, dtype):
        verdict, text = compare(name, sample)
        if verdict == "refused":
            outcome.refused[reason(text)] += 1
        elif verdict == "wrong":
            outcome.wrong.append(text)
        else:
            outcome.agree += 1
            outcome.gradients += verdict == "with gradient"
    return outcome


def judge_on(device: str, count: int, name: str) -> Outcome:
    """At most `count` samples of an entry, on a device."""
    global DEVICE
    DEVICE, SAMPLES["float32"] = device, count
    return judge(name)


def samples(name: str, dtype: str = "float32") -> Iterator[Any]:
    """The samples of an entry in a dtype, or in whole numbers where it takes only those."""
    import torch

    entry, _ = entries()[name]
    torch.manual_seed(0)
    taken = [kind for kind in (getattr(torch, dtype), torch.int64, torch.bool) if kind in entry.dtypes]
    if not taken or (taken[0].is_floating_point is False and dtype != "float32"):
        return
    differentiable = taken[0].is_floating_point and entry.supports_autograd
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from islice(entry.sample_inputs("cpu", taken[0], requires_grad=differentiable), SAMPLES[dtype])


def compare(name: str, sample: Any) -> tuple[str, str]:
    """("agree" or "with gradient", ""), ("refused", the error) or ("wrong", what differs) of one sample."""
    entry, function = entries()[name]
    given = [_mine(v) for v in (sample.input, *sample.args)]
    if entry.name in SWAPPED:
        given[:2] = given[1::-1]
    options = {k: _mine(v) for k, v in sample.kwargs.items() if not _is_usual(k, v)}
    options.pop("return_complex", None)  # complex numbers are a last axis of two here
    try:
        found = function(*given, **options)
    except TYPED as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "wrong", f"{_shown(sample)}: {type(error).__name__}: {error}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = _real(_wanted(entry, sample))
    if entry.name in NO_VALUES or sample.kwargs.get("dropout_p"):
        return "agree", ""
    if entry.name in UNSTABLE and sample.input.dtype.itemsize < 4:
        found, wanted = (y[0] if isinstance(y, tuple) else y.shape for y in (found, wanted))
    problem = _difference(found, wanted)
    if problem:
        return "wrong", f"{_shown(sample)}: {problem}"
    tied = entry.name in TIED and _tensors(sample.input)[0].dtype.itemsize < 4
    if (
        tied
        or entry.name.endswith("_")
        or entry.name in NO_GRADIENTS
        or not any(y.requires_grad for y in _tensors(wanted))
    ):
        return "agree", ""
    problem = _gradient_difference(entry, function, given, options, sample)
    return ("wrong", f"{_shown(sample)}: gradient: {problem}") if problem else ("with gradient", "")


def _wanted(entry: Any, sample: Any) -> Any:
    """What torch gives."""
    import torch

    given = (sample.input, *sample.args)
    if entry.name not in ROUNDED or sample.input.dtype.itemsize >= 4:
        return entry.op(*given, **sample.kwargs)
    wide = [x.float() if isinstance(x, torch.Tensor) else x for x in given]
    return entry.op(*wide, **sample.kwargs).to(sample.input.dtype)


def _gradient_difference(
    entry: Any, function: Callable[..., Any], given: list[Any], options: dict[str, Any], sample: Any
) -> str:
    """What differs between the gradients of a weighted sum of the results, "" when nothing does."""
    slopes, weights, numbers = _slopes(entry, sample)
    theirs = _tensors((sample.input, *sample.args))
    order = [given[1], given[0], *given[2:]] if entry.name in SWAPPED else given
    mine = [x for x, t in zip(_lamina_tensors(order), theirs, strict=True) if t.requires_grad]

    def chosen(*values: Any) -> Any:
        replaced = dict(zip(map(id, mine), values, strict=True))
        made = _lamina_tensors(function(*_replaced(given, replaced), **options))
        return tuple(made[number] for number in numbers)

    try:
        _, pull = lm.vjp(chosen, *mine)
        found = pull(tuple(_mine(w).to(dtype=y.dtype) for w, y in zip(weights, chosen(*mine), strict=True)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    problem = _difference(found, slopes)
    return problem if problem and not _as_near(found, slopes, entry, sample) else ""


def _slopes(entry: Any, sample: Any) -> tuple[tuple[Any, ...], list[Any], list[int]]:
    """torch's gradients of a weighted sum of the results, the weights, and which results have gradients."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = _tensors(_real(entry.op(sample.input, *sample.args, **sample.kwargs)))
    numbers = [number for number, y in enumerate(results) if y.requires_grad]
    rng = np.random.default_rng(0)
    weights = [
        torch.tensor(rng.standard_normal(tuple(results[n].shape)), dtype=torch.float32).to(results[n].dtype)
        for n in numbers
    ]
    wrt = [x for x in _tensors((sample.input, *sample.args)) if x.requires_grad]
    found = torch.autograd.grad([results[n] for n in numbers], wrt, weights, allow_unused=True)
    return (
        tuple(torch.zeros_like(x) if g is None else g for g, x in zip(found, wrt, strict=True)),
        weights,
        numbers,
    )


def _as_near(found: Any, slopes: Any, entry: Any, sample: Any) -> bool:
    """Whether gradients are at most four times as far from torch's in float64 as its own of this dtype are."""
    import torch

    def wide(x: Any) -> Any:
        kept = not isinstance(x, torch.Tensor) or not x.is_floating_point()
        return x if kept else x.detach().double().requires_grad_(x.requires_grad)

    try:
        exact, _, _ = _slopes(entry, sample.transform(wide))
    except RuntimeError:  # torch has it in the sample's own dtype alone
        return False
    for own, theirs, g in zip(found, slopes, exact, strict=True):
        g = g.double()
        error = np.abs(own.numpy().astype(np.float64) - g.numpy()).max(initial=0)
        allowed = 4 * np.abs(theirs.double().numpy() - g.numpy()).max(initial=0)
        if np.isnan(allowed) and g.isfinite().all():  # torch's own is lost
            allowed = SLACK[str(theirs.dtype).removeprefix("torch.")] * float(g.abs().max())
        if not error <= allowed:
            return False
    return True


def _replaced(value: Any, by: dict[int, Any]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_replaced(v, by) for v in value)
    return by.get(id(value), value)


def _tensors(value: Any) -> list[Any]:
    """The tensors of torch in nested sequences."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    return [x for v in value for x in _tensors(v)] if isinstance(value, (tuple, list)) else []


def _lamina_tensors(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [x for v in value for x in _lamina_tensors(v)]
    return [value] if hasattr(value, "spec") else []


def _real(value: Any) -> Any:
    """A tensor of complex numbers as one of real and imaginary parts; anything else as it is."""
    import torch

    both = isinstance(value, torch.Tensor) and value.is_complex()
    return torch.view_as_real(value.resolve_conj()) if both else value


def _mine(value: Any) -> Any:
    """A sample's argument as Lamina takes it: tensors and dtypes are its own, sequences and numbers stay."""
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        if plain.dtype == torch.bfloat16:
            return lm.tensor(plain.float().numpy(), device=DEVICE).to(dtype="bfloat16")
        return lm.tensor(plain.numpy(), device=DEVICE)
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_mine, value)) if type(value) in (tuple, list) else tuple(map(_mine, value))
    return value


def _is_usual(name: str, value: Any) -> bool:
    """Whether an option only says of the storage what is always so here."""
    import torch

    usual = (torch.strided, torch.contiguous_format, torch.preserve_format)
    return (
        value in usual
        if name in ("layout", "memory_format")
        else name in ("pin_memory", "requires_grad") and not value
    )


def _difference(found: Any, wanted: Any) -> str:
    """What differs, "" when nothing does."""
    import torch

    if isinstance(wanted, (tuple, list)):
        if not isinstance(found, (tuple, list)) or len(found) < len(wanted):
            return f"gives {type(found).__name__}, torch {len(wanted)} results"
        pairs = zip(found, wanted, strict=False)
        return next((text for a, b in pairs if (text := _difference(a, b))), "")
    if not isinstance(wanted, torch.Tensor) or not isinstance(found, lm.Tensor):
        return "" if found == wanted else f"gives {found!r}, torch {wanted!r}"
    kind, shape = str(wanted.dtype).removeprefix("torch."), tuple(wanted.shape)
    wider = (str(found.dtype), kind) == ("float32", "bfloat16")  # losses are kept in float32
    if (str(found.dtype) != kind and not wider) or found.shape != shape:
        return f"gives {found.spec}, torch {kind}{list(shape)}"
    ours = found.numpy().astype(np.complex128 if wanted.is_complex() else np.float64)
    theirs = (
        wanted.detach()
        .resolve_conj()
        .to(torch.complex128 if wanted.is_complex() else torch.float64)
        .numpy(force=True)
    )
    slack = SLACK.get(kind, 0.0)
    most = np.abs(theirs[np.isfinite(theirs)]).max(initial=1.0)
    close = np.isclose(ours, theirs, slack, slack * most, equal_nan=True)
    return "" if close.all() else f"{int((~close).sum())} of {close.size} elements differ"


def reason(text: str) -> str:
    """An error without what changes from sample to sample."""
    text = re.sub(r"\b[fibu]\d+\[[^\]]*\]", "…", text.split("\n")[0])
    text = re.sub(r"got .*", "got …", text)
    text = re.sub(r"-?\d+(\.\d+)?(e[+-]?\d+)?", "#", text)
    return text[:160]


def _shown(sample: Any) -> str:
    import torch

    def one(v: Any) -> str:
        return f"{v.dtype}{list(v.shape)}".removeprefix("torch.") if isinstance(v, torch.Tensor) else repr(v)

    given = [one(v) for v in (sample.input, *sample.args)]
    return ", ".join([*given, *(f"{k}={one(v)}" for k, v in sample.kwargs.items())])


def table(dtype: str = "float32") -> dict[str, Outcome]:
    """Every entry."""
    return {name: judge(name, dtype) for name in sorted(entries())}


def refusals(outcomes: dict[str, Outcome]) -> dict[str, dict[str, int]]:
    """What the committed file holds: by entry how many agree, how many with gradients, and the refusals by reason."""
    return {
        name: {"agree": o.agree, "gradients": o.gradients, **dict(sorted(o.refused.items()))}
        for name, o in sorted(outcomes.items())
    }


def totals(outcomes: dict[str, Outcome]) -> tuple[int, int, int, int]:
    """Samples that agree, those of them with gradients, refused, wrong."""
    every = outcomes.values()
    return (
        sum(o.agree for o in every),
        sum(o.gradients for o in every),
        sum(o.refused.total() for o in every),
        sum(len(o.wrong) for o in every),
    )


@cache
def known(dtype: str) -> dict[str, dict[str, int]]:
    """The committed table of a dtype."""
    found: dict[str, dict[str, int]] = json.loads(REFUSALS.read_text(encoding="utf-8"))[dtype]
    return found


def main(argv: list[str]) -> int:
    """The command line."""
    dtype = next((a for a in argv if a in SAMPLES), "float32")
    argv = [a for a in argv if a not in SAMPLES]
    if argv[:1] == ["show"]:
        for sample in samples(argv[1], dtype):
            verdict, text = compare(argv[1], sample)
            if verdict in ("refused", "wrong"):
                print(verdict, _shown(sample), "->", text)
        return 0
    if argv[:1] == ["on"]:
        device, count, seconds, jobs = argv[1:]
        judge_there, outcomes = partial(judge_on, device, int(count)), {}
        for name, outcome in judged(judge_there, list(entries()), float(seconds), int(jobs)):
            outcomes[name] = outcome or Outcome()
            for text in [*outcomes[name].wrong, *(["not decided"] if outcome is None else [])]:
                print("NOT", name, text[:600], flush=True)
        print(f"{len(outcomes)} entries; agree, with gradients, refused, wrong: {totals(outcomes)}")
        return int(totals(outcomes)[3] > 0)
    outcomes = table(dtype)
    for name, o in outcomes.items():
        counts = (o.agree, o.gradients, o.refused.total(), len(o.wrong))
        print(f"{name:45} {'agree {:4}  gradients {:4}  refused {:4}  wrong {:3}'.format(*counts)}")
    print(f"{len(outcomes)} entries; agree, with gradients, refused, wrong: {totals(outcomes)}")
    if argv == ["write"]:
        every = json.loads(REFUSALS.read_text(encoding="utf-8")) | {dtype: refusals(outcomes)}
        REFUSALS.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    return int(totals(outcomes)[3] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
