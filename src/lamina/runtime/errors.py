"""The exceptions of the machine floor: each names the request, its target, and a remedy."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def human_bytes(nbytes: int) -> str:
    """A human-readable byte count: ``human_bytes(3 << 20) == "3 MiB"``."""
    amount = float(nbytes)
    for unit in _UNITS[:-1]:
        if abs(amount) < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} {_UNITS[-1]}"


class NoGpuError(RuntimeError):
    """A CUDA device was requested and none can be used.

    ``looked_for`` lists the attempts, in order.
    """

    def __init__(self, message: str, looked_for: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.looked_for = looked_for


class DeviceError(RuntimeError):
    """A call into the CUDA driver failed.

    ``code`` is the driver's number (0 for errors raised by Lamina), ``name`` its name
    (``"CUDA_ERROR_INVALID_VALUE"``) and ``call`` the failed call.
    """

    def __init__(self, message: str, *, code: int = 0, name: str = "", call: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.call = call


class CaptureInvalidated(DeviceError):
    """A capture was invalidated, by work that cannot be captured or by another thread.

    None of it was run; it can be retried.
    """


class OutOfMemoryError(RuntimeError):
    """An allocation failed after the cache was freed and the allocation retried once.

    All figures are bytes: ``requested`` by the caller, ``in_use`` by live buffers, ``cached`` in
    freed buffers that could not be returned, ``cap`` the arena's limit (None: no limit).
    """

    def __init__(self, device: str, *, requested: int, in_use: int, cached: int, cap: int | None) -> None:
        limit = "no cap" if cap is None else f"cap {human_bytes(cap)}"
        super().__init__(
            f"{device}: out of memory: {human_bytes(requested)} requested ({requested} bytes), "
            f"{human_bytes(in_use)} in use, {human_bytes(cached)} cached, {limit}; "
            "the cache was freed and the request retried once. "
            "Use a smaller batch, free buffers, or raise the cap (LAMINA_MEMORY_CAP or Device.set_cap)."
        )
        self.device = device
        self.requested = requested
        self.in_use = in_use
        self.cached = cached
        self.cap = cap


class CompileError(RuntimeError):
    """A kernel did not compile. ``log`` is the compiler's output, ``source`` its input."""

    def __init__(self, name: str, arch: str, log: str, source: str) -> None:
        super().__init__(f"kernel {name!r} does not compile for {arch}:\n{log}")
        self.name = name
        self.arch = arch
        self.log = log
        self.source = source

    def __reduce__(self) -> tuple[type[CompileError], tuple[str, str, str, str]]:
        return type(self), (self.name, self.arch, self.log, self.source)
