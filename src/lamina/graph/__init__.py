"""Floor 4: record a program as a graph, differentiate it, improve it, plan it, place it, run it."""

from lamina._lazy import listing
from lamina.graph.ir.autodiff import grad, gradients, value_and_grad
from lamina.graph.ir.graph import Graph, Node, Value, constant, trace
from lamina.graph.ir.serialize import load, save
from lamina.graph.planning.rematerialize import MemoryLimitError
from lamina.graph.run.executable import Executable, compile
from lamina.graph.run.html import html_page
from lamina.graph.run.profile import Profile, profile

__all__ = [
    "Executable",
    "Graph",
    "MemoryLimitError",
    "Node",
    "Profile",
    "Value",
    "compile",
    "constant",
    "grad",
    "gradients",
    "html_page",
    "load",
    "profile",
    "save",
    "trace",
    "value_and_grad",
]
__dir__ = listing(__all__)
