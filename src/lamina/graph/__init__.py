"""Floor 4: record a program as a graph, then differentiate, optimize, plan, lay out and run it."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing
from lamina.graph.ir.autodiff import gradients
from lamina.graph.ir.capture import trace
from lamina.graph.ir.graph import Graph, Node, Value, constant
from lamina.graph.ir.serialize import load, save
from lamina.graph.planning.rematerialize import MemoryLimitError
from lamina.graph.run.executable import Executable, compile
from lamina.graph.run.html import html_page
from lamina.graph.run.profile import Profile, profile, record_call
from lamina.graph.run.timeline import Timeline, clock_offset, merge_timelines
from lamina.graph.transforms.batching import vmap
from lamina.graph.transforms.custom_gradient import custom_vjp
from lamina.graph.transforms.derivatives import grad, hvp, jvp, value_and_grad, vjp
from lamina.graph.transforms.jacobians import hessian, jacfwd, jacrev
from lamina.graph.transforms.recompute import checkpoint

if TYPE_CHECKING:
    from lamina.graph.check import OpCheckError, check_op

__all__ = [
    "Executable",
    "Graph",
    "MemoryLimitError",
    "Node",
    "OpCheckError",
    "Profile",
    "Timeline",
    "Value",
    "check_op",
    "checkpoint",
    "clock_offset",
    "compile",
    "constant",
    "custom_vjp",
    "grad",
    "gradients",
    "hessian",
    "html_page",
    "hvp",
    "jacfwd",
    "jacrev",
    "jvp",
    "load",
    "merge_timelines",
    "profile",
    "record_call",
    "save",
    "trace",
    "value_and_grad",
    "vjp",
    "vmap",
]
__dir__ = listing(__all__)

__getattr__ = lazy(__name__, {"OpCheckError": "lamina.graph.check", "check_op": "lamina.graph.check"})
