"""What is known of a problem before anything is timed: choices measured for it, or for problems near it.

A problem has a place: its nature (op and attributes, element types, layouts) and its sizes. Choices come from the
user's plan store and from the database in the package (`lamina.cudnn.database`): those of the same place first, then
that of the nearest problem of the same nature, where it was clearly faster than the heuristic's own choice. Engines
and their knobs fit one size; what the heuristic takes for another one is more often right than a neighbour's winner
that won by little. The distance is that of the logarithms of the sizes. The half types stand in for each other: the
same kernels of a library serve both at the same rate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from lamina.backends.cuda.launch.indexing import dense_layout, memory_order
from lamina.c import cudnn as c
from lamina.cudnn import Choice, database_of, database_of_kin, plan_store
from lamina.runtime import Device
from lamina.spec import Layout, Spec
from lamina.spec.layout import tag

#: Choices of problems further away (in factors of two) are not tried, nor those that won by a smaller factor.
BOUND, GAIN = 3.0, 1.25

#: Numbers of ops (an epsilon, a scale), which no plan's time depends on.
_NUMBER = re.compile(r"=-?\d+(\.\d*(e[+-]?\d+)?|e[+-]?\d+)")
#: A half type with its operand's rank, in a place's nature.
_HALF = re.compile(r"\b(b?)f16(?=\d+:)")

#: Sizes -> choice, of problems of one nature.
Neighbours = Mapping[tuple[int, ...], Choice]


@dataclass(frozen=True)
class ProblemPlace:
    """Where a problem is among others. nature: "" where it has no neighbours."""

    nature: str
    sizes: tuple[int, ...]

    @staticmethod
    def of(kind: str, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> ProblemPlace:
        """The place of an op on operands. kind: the op with its attributes that are no sizes; "" for none.

        Numbers that are not whole are left out of it: a plan is as fast for one as for the other.
        """
        operands = (*inputs, *outputs)
        lies = " ".join(_lies(spec, outputs[0]) for spec in operands)
        return ProblemPlace(
            kind and f"{_NUMBER.sub('=.', kind)} {lies}", tuple(n for spec in operands for n in spec.shape)
        )


def _lies(spec: Spec, result: Spec) -> str:
    """Element type, order in memory (whether or not there are gaps), and the axes along which an operand is repeated
    to the result's size."""
    order = spec.tag or tag(_without_gaps(spec), spec.shape)
    same_rank = spec.ndim == result.ndim
    repeated = [i for i in range(spec.ndim) if same_rank and spec.shape[i] == 1 != result.shape[i]]
    return f"{spec.dtype.short}{spec.ndim}:{order}" + "".join(f"/{axis}" for axis in repeated)


def _without_gaps(spec: Spec) -> Layout:
    return dense_layout(spec.shape, memory_order(spec.shape, spec.physical.strides))


def distance(a: Sequence[int], b: Sequence[int]) -> float:
    """How far sizes are apart: the norm of the logarithms (to base 2) of their ratios; inf for another number."""
    if len(a) != len(b):
        return math.inf
    if tuple(a) == tuple(b):
        return 0.0
    if 0 in a or 0 in b:
        return math.inf
    return math.dist(_logarithms(tuple(a)), _logarithms(tuple(b)))


@lru_cache(maxsize=4096)
def _logarithms(sizes: tuple[int, ...]) -> tuple[float, ...]:
    return tuple(map(math.log2, sizes))


def ranked(sizes: tuple[int, ...], sources: Sequence[Neighbours]) -> Iterator[Choice]:
    """The choices to try, best first, each once: those for these very sizes in the order of the sources, then the
    nearest's, which is looked for when these are used up.
    """
    exact = dict.fromkeys(source[sizes] for source in sources if sizes in source)
    yield from exact
    others = [
        (distance(sizes, known), number, known)
        for number, source in enumerate(sources)
        for known in source
        if known != sizes
    ]
    apart, number, nearest = min(others, default=(math.inf, 0, ()))
    if apart <= BOUND and gains(sources[number][nearest]) and sources[number][nearest] not in exact:
        yield sources[number][nearest]


def gains(choice: Choice) -> bool:
    """Whether a choice was so much faster than the heuristic's that it is worth trying for a problem nearby."""
    return choice.heuristic > GAIN * choice.milliseconds > 0


def known_choices(place: ProblemPlace, device: Device) -> Iterator[Choice]:
    """What to try for a problem, best first; nothing where nothing is known.

    For a machine that is not there the database alone is asked. For a model of GPU without a database it is that of
    another model of its architecture, of which winners count that won clearly there.
    """
    sources = _measured_here(place, device)
    if (other := twin(place.nature)) != place.nature:
        sources += _measured_here(ProblemPlace(other, place.sizes), device)
    if place.nature and database_of(device) is None and (kin := database_of_kin(device)) is not None:
        sources.append({sizes: one for sizes, one in kin.placed(place.nature).items() if gains(one)})
    return ranked(place.sizes, sources)


def twin(nature: str) -> str:
    """The same nature with bfloat16 for float16, and float16 for bfloat16."""
    return _HALF.sub(lambda found: "f16" if found[1] else "bf16", nature)


def is_measured(place: ProblemPlace, device: Device) -> bool:
    """Whether a choice was measured for this very problem, on this model of GPU."""
    return any(place.sizes in source for source in _measured_here(place, device))


def contested(place: ProblemPlace, device: Device) -> Choice | None:
    """The choice of the model's database for this very problem: every candidate competed for it. None without one."""
    database = database_of(device) if place.nature else None
    return None if database is None else database.placed(place.nature).get(place.sizes)


def outclassed(op: str, first: Spec, formulation: str, engine: int, device: Device) -> bool:
    """Whether one of cuDNN's engines competed often on this model of GPU, and never came near the best; padded
    operands count as others. first: the first operand.
    """
    database = database_of(device)
    names = {formulation, formulation.removeprefix("padded-")}
    return database is not None and any(
        database.outclasses(op, first.dtype.name, str(first.tag), name, engine) for name in names
    )


def _measured_here(place: ProblemPlace, device: Device) -> list[Neighbours]:
    """The user's store and the model's database, as far as they know problems of this nature."""
    sources: list[Neighbours] = []
    if place.nature and device.planned is None and c.library.available():
        sources.append(plan_store(device).placed(place.nature))
    database = database_of(device) if place.nature else None
    if database is not None:
        sources.append(database.placed(place.nature))
    return sources
