"""Checkpoints: the whole training state in one safetensors file; training resumes from it bit-exactly.

The file holds parameters, buffers, optimizer state, random state and loss scale under their names. Its header holds
the step's number, the position in the data, the optimizer's hyperparameters that were changed, and the setup of the
run (`lamina.train.setup`), which is compared on resuming. The file is replaced atomically (a crash leaves the
previous one), and every tensor's SHA-256 is checked when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lamina._json import parse_json
from lamina.files import WeightsError, read_safetensors, save_safetensors
from lamina.files.weights import CHECKPOINT
from lamina.ops.arguments import checked
from lamina.spec import Shape, Spec
from lamina.tensors import Tensor
from lamina.train.kept import KeptObjects
from lamina.train.setup import Setup, changed_numbers, check_same, step_setup, take_numbers
from lamina.train.step import Step


class CheckpointError(ValueError):
    """A checkpoint that does not fit the network, the optimizer or the precision; the message says how."""


@dataclass(frozen=True)
class Position:
    """A position in the data: the number of whole epochs, and of batches of the next one.

    setup: the setup of the run, where the position comes from a checkpoint; `fit` compares it with its own.
    loop: the state of `fit` and its callbacks there.
    """

    epoch: int = 0
    batch: int = 0
    setup: Setup = field(default_factory=dict, compare=False, repr=False)
    loop: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)


@checked
def save_checkpoint(
    path: str | Path,
    step: Step | Mapping[str, Any],
    position: Position = Position(),
    setup: Setup | None = None,
) -> None:
    """Write the state of a training step and the position in the data to a file. Raises OSError.

    step: a train step, or, for a custom one, the objects it changes under names of your choice: networks, optimizers
        with parameters, generators, tensors, anything with `state_dict` and `load_state_dict`: {"generator": g,
        "critic": c, "optimizers": …}. The default generator is included.
    setup: further settings that must agree on resuming (`data_setup`), beside those of the step.
    Where the ranks share the state (`shard_optimizer`, or gradients that `accumulate` has gathered and no update has
    used), all of them call it, and the first one writes; the file is the same as of one rank, and loads on any number
    of ranks.
    """
    facts = facts_of(step, position, setup)
    if isinstance(step, Step):
        tensors, parallel = step.whole_state(), step.options.parallel
        if step.is_shared and parallel is not None and parallel.place != 0:
            return
    else:
        tensors, facts["plain"] = KeptObjects(step).state()
    save_safetensors(tensors, path, {"format": CHECKPOINT, "lamina": json.dumps(facts)})


@checked
def load_checkpoint(
    path: str | Path, step: Step | Mapping[str, Any], *, override: Collection[str] = ()
) -> Position:
    """Load the state of a checkpoint, and return its position in the data.

    step: or the objects that were saved, by the same names.
    override: settings that may differ from the run that wrote it, such as "lr" or "optimizer.momentum"; "optimizer"
        stands for all of its settings, "all" for everything.
    Nothing is changed unless everything fits. Raises WeightsError for a corrupt file, CheckpointError for one of
    another network, optimizer or precision, ResumeError for other settings, OSError when it cannot be read.
    """
    tensors, texts = read_safetensors(path, sealed=True)
    if texts.get("format") != CHECKPOINT:
        raise WeightsError(f"{path}: not a checkpoint (its format is {texts.get('format')!r})")
    return take_checkpoint(path, tensors, parsed_facts(path, texts.get("lamina", "")), step, override)


def facts_of(step: Step | Mapping[str, Any], position: Position, setup: Setup | None) -> dict[str, Any]:
    """The metadata of a checkpoint beside its tensors, as JSON values."""
    facts: dict[str, Any] = {"epoch": position.epoch, "batch": position.batch}
    if isinstance(step, Step):
        facts |= {"step": step.number, "precision": str(step.precision)}
        facts["setup"] = {**(setup or {}), **step_setup(step)}
        if changed := changed_numbers(step.optimizer):
            facts["numbers"] = changed
    else:
        facts |= {"step": 0, "precision": "", "setup": dict(setup or {})}
    if position.loop:
        facts["loop"] = dict(position.loop)
    return facts


def take_checkpoint(
    path: str | Path,
    tensors: Mapping[str, Tensor],
    facts: Facts,
    step: Step | Mapping[str, Any],
    override: Collection[str],
    pieces: Mapping[str, tuple[Tensor, Shape]] | None = None,
) -> Position:
    """Set a step, or objects, to the values read. Raises as `load_checkpoint` does.

    pieces: this rank's pieces of the state shared among ranks, with the shapes of the whole, in place of whole
        tensors.
    """
    if not isinstance(step, Step):
        if facts.precision:
            raise CheckpointError(f"{path}: is of a train_step, not of {', '.join(step)}")
        wrong = KeptObjects(step).take(tensors, facts.plain)
        if wrong:
            raise CheckpointError(f"{path}: does not fit: {'; '.join(sorted(wrong)[:8])}")
        return Position(facts.epoch, facts.batch, facts.setup, facts.loop)
    if facts.precision != str(step.precision):
        raise CheckpointError(f"{path}: precision was {facts.precision}, the step's is {step.precision}")
    if not any(n in tensors for n in step.untrained_of_loss):  # an older checkpoint: the loss stays as it is
        tensors = {**tensors, **{n: step.state.named()[n] for n in step.untrained_of_loss}}
    own = step.whole_specs()
    given = {n: x.spec.open for n, x in tensors.items()}
    given |= {n: Spec(shape, x.dtype) for n, (x, shape) in (pieces or {}).items()}
    wrong = [f"{n} is missing" for n in own if n not in given]
    wrong += [f"{n} is not known" for n in given if n not in own]
    for name in own.keys() & given.keys():
        if own[name] != given[name]:
            wrong.append(f"{name} is {given[name]}, wanted {own[name]}")
    if wrong:
        raise CheckpointError(f"{path}: does not fit: {'; '.join(sorted(wrong)[:8])}")
    check_same(facts.setup, step_setup(step), override, str(path))
    take_numbers(step.optimizer, facts.numbers, facts.setup, override)
    step.take_state(tensors, {n: x for n, (x, _) in (pieces or {}).items()})
    step.number = facts.step
    return Position(facts.epoch, facts.batch, facts.setup, facts.loop)


@dataclass(frozen=True)
class Facts:
    """The header's content, checked."""

    step: int
    epoch: int
    batch: int
    precision: str
    setup: Setup
    loop: Mapping[str, Any]
    plain: Mapping[str, Any]
    numbers: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in ("setup", "loop", "plain", "numbers"):
            if not isinstance(getattr(self, name), dict):
                raise TypeError(f"the {name} is a {type(getattr(self, name)).__name__}")


def parsed_facts(path: str | Path, text: str) -> Facts:
    """The checked metadata. Raises WeightsError."""
    try:
        facts: dict[str, Any] = parse_json(text)
        numbers = {key: int(facts[key]) for key in ("step", "epoch", "batch")}
        trees = (facts.get(name, {}) for name in ("setup", "loop", "plain", "numbers"))
        setup, loop, plain, changed = trees
        precision = str(facts["precision"])
        found = Facts(**numbers, precision=precision, setup=setup, loop=loop, plain=plain, numbers=changed)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise WeightsError(f"{path}: the header's numbers are not sound ({error!r})") from error
    if min(numbers.values()) < 0:
        raise WeightsError(f"{path}: the header's numbers are negative: {numbers}")
    return found
