"""Overhead of a call through `lamina.c` compared with the same call through bare ctypes.

    python -m benchmarks.call_cost [--json]

No GPU is needed: descriptor calls do all their work on the host. `--json` writes the table, with date and
versions, to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import time
import timeit
from collections.abc import Callable
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # a tiny reorder must not wait for other threads

from benchmarks.common import processor, versions, write
from lamina.c import cudnn, dnnl

NUMBER = 10_000
Case = tuple[str, Callable[[], Any], Callable[[], Any]]


def nanoseconds(left: Callable[[], Any], right: Callable[[], Any]) -> tuple[float, float]:
    """Processor time per call of each, measured alternately: the median of nine runs, valid on a busy machine too."""
    runs: tuple[list[float], list[float]] = ([], [])
    for _ in range(9):
        for seconds, call in zip(runs, (left, right), strict=True):
            seconds.append(timeit.timeit(call, number=NUMBER, timer=time.thread_time))
    return statistics.median(runs[0]) / NUMBER * 1e9, statistics.median(runs[1]) / NUMBER * 1e9


def bare(library: ctypes.CDLL, name: str, *types: Any) -> Any:
    function = library[name]
    function.restype, function.argtypes = c_int, list(types)
    return function


def cudnn_cases() -> list[Case]:
    lib = cudnn.library.open()
    desc = cudnn.cudnnCreateTensorDescriptor()
    filters = cudnn.cudnnCreateFilterDescriptor()
    conv = cudnn.cudnnCreateConvolutionDescriptor()
    backend = cudnn.cudnnBackendCreateDescriptor(cudnn.CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    cudnn.cudnnSetTensor4dDescriptor(desc, 0, 0, 1, 4, 8, 8)
    cudnn.cudnnSetFilter4dDescriptor(filters, 0, 0, 4, 4, 3, 3)
    cudnn.cudnnSetConvolution2dDescriptor(conv, 1, 1, 1, 1, 1, 1, 0, 0)

    set4d = bare(lib, "cudnnSetTensor4dDescriptor", c_void_p, *[c_int] * 6)
    set_nd = bare(lib, "cudnnSetTensorNdDescriptor", c_void_p, c_int, c_int, c_void_p, c_void_p)
    size = bare(lib, "cudnnGetTensorSizeInBytes", c_void_p, c_void_p)
    get4d = bare(lib, "cudnnGetTensor4dDescriptor", c_void_p, *[c_void_p] * 9)
    outdim = bare(lib, "cudnnGetConvolution2dForwardOutputDim", *[c_void_p] * 7)
    attribute = bare(lib, "cudnnBackendSetAttribute", c_void_p, c_int, c_int, c_int64, c_void_p)

    def bare_set_nd() -> int:
        return set_nd(desc, 0, 4, (c_int * 4)(1, 4, 8, 8), (c_int * 4)(256, 64, 8, 1))

    def bare_size() -> int:
        result = c_size_t()
        size(desc, byref(result))
        return result.value

    def bare_get4d() -> tuple[int, ...]:
        slots = [c_int() for _ in range(9)]
        get4d(desc, *map(byref, slots))
        return tuple(slot.value for slot in slots)

    def bare_outdim() -> tuple[int, ...]:
        slots = [c_int() for _ in range(4)]
        outdim(conv, desc, filters, *map(byref, slots))
        return tuple(slot.value for slot in slots)

    value = (c_int64 * 1)(16)
    alignment = (backend, cudnn.CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, cudnn.CUDNN_TYPE_INT64, 1, value)

    return [
        (
            "cudnnSetTensor4dDescriptor",
            lambda: set4d(desc, 0, 0, 1, 4, 8, 8),
            lambda: cudnn.cudnnSetTensor4dDescriptor(desc, 0, 0, 1, 4, 8, 8),
        ),
        (
            "cudnnSetTensorNdDescriptor (two sequences)",
            bare_set_nd,
            lambda: cudnn.cudnnSetTensorNdDescriptor(desc, 0, 4, (1, 4, 8, 8), (256, 64, 8, 1)),
        ),
        ("cudnnGetTensorSizeInBytes (one result)", bare_size, lambda: cudnn.cudnnGetTensorSizeInBytes(desc)),
        (
            "cudnnGetTensor4dDescriptor (nine results)",
            bare_get4d,
            lambda: cudnn.cudnnGetTensor4dDescriptor(desc),
        ),
        (
            "cudnnGetConvolution2dForwardOutputDim",
            bare_outdim,
            lambda: cudnn.cudnnGetConvolution2dForwardOutputDim(conv, desc, filters),
        ),
        (
            "cudnnBackendSetAttribute",
            lambda: attribute(*alignment),
            lambda: cudnn.cudnnBackendSetAttribute(*alignment),
        ),
        (
            "alpha and beta for an output tensor",
            lambda: (byref(c_float(1.0)), byref(c_float(1.0))),
            lambda: cudnn.library.scale_by_tensor(desc, 1.0, 1.0),
        ),
    ]


def dnnl_cases() -> list[Case]:
    lib = dnnl.library.open()
    engine = dnnl.dnnl_engine_create(dnnl.dnnl_cpu, 0)
    stream = dnnl.dnnl_stream_create(engine, dnnl.dnnl_stream_default_flags)
    desc = dnnl.dnnl_memory_desc_create_with_tag(1, (16,), dnnl.dnnl_f32, dnnl.dnnl_a)
    source, target = (dnnl.dnnl_memory_create(desc, engine, dnnl.DNNL_MEMORY_ALLOCATE) for _ in range(2))
    reorder = dnnl.dnnl_primitive_create(
        dnnl.dnnl_reorder_primitive_desc_create(desc, engine, desc, engine, None)
    )
    arguments = (dnnl.dnnl_exec_arg_t * 2)((dnnl.DNNL_ARG_FROM, source), (dnnl.DNNL_ARG_TO, target))
    execute = bare(lib, "dnnl_primitive_execute", c_void_p, c_void_p, c_int, c_void_p)
    handle = bare(lib, "dnnl_memory_set_data_handle", c_void_p, c_void_p)
    kind = dnnl.dnnl_query_data_type
    query = bare(lib, "dnnl_memory_desc_query", c_void_p, c_int, c_void_p)

    def bare_query() -> int:
        result = c_int()
        query(desc, kind, byref(result))
        return result.value

    buffer = ctypes.create_string_buffer(4096)
    where = ctypes.addressof(buffer)
    return [
        (
            "dnnl_primitive_execute (16-element reorder)",
            lambda: execute(reorder, stream, 2, arguments),
            lambda: dnnl.dnnl_primitive_execute(reorder, stream, 2, arguments),
        ),
        (
            "dnnl_memory_set_data_handle",
            lambda: handle(source, where),
            lambda: dnnl.dnnl_memory_set_data_handle(source, where),
        ),
        ("dnnl_memory_desc_query", bare_query, lambda: dnnl.dnnl_memory_desc_query(desc, kind)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="write the table to benchmarks/results/")
    options = parser.parse_args()
    rows = []
    for name, left, right in cudnn_cases() + dnnl_cases():
        bare_ns, lamina_ns = nanoseconds(left, right)
        rows.append({"call": name, "ctypes_ns": round(bare_ns), "lamina_ns": round(lamina_ns)})
    print("| call | bare ctypes, ns | lamina, ns | difference, ns |\n|---|---|---|---|")
    for row in rows:
        difference = int(row["lamina_ns"]) - int(row["ctypes_ns"])
        print(f"| {row['call']} | {row['ctypes_ns']} | {row['lamina_ns']} | {difference} |")
    if options.json:
        record = {
            "what": "processor time per call in ns",
            "processor": processor(),
            "versions": versions(["nvidia-cudnn-cu13", "onednn-cpu-gomp"]),
            "rows": rows,
        }
        print(write("call_cost", record))


if __name__ == "__main__":
    main()
