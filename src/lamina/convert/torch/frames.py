"""Which of a program's frames Dynamo passes to the backend: including those with recurrent layers or masks.

Dynamo withholds recurrent layers from backends unless `torch._dynamo.config.allow_rnn` is set, and marks the code of
a frame that it cannot compile, so that no backend gets it again. Both are process-wide: the settings here are only
active while Dynamo compiles for this backend, and marks caused by recurrent layers are removed when a function that
was compiled for this backend is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any
from weakref import WeakSet

import torch
from torch._C._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo import config, eval_frame
from torch._dynamo.callback import callback_handler
from torch._dynamo.types import FrameAction, FrameExecStrategy

from lamina.convert.torch.causal import mark_making

Backend = Callable[..., Any]
#: The name in Dynamo's reason for refusing a frame because of a recurrent layer.
_REASON = "allow_rnn"
_CALLS = (torch.nn.Module._call_impl, torch.nn.Module._wrapped_call_impl)


def take_recurrent_layers(backend: Backend) -> None:
    """Make Dynamo pass frames with recurrent layers to a backend. Called once in a process."""
    global COMPILATIONS
    compilations = COMPILATIONS = _Compilations(backend)
    # Before Dynamo's own callbacks, where `torch._dynamo.reset()`, which forgets registered ones, leaves it.
    setattr(callback_handler, "run_start_callbacks", compilations.begin)  # noqa: B010 - methods, to type checkers
    setattr(callback_handler, "run_end_callbacks", compilations.end)  # noqa: B010

    plain = eval_frame.get_compiler_fn

    def get_compiler_fn(given: Any) -> Any:
        """The object that Dynamo calls as a backend; its `backend_ctx_ctor` is entered around each compiled call."""
        found = plain(given)
        if _is(found, backend):
            found.backend_ctx_ctor = _Calls(compilations)
        return found

    setattr(eval_frame, "get_compiler_fn", get_compiler_fn)  # noqa: B010


def _is(found: Any, backend: Backend) -> bool:
    """Whether Dynamo's callable is the backend, inside PyTorch's wrappers."""
    while found is not None and found is not backend:
        names = ("_torchdynamo_orig_backend", "compiler_fn", "__wrapped__")
        found = next((inner for n in names if (inner := getattr(found, n, None)) is not None), None)
    return found is backend


class _Compilations:
    """The start and end of Dynamo's compilations.

    refused: code for which other backends' compilations ended at a recurrent layer. count: how many did.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._begin, self._end = callback_handler.run_start_callbacks, callback_handler.run_end_callbacks
        self._before: list[tuple[bool, bool]] = []
        self.refused: WeakSet[CodeType] = WeakSet()
        self.count = 0

    def __reduce__(self) -> str:
        """A process has a single one: copies and pickles of compiled modules refer to it."""
        return "COMPILATIONS"

    def begin(self, args: Any) -> None:
        """A compilation begins."""
        compiled = _compiled()
        ours = compiled is not None and _is(compiled["compiler_fn"], self._backend)
        self._before.append((config.allow_rnn, mark_making(ours)))
        if ours:
            config.allow_rnn = True
        self._begin(args)

    def end(self, args: Any) -> None:
        """It has ended: restore the settings for other backends."""
        config.allow_rnn, making = self._before.pop()
        mark_making(making)
        compiled = _compiled() if _REASON in str(sys.exc_info()[1]) else None
        if compiled is not None and isinstance(compiled.get("code"), CodeType):
            self.refused.add(compiled["code"])
            self.count += 1
        self._end(args)


#: The process's instance.
COMPILATIONS: _Compilations | None = None


def _compiled() -> dict[str, Any] | None:
    """The variables of the Dynamo function that is compiling a frame: `code`, and `compiler_fn`, the backend."""
    return next((f.f_locals for f in _frames(sys._getframe(1)) if "compiler_fn" in f.f_locals), None)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


class _Calls:
    """Calls of a function that was compiled for the backend: entered before Dynamo inspects its frames."""

    def __init__(self, compilations: _Compilations) -> None:
        self._compilations, self._seen = compilations, -1

    def __call__(self) -> _Calls:
        return self

    def __enter__(self) -> None:
        """Remove the marks if another compilation may have left some since the last call."""
        if self._seen == self._compilations.count:
            return
        first, self._seen = self._seen < 0, self._compilations.count
        codes = set(self._compilations.refused)
        if first:  # it may have been before this module was there
            called = next((f.f_locals["fn"] for f in _frames(sys._getframe(1)) if "fn" in f.f_locals), None)
            codes |= _codes(called)
        for code in codes:
            set_code_exec_strategy(code, FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT))

    def __exit__(self, *exception: object) -> None:
        """Nothing is restored: Dynamo marks again what it cannot compile."""


def _codes(called: Any) -> set[CodeType]:
    """The code of a function, and of the networks' forward functions if it is one with recurrent layers."""
    found: list[Any] = []
    while called is not None:
        found.append(called)
        of = called if isinstance(called, torch.nn.Module) else getattr(called, "__self__", None)
        if isinstance(of, torch.nn.Module) and any(isinstance(m, torch.nn.RNNBase) for m in of.modules()):
            found += [type(m).forward for m in of.modules() if not isinstance(m, torch.nn.RNNBase)]
        called = getattr(called, "__wrapped__", None)
    kept = {f.__code__ for f in _CALLS}
    codes = {getattr(f, "__code__", None) for f in found if not getattr(f, "_torchdynamo_disable", False)}
    return {code for code in codes if isinstance(code, CodeType)} - kept
