"""The program: one parser, one function per command, one place where errors become messages and exit statuses."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lamina._version import __version__
from lamina.cli import conv, convert, export, info, plan, plans, predict, run, simulate, summary, trace, train
from lamina.cli.status import ExitStatus, in_one_line, status_of


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on these arguments (those of the process by default) and return the exit status."""
    options = _parser().parse_args(arguments)
    options.words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        status = options.run(options)  # commands that run other programs exit with their status
    except BrokenPipeError:  # the reader of our output has gone: nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.FAILED
    except (Exception, KeyboardInterrupt) as error:
        status = status_of(error)
        if status is None or options.traceback:
            raise
        print(f"lamina {options.command}: {in_one_line(error)}", file=sys.stderr)
        return status
    return ExitStatus.DONE if status is None else int(status)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lamina",
        description="cuDNN for Python, from the C call to the trained network.",
        epilog="Exit status: "
        + ", ".join(f"{s.value} {s.name.lower().replace('_', ' ')}" for s in ExitStatus),
    )
    parser.add_argument("--version", action="version", version=f"lamina {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for module in (train, run, predict, convert, export, info, plan, plans, trace, simulate, summary, conv):
        name = module.__name__.rpartition(".")[2]
        line = (module.__doc__ or "").split("\n")[0]
        command = commands.add_parser(name, help=line, description=line)
        module.add_arguments(command)
        command.add_argument("--traceback", action="store_true", help="show where an error comes from")
        command.set_defaults(run=module.run)
    return parser
