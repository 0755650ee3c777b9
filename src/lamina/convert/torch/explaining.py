"""`explain`: how a PyTorch module would be converted, or compiled by torch.compile's backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch._dynamo import OptimizedModule
from torch.fx import GraphModule

from lamina.convert.torch.backend import GraphFunction, lamina
from lamina.convert.torch.converted import exported
from lamina.convert.torch.exporting import Inputs
from lamina.convert.torch.memory import copied
from lamina.convert.torch.report import ConversionReport, LeftCalls


def explain(module: Callable[..., Any], *args: Any, **kwargs: Any) -> ConversionReport:
    """Print and return how a PyTorch module would be converted for such a call: its calls, and unsupported ones.

    module: as it is, for `from_torch`; or the result of `torch.compile` (modules and functions), for
    `backend="lamina"`: the calls that fall back to PyTorch are listed, one line for each function and reason, with
    their number. For that a copy of the module is compiled anew and called once with these inputs; a function is
    called directly. The state of PyTorch's random generators is restored afterwards.

    Raises TorchConversionError if torch.export cannot export it.
    """
    if isinstance(module, OptimizedModule):
        report = _of_backend(module._orig_mod, args, kwargs)
    elif (original := vars(module).get("_torchdynamo_orig_callable")) is not None:
        report = _of_backend(original, args, kwargs)
    elif isinstance(module, torch.nn.Module):
        report = ConversionReport.of(module, [exported(module, *Inputs.of(args, kwargs)).program])
    else:
        raise TypeError(
            f"explain: takes a torch.nn.Module, or what torch.compile gives, got {type(module).__name__}"
        )
    print(report)
    return report


def _of_backend(original: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> ConversionReport:
    made: list[GraphFunction] = []

    @wraps(lamina)
    def backend(graph: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made.append(lamina(graph, inputs))
        return made[-1]

    twin = copied(original) if isinstance(original, torch.nn.Module) else original
    with torch.random.fork_rng():
        torch.compile(twin, backend=backend)(*args, **kwargs)
    left = LeftCalls()
    for function in made:
        left.join(function.notes.left)
    return ConversionReport.of(original, [p for f in made for p in f.notes.programs], left)
