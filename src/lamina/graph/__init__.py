"""Floor 4: record a program as a graph, differentiate it, improve it, plan it, place it, run it."""

from lamina.graph.autodiff import grad, gradients, value_and_grad
from lamina.graph.executor import Executable, compile
from lamina.graph.limits import limits
from lamina.graph.page import html_page
from lamina.graph.profile import Profile, profile
from lamina.graph.recompute import MemoryLimitError
from lamina.graph.save import load, save
from lamina.graph.trace import Graph, Node, Value, constant, trace

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
    "limits",
    "load",
    "profile",
    "save",
    "trace",
    "value_and_grad",
]
