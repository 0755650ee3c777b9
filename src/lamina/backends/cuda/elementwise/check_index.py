"""Range checks of labels and indices: free, unless the policy requests them."""

from __future__ import annotations

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.shape import view
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.check_index import CheckIndex
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(CheckIndex, source="kernel")
def check_index(op: CheckIndex, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A view; with `check_indices` a copy by a kernel that stops the program where an index is out of range."""
    index = specs[0].open.fixed
    if not policy.check_indices or not index.numel:
        return view(index, index, op.name)
    ignored = "0" if op.ignore is None else f"((v) == {op.ignore})"
    text = f"typedef {index_type(index.numel)} Index;\ntypedef {c_type(index.dtype)} T;\n"
    text += constants(COUNT=index.numel, SIZE=op.size, WHAT=f'"{op.what}"')
    program = Program("check_index", "elementwise/check_index.cu", f"{text}#define IGNORED(v) {ignored}\n")
    launch = looping(program, index.numel, (source(), target()))
    return kernel_plan(device, [index], [index], [launch], label=op.name)
