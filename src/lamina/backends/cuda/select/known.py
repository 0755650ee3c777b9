"""What is known of a problem before anything is timed: choices measured for it, or for problems near it.

A problem has a place: its nature (op and attributes, element types, layouts) and its sizes. Choices come from the
user's plan store and from the database in the package (`lamina.cudnn.database`); those of the same place first, then
those of the same nature whose sizes are near: the distance is that of the logarithms of the sizes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.c import cudnn as c
from lamina.cudnn import Choice, database_of, plan_store
from lamina.runtime import Device
from lamina.spec import Spec

#: Choices of problems further away (in factors of two) are not tried, and of the nearer ones so many at most.
BOUND, MOST = 3.0, 3

#: Sizes -> choice, of problems of one nature.
Neighbours = Mapping[tuple[int, ...], Choice]


@dataclass(frozen=True)
class ProblemPlace:
    """Where a problem is among others. nature: "" where it has no neighbours."""

    nature: str
    sizes: tuple[int, ...]

    @staticmethod
    def of(kind: str, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> ProblemPlace:
        """The place of an op on operands. kind: the op with all of its attributes that are no sizes; "" for none."""
        operands = (*inputs, *outputs)
        lies = " ".join(_lies(spec, outputs[0]) for spec in operands)
        return ProblemPlace(kind and f"{kind} {lies}", tuple(n for spec in operands for n in spec.shape))


def _lies(spec: Spec, result: Spec) -> str:
    """Element type, layout, and the axes along which an operand is repeated to the result's size."""
    same_rank = spec.ndim == result.ndim
    repeated = [i for i in range(spec.ndim) if same_rank and spec.shape[i] == 1 != result.shape[i]]
    return f"{spec.dtype.short}{spec.ndim}:{spec.tag}" + "".join(f"/{axis}" for axis in repeated)


def distance(a: Sequence[int], b: Sequence[int]) -> float:
    """How far sizes are apart: the norm of the logarithms (to base 2) of their ratios; inf for another number."""
    if len(a) != len(b):
        return math.inf
    if tuple(a) == tuple(b):
        return 0.0
    if 0 in (*a, *b):
        return math.inf
    return math.sqrt(sum(math.log2(x / y) ** 2 for x, y in zip(a, b, strict=True)))


def ranked(sizes: tuple[int, ...], sources: Sequence[Neighbours]) -> list[Choice]:
    """The choices to try, best first: those for these very sizes in the order of the sources, then the nearest."""
    exact = [source[sizes] for source in sources if sizes in source]
    others = [
        (distance(sizes, known), number, known)
        for number, source in enumerate(sources)
        for known in source
        if known != sizes
    ]
    near = sorted(one for one in others if one[0] <= BOUND)[:MOST]
    return list(dict.fromkeys([*exact, *(sources[number][known] for _, number, known in near)]))


def known_choices(place: ProblemPlace, device: Device) -> list[Choice]:
    """What to try for a problem, best first; nothing where nothing is known.

    For a machine that is not there the database alone is asked.
    """
    if not place.nature:
        return []
    sources: list[Neighbours] = []
    if device.planned is None and c.library.available():
        sources.append(plan_store(device).placed(place.nature))
    database = database_of(device)
    if database is not None:
        sources.append(database.placed(place.nature))
    return ranked(place.sizes, sources)
