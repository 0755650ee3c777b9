"""The program: one parser, one function per command, one place where errors become messages.

Exit status: 0 done, 1 failed (one line says why), 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from lamina import __version__
from lamina.backends import NoKernel
from lamina.cli import conv, info, plan, train
from lamina.runtime import CompileError, DeviceError, NoGpuError, OutOfMemoryError

#: What a user can put right: shown as one line. Anything else is a fault of the program and keeps its traceback.
_EXPECTED = (
    ValueError,
    TypeError,
    KeyError,
    OSError,
    ImportError,
    MemoryError,
    OutOfMemoryError,
    NoGpuError,
    DeviceError,
    CompileError,
    NoKernel,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on these arguments (those of the process by default) and return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except KeyboardInterrupt:
        print("\nlamina: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone: nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except _EXPECTED as error:
        if options.traceback:
            raise
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        print(f"lamina {options.command}: {text}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lamina", description="cuDNN for Python, from the C call to the trained network."
    )
    parser.add_argument("--version", action="version", version=f"lamina {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for module in (train, info, plan, conv):
        name = module.__name__.rpartition(".")[2]
        summary = (module.__doc__ or "").split("\n")[0]
        command = commands.add_parser(name, help=summary, description=summary)
        module.add_arguments(command)
        command.add_argument("--traceback", action="store_true", help="show where an error comes from")
        command.set_defaults(run=module.run)
    return parser
