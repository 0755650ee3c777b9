"""A generated file starts with the hash of its own text, so that manual edits are detected."""

from __future__ import annotations

import hashlib
import re

_LINE = re.compile(r"^# seal: ([0-9a-f]{64})\n", re.M)


def sealed(text: str) -> str:
    """`text` with its seal as the first line."""
    return f"# seal: {_digest(text)}\n{text}"


def broken(text: str) -> bool:
    """True if the seal is missing or does not match the rest of the text."""
    match = _LINE.match(text)
    return match is None or match.group(1) != _digest(text[match.end() :])


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
