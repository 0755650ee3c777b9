"""PyTorch's own samples of its operators (OpInfo), given to `lamina.ops` and to torch: agreement, refusal or fault.

    python -m tests.judges.opinfo                 the table, by entry
    python -m tests.judges.opinfo write           writes tests/judges/opinfo_refusals.json, which a test holds
    python -m tests.judges.opinfo show conv2d     each sample of one entry that is refused or wrong

An entry of `torch.testing._internal.common_methods_invocations.op_db` counts if a function of its name is in
`lamina.ops`, or a method of its name on `Tensor`. At most SAMPLES float32 samples of an entry are taken.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import lamina as lm
from lamina import ops

SAMPLES = 150
REFUSALS = Path(__file__).with_name("opinfo_refusals.json")
#: What a refusal is: the documented errors.
TYPED = (TypeError, ValueError, IndexError, NotImplementedError)
#: Entries whose sample holds the second argument first.
SWAPPED = ("where", "nn.functional.embedding")
#: Entries whose function draws random numbers in torch, or gives memory that means nothing.
NO_VALUES = ("nn.functional.dropout", "empty", "empty_like", "new_empty")


@dataclass
class Outcome:
    """How the samples of one entry came out."""

    agree: int = 0
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
        if mine is not None:
            variant = f".{entry.variant_test_name}" if entry.variant_test_name else ""
            found[entry.name + variant] = (entry, mine)
    return found


def _function(name: str, short: str) -> Callable[..., Any] | None:
    """A function of lamina.ops, else a method of Tensor, of a torch.*, torch.nn.functional.* or Tensor name."""
    if name.count(".") > (2 if name.startswith("nn.functional.") else 0) or name.startswith(
        ("_", "special.")
    ):
        return None
    if short in ops.__all__ and name != "unfold":  # torch's method of this name is a sliding window
        return getattr(ops, short)
    method = getattr(lm.Tensor, short, None)
    return method if callable(method) and not short.startswith("_") else None


def judge(name: str) -> Outcome:
    """All samples of an entry."""
    outcome = Outcome()
    for sample in samples(name):
        verdict, text = compare(name, sample)
        if verdict == "agree":
            outcome.agree += 1
        elif verdict == "refused":
            outcome.refused[reason(text)] += 1
        else:
            outcome.wrong.append(text)
    return outcome


def samples(name: str) -> Iterator[Any]:
    """The samples of an entry, at most SAMPLES."""
    import torch

    entry, _ = entries()[name]
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from islice(entry.sample_inputs("cpu", torch.float32, requires_grad=False), SAMPLES)


def compare(name: str, sample: Any) -> tuple[str, str]:
    """("agree", ""), ("refused", the error) or ("wrong", what differs) of one sample."""
    entry, function = entries()[name]
    given = [_mine(v) for v in (sample.input, *sample.args)]
    if name in SWAPPED:
        given[:2] = given[1::-1]
    options = {k: _mine(v) for k, v in sample.kwargs.items()}
    try:
        found = function(*given, **options)
    except TYPED as error:
        return "refused", f"{type(error).__name__}: {error}"
    except Exception as error:
        return "wrong", f"{_shown(sample)}: {type(error).__name__}: {error}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = entry.op(sample.input, *sample.args, **sample.kwargs)
    problem = "" if name in NO_VALUES else _difference(found, wanted)
    return ("wrong", f"{_shown(sample)}: {problem}") if problem else ("agree", "")


def _mine(value: Any) -> Any:
    """A sample's argument as Lamina takes it: tensors and dtypes are its own, sequences and numbers stay."""
    import torch

    if isinstance(value, torch.Tensor):
        return lm.tensor(value.detach().resolve_conj().resolve_neg().contiguous().numpy())
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (tuple, list)):
        return type(value)(map(_mine, value)) if type(value) in (tuple, list) else tuple(map(_mine, value))
    return value


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
    if (str(found.dtype), found.shape) != (kind, shape):
        return f"gives {found.spec}, torch {kind}{list(shape)}"
    ours = found.numpy().astype(np.complex128 if wanted.is_complex() else np.float64)
    theirs = (
        wanted.detach().resolve_conj().to(torch.complex128 if wanted.is_complex() else torch.float64).numpy()
    )
    slack = 1e-2 if kind in ("bfloat16", "float16") else 2e-5
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


def table() -> dict[str, Outcome]:
    """Every entry."""
    return {name: judge(name) for name in sorted(entries())}


def refusals(outcomes: dict[str, Outcome]) -> dict[str, dict[str, int]]:
    """What the committed file holds: by entry the number that agree, and of refusals by reason."""
    return {
        name: {"agree": o.agree, **dict(sorted(o.refused.items()))} for name, o in sorted(outcomes.items())
    }


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
        for sample in samples(argv[1]):
            verdict, text = compare(argv[1], sample)
            if verdict != "agree":
                print(verdict, _shown(sample), "->", text)
        return 0
    outcomes = table()
    for name, o in outcomes.items():
        print(f"{name:45} agree {o.agree:4}  refused {o.refused.total():4}  wrong {len(o.wrong):3}")
    print(f"{len(outcomes)} entries; agree, refused, wrong: {totals(outcomes)}")
    if argv == ["write"]:
        REFUSALS.write_text(json.dumps(refusals(outcomes), indent=1) + "\n", encoding="utf-8")
    return int(totals(outcomes)[2] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
