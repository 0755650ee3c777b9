"""Random tensors by Philox4x32-10."""

from __future__ import annotations

from lamina.backends import Plan
from lamina.backends.cuda.launch.program import (
    Copy,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.random import RandomNormal, RandomUniform
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(RandomUniform, RandomNormal, source="kernel")
def random(op: RandomUniform | RandomNormal, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(values, next state)."""
    values, state = (spec.fixed for spec in op.infer(*specs))
    inputs, outputs = [specs[0].fixed], [values, state]
    if values.numel == 0:
        return kernel_plan(device, inputs, outputs, [Copy(target(1), source(0), state.nbytes)], label=op.name)
    text = f"typedef {'i32' if values.numel < 2**30 else 'i64'} Index;\ntypedef {c_type(values.dtype)} T;\n"
    text += "#define RANDOM\n" + constants(ELEMENTS=f"{values.numel}LL", **_parameters(op))
    program = Program(op.name, "elementwise/random.cu", text)
    places = (source(0), target(0), target(1))
    launch = looping(program, -(-values.numel // 4), places, each=4)
    return kernel_plan(device, inputs, outputs, [launch], label=op.name)


def _parameters(op: RandomUniform | RandomNormal) -> dict[str, str]:
    """The constants of the distribution, and 0 for those of the other one."""
    found = {"LOW": 0.0, "RANGE": 0.0, "MEAN": 0.0, "STD": 0.0}
    if isinstance(op, RandomUniform):
        found |= {"LOW": op.low, "RANGE": op.high - op.low}
    else:
        found |= {"MEAN": op.mean, "STD": op.std}
    return {name: f"({float(value)!r})" for name, value in found.items()}
