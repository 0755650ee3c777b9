"""A pytest plugin that records which cuDNN functions and graph operations the tests run, and their results.

    python -m pytest -p tests.helpers.recorder --record-calls calls.txt

A line is written per new fact as soon as it is known, so that a test that ends its process loses nothing. All
processes of a run (pytest-xdist, forks) append to one file. `python -m tools.coverage` makes the committed recordings
from these lines:

    function<tab>status<tab>test file           the function returned the status in a test of the file
    operation<tab>executed<tab>test             a plan with the operation was executed by the test
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lamina.c import cudnn

NO_STATUS = "returned"  # stands for the status of functions that return a number, a text or nothing
EXECUTED = "executed"
OPERATION = "CUDNN_BACKEND_OPERATION_"


class Operations:
    """The operations that a graph's descriptors represent: an execution plan has those of its graph.

    Descriptors that are set into another pass on their operations; those filled in by the library (the
    configurations of a heuristic) get the operations of the queried one.
    """

    def __init__(self) -> None:
        self._of: dict[int, frozenset[str]] = {}

    def follow(self, function: str, arguments: tuple[Any, ...]) -> frozenset[str]:
        """Process a successful call; the operations that it executed."""
        if function == "cudnnBackendCreateDescriptor":
            kind = cudnn.cudnnBackendDescriptorType_t.label(int(arguments[0]))
            is_operation = kind.startswith(OPERATION)
            name = kind.removeprefix("CUDNN_BACKEND_").removesuffix("_DESCRIPTOR")
            self._of[arguments[1]._obj.value] = frozenset([name] if is_operation else [])
        elif function in ("cudnnBackendSetAttribute", "cudnnBackendGetAttribute"):
            is_link = arguments[2] == cudnn.CUDNN_TYPE_BACKEND_DESCRIPTOR
            if is_link and isinstance(arguments[-1], ctypes.Array):
                self._link(function, int(arguments[0]), [one or 0 for one in arguments[-1]])
        elif function in ("cudnnBackendExecute", "cudnnBackendPopulateCudaGraph"):
            return self._of.get(int(arguments[1]), frozenset())
        return frozenset()

    def _link(self, function: str, descriptor: int, others: list[int]) -> None:
        own = self._of.get(descriptor, frozenset())
        if function == "cudnnBackendSetAttribute":
            self._of[descriptor] = own.union(*(self._of.get(one, frozenset()) for one in others))
        else:
            self._of.update(dict.fromkeys(others, own))


class Recorder:
    """Records every call of a library's bound functions while a test runs; `test` is that test's id.

    Functions are recorded from their binding on, so the recorder is created before the first call.
    """

    def __init__(self, path: Path, library: Any) -> None:
        self.test = ""
        self._out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._seen: set[tuple[str, ...]] = set()
        self._operations = Operations()
        self._signatures, self._bind = library.signatures, library.bind
        early = sorted(set(vars(library.symbols)) & set(library.signatures))
        if early:
            raise RuntimeError(f"the recorder comes too late: {', '.join(early)} are bound already")
        library.bind = self._bound

    def _bound(self, name: str) -> Any:
        function = self._bind(name)
        function.errcheck = self._noting(name, is_status=self._signatures[name].startswith("i:"))
        return function

    def _noting(self, name: str, *, is_status: bool) -> Callable[[Any, Any, Any], Any]:
        follows = name.startswith("cudnnBackend")

        def note(result: Any, function: Any, arguments: Any) -> Any:
            status = cudnn.cudnnStatus_t.label(result) if is_status else NO_STATUS
            self._add(name, status, self.test.partition("::")[0])
            if follows and result == 0:
                for operation in self._operations.follow(name, arguments):
                    self._add(operation, EXECUTED, self.test)
            return result

        return note

    def _add(self, *fact: str) -> None:
        if self.test and fact not in self._seen:
            self._seen.add(fact)
            os.write(self._out, ("\t".join(fact) + "\n").encode())


RECORDER = pytest.StashKey[Recorder]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-calls", type=Path, metavar="FILE", help="where the calls of cuDNN are noted")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record-calls")
    if path is None:
        return
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist append to the first process's file
        path.write_bytes(b"")
    config.stash[RECORDER] = Recorder(path, cudnn.library)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    recorder = item.config.stash.get(RECORDER, None)
    if recorder is not None:
        recorder.test = item.nodeid.removeprefix("tests/")
    return (yield)
