"""Find tests that no run executed: `python -m tools.skips build/results/*.xml`.

Each file is pytest's report of one run (--junitxml). A test that is skipped in every run that includes it proves
nothing, and goes unnoticed: its name and reason are printed, and the exit status is 1. Tests marked `gpu` are in none
of these runs, so they do not appear. Tests for instructions that the machine's processor lacks are left to other
machines: they are counted by their reason, which begins with `PROCESSOR`.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

#: Prefix of the skip reason of tests for other processors.
PROCESSOR = "the processor has no"


def skipped_everywhere(files: Iterable[Path]) -> dict[str, str]:
    """Name -> reason of each test that was skipped in all runs that include it; parametrized cases count one by one.

    A file that was skipped as a whole counts as executed if one of its tests was.
    """
    reasons: dict[str, str] = {}
    executed: set[str] = set()
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            name = f"{case.get('classname', '')}::{case.get('name', '')}".strip(":")
            skip = case.find("skipped")
            if skip is None or skip.get("type") == "pytest.xfail":
                executed |= {name, case.get("classname", "")}
            else:
                reasons[name] = skip.get("message", "")
    return {name: reason for name, reason in reasons.items() if name not in executed}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns the exit status."""
    files = [Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    skipped = skipped_everywhere(files)
    elsewhere = Counter(reason for reason in skipped.values() if reason.startswith(PROCESSOR))
    for reason, count in sorted(elsewhere.items()):
        print(f"{count} tests are for other machines: {reason}")
    found = {name: reason for name, reason in skipped.items() if reason not in elsewhere}
    for name, reason in sorted(found.items()):
        print(f"{name} is skipped in every run: {reason}")
    print(f"{len(found)} tests are skipped in every run of {len(files)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
