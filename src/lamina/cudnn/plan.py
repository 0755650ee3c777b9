"""Execution plans, the addresses they run on, and running them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from lamina.c import cudnn as c
from lamina.c._arguments import Pointer, address, pointer
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, require
from lamina.cudnn.device import DeviceProperties
from lamina.cudnn.handle import Handle
from lamina.runtime import CapturedGraph, Stream

if TYPE_CHECKING:
    from lamina.cudnn.engine import EngineConfig, OperationGraph, Target

_KIND = c.cudnnBackendDescriptorType_t

#: uid -> (dimensions, strides)
Sizes: TypeAlias = Mapping[int, tuple[Sequence[int], Sequence[int]]]


class VariantPack(Descriptor):
    """Addresses for the tensors of a plan, by uid, and for its workspace.

    Args:
        pointers: uid -> address, for each tensor that is not virtual: an int, a Buffer, or an array of CuPy,
            PyTorch, JAX, Numba, … as it is, without a copy. The pack keeps it alive; the caller orders streams.
        workspace: likewise, of at least `ExecutionPlan.workspace` bytes; 0 for none.
        sizes: uid -> (dimensions, strides) of tensors whose sizes differ from those in the graph, which was made with
            `override`; the order of axes in memory stays (cuDNN 9.21).

    Raises MissingSymbol for `sizes` where the library has no graphs with `override`.
    """

    kind = _KIND.CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "pointers": attribute("VARIANT_PACK_DATA_POINTERS", "VOID_PTR", many=True),
        "uids": attribute("VARIANT_PACK_UNIQUE_IDS", many=True),
        "workspace": attribute("VARIANT_PACK_WORKSPACE", "VOID_PTR"),
        "override_uids": attribute("VARIANT_PACK_OVERRIDE_UNIQUE_IDS", many=True),
        "dimensions": attribute("VARIANT_PACK_OVERRIDE_SHAPES", "VOID_PTR"),
        "strides": attribute("VARIANT_PACK_OVERRIDE_STRIDES", "VOID_PTR"),
    }

    def __init__(
        self, pointers: Mapping[int, Pointer], workspace: Pointer = 0, *, sizes: Sizes | None = None
    ) -> None:
        if not isinstance(pointers, Mapping):
            raise TypeError(f"VariantPack: pointers must map each uid to an address, got {pointers!r}")
        if sizes:  # 9.18 accepts them too, but no graph of its honours them: it would compute the old sizes
            require("CUDNN_ATTR_OPERATIONGRAPH_IS_OVERRIDE_SHAPE_ENABLED")
        super().__init__(
            pointers=tuple(address(pointer(p)) for p in pointers.values()),
            uids=tuple(pointers),
            workspace=address(pointer(workspace)) or None,
            override_uids=tuple(sizes) if sizes else None,
            dimensions=tuple(tuple(d) for d, _ in sizes.values()) if sizes else None,
            strides=tuple(tuple(s) for _, s in sizes.values()) if sizes else None,
        )
        self.native.kept += [p for p in (*pointers.values(), workspace) if not isinstance(p, int)]

    def _elements(self, entry: Attribute, kind: int, value: Any) -> Any:
        if entry not in (self.attributes["dimensions"], self.attributes["strides"]):
            return super()._elements(entry, kind, value)
        rows = [(ctypes.c_int64 * len(row))(*row) for row in value]
        table = (_Vector * len(rows))(*map(_vector, rows))
        self.native.kept += [rows, table]  # the library refers to them
        return (_Vector * 1)(_vector(table))


def _check(handle: object, pack: object) -> None:
    """Raise TypeError unless a plan can run with them: the library crashes."""
    for name, value, kind in (("handle", handle, Handle), ("pack", pack, VariantPack)):
        if not isinstance(value, kind):
            raise TypeError(f"ExecutionPlan: {name} must be a {kind.__name__}, got {value!r}")


class _Vector(ctypes.Structure):
    """A std::vector in the memory layout of libstdc++, in which the library takes lists of lists."""

    _fields_: ClassVar = [("begin", ctypes.c_void_p), ("end", ctypes.c_void_p), ("capacity", ctypes.c_void_p)]


def _vector(elements: ctypes.Array[Any]) -> _Vector:
    begin = ctypes.addressof(elements)
    end = begin + ctypes.sizeof(elements)
    return _Vector(begin, end, end)


class KernelCache(Descriptor):
    """Kernels that plans of dynamic graphs share (CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR, cuDNN 9.4).

    Pass it to the plans of graphs that differ only in sizes: kernels compiled for one are reused for the next.

    Args:
        graph: a dynamic operation graph that the cache is for.
        json: text from `json` of an earlier cache (cuDNN 9.10).
    """

    kind = _KIND.CUDNN_BACKEND_KERNEL_CACHE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "json": attribute("KERNEL_CACHE_JSON_REPRESENTATION", "CHAR"),
        "graph": attribute("KERNEL_CACHE_OPERATION_GRAPH", "BACKEND_DESCRIPTOR", takes="OPERATIONGRAPH"),
        "revision": attribute("KERNEL_CACHE_REVISION"),
        "count": attribute("KERNEL_CACHE_ENTRY_COUNT"),
    }

    def __init__(self, graph: OperationGraph, *, json: str | None = None) -> None:
        super().__init__(json=json, graph=graph)

    @property
    def json(self) -> str:
        """The kernels as text."""
        return str(self.get("json"))

    @property
    def revision(self) -> int:
        """How often its contents changed in this process: when to keep `json` again (cuDNN 9.27)."""
        require("CUDNN_ATTR_KERNEL_CACHE_REVISION")
        return int(self.get("revision"))

    @property
    def count(self) -> int:
        """How many kernels it holds (cuDNN 9.27)."""
        require("CUDNN_ATTR_KERNEL_CACHE_ENTRY_COUNT")
        return int(self.get("count"))


class ExecutionPlan(Descriptor):
    """An engine configuration made ready to run (CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR).

    Args:
        config: the engine configuration.
        target: the handle, or the device properties to plan for without a GPU.
        kernel_cache: where compiled kernels are found and kept, for dynamic graphs.
        json: text from `json` of an earlier plan, for the same cuDNN and kind of GPU. The plan is then loaded with
            its kernels, and `config` only describes it.

    Raises:
        CudnnError: the engine refuses the graph; the message is the library's reason.
    """

    kind = _KIND.CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "json": attribute("EXECUTION_PLAN_JSON_REPRESENTATION", "CHAR"),
        "config": attribute("EXECUTION_PLAN_ENGINE_CONFIG", "BACKEND_DESCRIPTOR", takes="ENGINECFG"),
        "handle": attribute("EXECUTION_PLAN_HANDLE", "HANDLE"),
        "properties": attribute("EXECUTION_PLAN_DEVICEPROP", "BACKEND_DESCRIPTOR", takes="DEVICEPROP"),
        "kernel_cache": attribute("EXECUTION_PLAN_KERNEL_CACHE", "BACKEND_DESCRIPTOR", takes="KERNEL_CACHE"),
        "workspace": attribute("EXECUTION_PLAN_WORKSPACE_SIZE"),
    }

    def __init__(
        self,
        config: EngineConfig | None = None,
        target: Target | None = None,
        *,
        json: str | None = None,
        kernel_cache: KernelCache | None = None,
    ) -> None:
        if config is None and json is None:
            raise ValueError("ExecutionPlan: give config, or the json of an earlier plan")
        self.config, self.target = config, target  # a handle lives as long as the plans made with it
        super().__init__(
            json=json,
            config=config if json is None else None,
            handle=target.address if isinstance(target, Handle) else None,
            properties=target if isinstance(target, DeviceProperties) else None,
            kernel_cache=kernel_cache,
        )
        self.workspace = int(self.get("workspace"))

    @property
    def json(self) -> str:
        """The plan as text, to be loaded with `ExecutionPlan(json=…)`."""
        return str(self.get("json"))

    def execute(self, handle: Handle, pack: VariantPack) -> None:
        """Queue the plan on the handle's stream; it begins when all earlier work there has ended. Raises
        CudnnError."""
        _check(handle, pack)
        handle.wait_for_ends()
        c.cudnnBackendExecute(handle.address, self.address, pack.address)

    @property
    def has_native_graph(self) -> bool:
        """Whether `populate` works: the engine can write itself into a CUDA graph without stream capture."""
        notes = c.cudnnBackendBehaviorNote_t
        native = notes.CUDNN_BEHAVIOR_NOTE_SUPPORTS_CUDA_GRAPH_NATIVE_API
        return self.config is not None and native in self.config.engine.behavior_notes

    def populate(self, handle: Handle, pack: VariantPack, graph: int) -> None:
        """Write the plan's nodes into an empty CUDA graph (a cudaGraph_t); the plan must outlive the graph.

        Raises CudnnError where the engine has no such way (`has_native_graph`).
        """
        c.cudnnBackendPopulateCudaGraph(handle.address, self.address, pack.address, graph)

    def update(self, handle: Handle, pack: VariantPack, graph: int) -> None:
        """Set the addresses of another pack in a CUDA graph that `populate` made. Raises CudnnError."""
        c.cudnnBackendUpdateCudaGraph(handle.address, self.address, pack.address, graph)

    def bind(self, handle: Handle, pack: VariantPack, stream: int) -> Callable[[], None]:
        """Bind all arguments: calling the result queues the plan on `stream` with one C call.

        It belongs to the handle's thread. Where the same addresses are used many times, `record` costs less.
        """
        _check(handle, pack)
        execute = c.library.symbols.cudnnBackendExecute
        arguments = (handle.address, self.address, pack.address)
        platform = handle.device.platform
        enter, leave, wait_for_ends = platform.enter, platform.leave, platform.wait_for_ends

        def run(_kept: Sequence[object] = (self.native, pack.native)) -> None:
            before = enter()
            try:
                if handle.stream != stream:
                    handle.use(stream)
                wait_for_ends(stream)
                if execute(*arguments):
                    self.execute(handle, pack)  # again, for the exception with its reason
            finally:
                if before:
                    leave(before)

        return run

    def record(self, handle: Handle, pack: VariantPack, stream: Stream | None = None) -> CapturedGraph:
        """The plan as a CUDA graph of its own: the cheapest way to run it again and again on the same addresses.

        `CapturedGraph.bind` of the result is a function that queues it. It needs no handle, and threads may share it:
        a launch waits for earlier launches. It keeps the plan alive, but not the memory.

        Args:
            handle: the plan's target. Run the plan once before, so that its kernels are loaded.
            pack: the addresses.
            stream: where it is launched when `CapturedGraph.launch` names no other; default: the device's.

        Raises CudnnError where the plan refuses the addresses, DeviceError where it cannot be captured.
        """
        _check(handle, pack)
        before = handle.given
        home = stream or handle.device.default_stream
        with handle.device.stream() as side, side.capture(home=home) as graph:
            handle.use(side.handle)  # a separate stream: other threads' work is not captured
            try:
                self.execute(handle, pack)
            finally:
                handle.use(before)
        graph.keep(self.native, pack.native)
        return graph

    def __repr__(self) -> str:
        if self.closed:
            return "ExecutionPlan(closed)"
        return f"ExecutionPlan({self.config}, workspace={self.workspace})"
