"""Checks that all ranks are about to do the same: a difference is an error on each of them, not a deadlock."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest

from lamina.distributed.ranks import all_gather_object
from lamina.graph import Graph
from lamina.ops.primitives.collective import Collective, Exchange
from lamina.spec import Group

_NOTHING = ("nothing", "")


def collectives_of(graph: Graph, ranks: Group | None = None) -> list[tuple[str, str]]:
    """Each collective operation of a traced program, in order: op and operands, which all ranks share; its origin.

    ranks: the ranks that compare. Of a smaller group (parts of one layer beside data parallelism) each rank may
    have its own, so only its size is included.
    """
    found = []
    for node in graph.nodes:
        if isinstance(node.op, Collective):
            group = node.op.group
            op = f"{node.op.name} of {group}" if isinstance(node.op, Exchange) else str(node.op)
            if ranks is not None and not set(ranks.ranks) <= set(group.ranks):
                op = op.replace(str(group), f"{group.size} ranks")
            where = f", from {node.origin}" if str(node.origin) else ""
            found.append((f"{op}({', '.join(str(v.spec) for v in node.inputs)})", where))
    return found


def check_alike(what: str, lines: Sequence[tuple[str, str]], group: Group) -> None:
    """Raise ValueError, on every rank of the group, if the ranks' lines differ: it names a rank and the first
    difference.

    what: the subject of the lines, such as "train_step: collective operations". lines: the text to compare, and an
    addition for the message. Every rank of the group calls it.
    """
    text = "\n".join(line for line, _ in lines)
    digests = all_gather_object(hashlib.sha256(text.encode()).hexdigest(), group)
    if len(set(digests)) == 1:
        return
    usual = digests.index(Counter(digests).most_common(1)[0][0])
    other = next(place for place, digest in enumerate(digests) if digest != digests[usual])
    given = all_gather_object(list(lines), group)
    pairs = enumerate(zip_longest(given[usual], given[other], fillvalue=_NOTHING))
    number, (expected, found) = next((i, pair) for i, pair in pairs if pair[0][0] != pair[1][0])
    raise ValueError(
        f"{what} are not the same on all ranks: number {number + 1} is {_shortened(found)} on rank "
        f"{group.ranks[other]} and {_shortened(expected)} on rank {group.ranks[usual]}; ranks must run the same "
        "program, whose branches do not depend on the rank"
    )


def _shortened(line: tuple[str, str]) -> str:
    text, beside = line
    return (text if len(text) <= 300 else f"{text[:200]} … {text[-80:]}") + beside
