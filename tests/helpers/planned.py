"""A GPU that is not there: plans for it are made, and its kernels compiled, without one."""

from lamina.runtime import Device, Machine

#: What most tests plan for.
H200 = Device("cuda", machine=Machine.named("h200"))
#: One of each kind that there is a property file of.
KINDS = {name: Device("cuda", machine=Machine.named(name)) for name in Machine.names()}
