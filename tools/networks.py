"""The table of networks in docs/networks.md: builder, command, parameters, images, source.

python -m tools.networks          prints it
python -m tools.networks write    writes it into the page, which a test holds
"""

from __future__ import annotations

import sys
from pathlib import Path

from lamina.nn import init, models
from lamina.nn.models import Builder

PAGE = Path(__file__).resolve().parent.parent / "docs" / "networks.md"
#: The line of the page after which the table follows.
MARK = "<!-- python -m tools.networks write -->\n"


def row(builder: Builder) -> str:
    """A line of the table."""
    with init.skipped():
        net = builder.make()
    count = sum(p.numel() for p in net.parameters())
    images = f"{builder.channels}×{builder.size}×{builder.size}"
    return f"| `{builder.name}` | `{builder.command}` | {count:,} | {images} | {builder.paper} |\n"


def table() -> str:
    """The whole table, families in the order of their modules."""
    found = sorted(models.builders().values(), key=lambda b: b.make.__module__.replace("._", "."))
    head = "| `nn.models.` | command | parameters | images | source |\n|---|---|---:|---|---|\n"
    return head + "".join(map(row, found))


def page() -> str:
    """The page with the table as it should be."""
    before, mark, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return before + mark + "\n" + table()


def main(argv: list[str]) -> int:
    """The command line."""
    if argv == ["write"]:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(table(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
