"""An absent GPU: plans for it are made, and its kernels compiled, without one."""

from lamina.runtime import Device, Machine

#: The device that most tests plan for.
H200 = Device("cuda", machine=Machine.named("h200"))
#: One of each kind with a property file.
KINDS = {name: Device("cuda", machine=Machine.named(name)) for name in Machine.names()}
