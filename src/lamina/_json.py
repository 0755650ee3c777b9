"""JSON from files, parsed only if its objects need little more memory than the text has bytes.

A few bytes of JSON can make a large object (`{"a":1}` becomes 400 bytes), so a file of some megabytes could ask
for gigabytes. The objects are counted before anything is parsed.
"""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any

#: Bytes that a parsed text may need beyond twice its length.
ALLOWANCE = 160 << 20
#: Upper bound of the bytes for each JSON character: a dict with its first entry, a list, one more value or entry.
_COST = {b"{": 240, b"[": 96, b",": 40, b":": 120}
#: Largest nesting depth.
DEEPEST = 200
#: The change of depth by each bracket, and all bytes that are no brackets.
_DEPTH = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_FLAT = bytes(set(range(256)) - _DEPTH.keys())
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def parse_json(text: bytes | bytearray | str) -> Any:
    """The value of a JSON text.

    Raises ValueError if the text is invalid, repeats a key, is nested too deeply or would need too much memory.
    """
    data = text.encode() if isinstance(text, str) else bytes(text)
    bare = _STRING.sub(b"", data)
    if (depth := max(accumulate(map(_DEPTH.__getitem__, bare.translate(None, _FLAT))), default=0)) > DEEPEST:
        raise ValueError(f"nested {depth} times, which is more than {DEEPEST}")
    cost = sum(bare.count(sign) * size for sign, size in _COST.items())
    if cost > 2 * len(data) + ALLOWANCE:
        raise ValueError(f"{len(data)} bytes of JSON would need {cost >> 20} MiB of memory")
    return json.loads(data, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1) if len(names) < 10_000 else "…"
        raise ValueError(f"the name {twice!r} stands twice in one object")
    return found
