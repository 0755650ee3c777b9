"""How plans are finalized: loaded from disk if they were compiled before, or made ahead of time by a thread.

Choosing the kernels of a program requests one plan after the other, and waits for a library's compiler at each. A
`Scout` runs ahead through the same code in its own thread: it assumes every plan to be possible, so that it waits for
none, and has each one made in a further thread. The main thread then finds its plans made, or nearly. The scout
decides nothing: where a plan proves impossible, the main thread takes another path, and makes the plans there itself.
The scout is a limited number of plans ahead, and plans that the main thread passed over are dropped: where all
candidates are timed, there are thousands.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Self, TypeVar

from lamina.c import cudnn as c
from lamina.c.errors import CudnnError
from lamina.cudnn.descriptor import text_of
from lamina.cudnn.device import DeviceProperties
from lamina.cudnn.engine import EngineConfig, OperationGraph, Target, key_text
from lamina.cudnn.handle import Handle
from lamina.cudnn.plan import ExecutionPlan, KernelCache
from lamina.runtime import DiskCache, cache_directory, digest
from lamina.runtime.ahead import Ahead

_RUNTIME_COMPILATION = c.cudnnBackendBehaviorNote_t.CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION
#: Bytes of plans kept on disk, at 50 to 100 thousand each.
_DISK_LIMIT = 256 << 20
#: A scout is sent once a plan takes a compiler more seconds than this. Loading from disk is faster than a scout,
#: which competes with the main thread for the GIL.
_SLOW = 0.02
#: The most plans that a scout is ahead, and that it keeps of those passed over.
_AHEAD = 400

#: One core is left to the main thread, which may be timing kernels.
_builders = Ahead("making cuDNN's plans", spare=1)

A = TypeVar("A")
B = TypeVar("B")


def attempt(
    config: EngineConfig,
    target: Target,
    *,
    workspace_limit: int | None = None,
    kernel_cache: KernelCache | None = None,
) -> ExecutionPlan | str:
    """The plan of a configuration, or in words why there is none within the limit (bytes)."""
    try:
        plan = finalized(config, target, kernel_cache)
    except CudnnError as error:
        return f"{key_text(config.key)}: {error.code}: {error.message}"
    if workspace_limit is not None and plan.workspace > workspace_limit:
        return (
            f"{key_text(config.key)}: needs {plan.workspace} bytes of workspace, "
            f"the limit is {workspace_limit}"
        )
    return plan


def finalized(config: EngineConfig, target: Target, kernel_cache: KernelCache | None = None) -> ExecutionPlan:
    """The plan of a configuration. Raises CudnnError.

    Run-time compilation of an engine's kernels takes tenths of a second. Such plans are kept on disk with their
    kernels, and are loaded from there the next time, in a millisecond.
    """
    if kernel_cache is not None or not _is_fixed(config):
        return ExecutionPlan(config, target, kernel_cache=kernel_cache)
    if _this_thread.scout is not None:
        return _this_thread.scout.expected(config)
    behind = _this_thread.behind
    found = None if behind is None else behind.taken(config)
    if found is not None:
        return found
    start = time.perf_counter()
    plan, compiled = _made(config, target)
    if compiled and behind is not None and time.perf_counter() - start > _SLOW:
        behind.send(target)
    return plan


def _made(config: EngineConfig, target: Target) -> tuple[ExecutionPlan, bool]:
    """The plan, from disk or anew, and whether its kernels were compiled."""
    if _RUNTIME_COMPILATION not in config.engine.behavior_notes:
        return ExecutionPlan(config, target), False
    disk, key = DiskCache(cache_directory() / "compiled", _DISK_LIMIT), _identity(config, target)
    kept = disk.get(key)
    if kept is not None:
        with suppress(CudnnError):  # it is made anew
            return ExecutionPlan(config, target, json=kept.decode()), False
    plan = ExecutionPlan(config, target)
    with suppress(CudnnError):  # an engine that cannot be serialized
        disk.put(key, plan.json.encode())
    return plan, True


def _is_fixed(config: EngineConfig) -> bool:
    """Whether both its graph and its sizes are fixed."""
    return config.graph is not None and not (
        config.graph.values.get("dynamic") or config.graph.values.get("override")
    )


def _identity(config: EngineConfig, target: Target) -> str:
    """A key for graph, engine, knobs, number of multiprocessors, device and version of cuDNN."""
    assert config.graph is not None
    device = target.device.name if isinstance(target, Handle) else target.json
    engine = (*config.key, config.engine.get("sm_count"))
    return digest(
        repr(c.library.version), device, repr(engine), *map(text_of, config.graph.values["operations"])
    )


class ExpectedPlan(ExecutionPlan):
    """A plan that a scout assumes to be possible: it knows its engine, and cannot run."""

    def __init__(self, config: EngineConfig, target: Target) -> None:
        self.config, self.target, self.workspace = config, target, 0
        self._native, self._values = None, {}


class Scout:
    """Within its context, the first plan that needs a slow compilation starts a thread that runs `way` ahead.

    way: requests the plans that the context is going to request, but for those of `scouted_target`.
    """

    def __init__(self, way: Callable[[], object]) -> None:
        self._way = way
        self._thread: threading.Thread | None = None
        self._ended = False
        self._moved = threading.Condition()  # guards what follows, and signals the main thread's progress
        self._begun: dict[str, Future[ExecutionPlan]] = {}
        self._numbers: dict[str, int] = {}  # of all plans it met, in order
        self._reached = 0  # the last one of these that was requested

    def __enter__(self) -> Self:
        self._before, _this_thread.behind = _this_thread.behind, self
        return self

    def __exit__(self, *exception: object) -> None:
        _this_thread.behind = self._before
        with self._moved:
            self._ended = True
            self._moved.notify_all()
        if self._thread is not None:
            self._thread.join()
        for future in self._begun.values():
            future.cancel()

    def send(self, target: Target) -> None:
        """Start the thread, once. target: for which plans are made."""
        with self._moved:
            if self._thread is None:
                self._target = target
                self._thread = threading.Thread(target=self._go, name="lamina scout")
                self._thread.start()

    def _go(self) -> None:
        _this_thread.scout = self
        with suppress(Exception):  # the scout stops here; the main thread raises the error itself
            made_for = self._target
            self.target = DeviceProperties(handle=made_for) if isinstance(made_for, Handle) else made_for
            self._way()

    def expected(self, config: EngineConfig) -> ExecutionPlan:
        """In the scout's thread: assume a plan to be possible, and have it made."""
        key = _identity(config, self._target)
        with self._moved:
            self._moved.wait_for(lambda: self._ended or len(self._numbers) < self._reached + _AHEAD)
            if self._ended:
                raise RuntimeError("the scout is not needed any more")
            if key not in self._numbers:
                self._numbers[key] = len(self._numbers)
                future = self._begun[key] = Future()
                _builders.begin(partial(self._make, config, future))
        return ExpectedPlan(config, self.target)

    def _make(self, config: EngineConfig, future: Future[ExecutionPlan]) -> None:
        """In a further thread: the plan of the same operations for the real target."""
        if not future.set_running_or_notify_cancel():
            return
        assert config.graph is not None
        try:
            if isinstance(self._target, Handle):
                self._target.device.make_current()
            graph = OperationGraph(config.graph.values["operations"], self._target)
            engine, knobs = config.key
            plan, _ = _made(EngineConfig(graph, engine, dict(knobs)), self._target)
            future.set_result(plan)
        except BaseException as error:  # for the requester
            future.set_exception(error)

    def taken(self, config: EngineConfig) -> ExecutionPlan | None:
        """The plan of a configuration that the scout met, once it is made; None where it was not begun.

        Raises CudnnError.
        """
        if not self._begun:
            return None
        key = _identity(config, self._target)
        with self._moved:
            future = self._begun.pop(key, None)
            self._go_on(self._numbers.get(key, 0))
        return None if future is None or future.cancel() else future.result()

    def _go_on(self, number: int) -> None:
        """Record the main thread's progress; plans passed over long before are dropped."""
        if number <= self._reached:
            return
        for key, future in list(self._begun.items()):
            if self._numbers[key] >= number - _AHEAD:
                break
            future.cancel()
            del self._begun[key]
        self._reached = number
        self._moved.notify_all()


class _ThisThread(threading.local):
    """scout: whose thread this is. behind: the scout that runs ahead of this thread."""

    scout: Scout | None = None
    behind: Scout | None = None


_this_thread = _ThisThread()


def as_here(task: Callable[[A], B]) -> Callable[[A], B]:
    """The task for another thread, which makes plans as this one does: as a scout, or following one."""
    scout, behind = _this_thread.scout, _this_thread.behind

    def run(given: A) -> B:
        before = _this_thread.scout, _this_thread.behind
        _this_thread.scout, _this_thread.behind = scout, behind
        try:
            return task(given)
        finally:
            _this_thread.scout, _this_thread.behind = before

    return run


def scouted_target() -> Target | None:
    """In a scout's thread, the target for which graphs are made."""
    return None if _this_thread.scout is None else _this_thread.scout.target
