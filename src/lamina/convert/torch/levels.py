"""torch.func's transformations in a graph (`vmap`, `grad`, `jacrev`), resolved to plain calls.

PyTorch's graphs contain them as calls that enter and leave a level, with the calls for one sample in between. Such a
stretch is run once on its arguments' example values, below autograd: the calls that arrive there, batched
and with derivatives, replace the stretch.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch._decomp import core_aten_decompositions
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from lamina.convert.torch.interpreter import is_known
from lamina.convert.torch.partition import example
from lamina.convert.torch.targets import own_name

#: The modules that define functions of levels, and functions that only prepare PyTorch for them.
_PLACES = ("torch._functorch", "torch._C._functorch")
_PREPARING = ("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable", "lazy_load_decompositions")


def flattened(module: GraphModule) -> GraphModule:
    """The module, with each stretch of levels in its graph replaced by the resulting calls.

    A stretch is left unchanged if a size in it is symbolic, if it enters `no_grad`, which is invisible below
    autograd, or if PyTorch cannot run it on fake tensors.
    """
    stretches = levels(module)
    done = [stretch for stretch in stretches if _flatten(module, stretch)]
    if done and len(done) == len(stretches):
        for node in [n for n in module.graph.nodes if not n.users and own_name(n) in _PREPARING]:
            module.graph.erase_node(node)
    if done:
        module.recompile()
    return module


def levels(module: GraphModule) -> list[list[Node]]:
    """The nodes of a graph from the entry of a first level to the exit of the last one, for each such stretch;
    extended to the last call that reads values of a level (`torch.func.vjp` returns its function, whose calls
    may have their own level, as those of `jacrev` do).
    """
    nodes = list(module.graph.nodes)
    found: list[list[Node]] = []
    begin = depth = 0
    for i, node in enumerate(nodes):
        name = own_name(node) if node.op == "call_function" else ""
        enters, leaves = name.endswith("_increment_nesting"), name.endswith("_decrement_nesting")
        begin = i if enters and not depth else begin
        depth += enters - leaves
        if leaves and not depth:
            stretch = nodes[begin : i + 1]
            found.append(stretch)
        elif not depth and not enters and _is_of_levels(node):
            stretch = [node]
        else:
            continue
        read = {a for n in stretch for a in n.all_input_nodes if not _leaves_level(a)}
        first = next(
            (n for n, own in enumerate(found) if own is not stretch and not read.isdisjoint(own)), None
        )
        if first is not None:
            found[first:] = [nodes[nodes.index(found[first][0]) : i + 1]]
    return found


def _leaves_level(node: Node) -> bool:
    """Whether a node unwraps a value of a level."""
    return node.op == "call_function" and any(w in own_name(node) for w in ("_unwrap", "_remove_batch_dim"))


def _is_of_levels(node: Node) -> bool:
    """Whether a node calls an internal function of torch.func, and has users."""
    place = getattr(node.target, "__module__", None) or ""
    return node.op == "call_function" and place.startswith(_PLACES) and bool(node.users)


def _flatten(module: GraphModule, stretch: Sequence[Node]) -> bool:
    """Replace a stretch by the resulting calls. False if they cannot be determined."""
    inside = set(stretch)
    given = list(dict.fromkeys(a for n in stretch for a in n.all_input_nodes if a not in inside))
    results = [n for n in stretch if any(u not in inside for u in n.users)]
    if _is_without_gradient(stretch) or not all(isinstance(example(n), torch.Tensor) for n in results):
        return False
    body = _traced(module, stretch, given, results)
    if body is None:
        return False
    values: dict[Node, Any] = {}
    arguments = iter(given)
    with module.graph.inserting_before(stretch[0]):
        for inner in body.graph.nodes:
            if inner.op == "placeholder":
                values[inner] = next(arguments)
            elif inner.op == "output":
                made = torch.fx.node.map_arg(inner.args[0], values.__getitem__)
            elif own_name(inner) == "detach" and not any(own_name(n) == "clone" for n in inner.users):
                values[inner] = values[inner.args[0]]  # a result saved by autograd
            else:
                values[inner] = _copied(module, inner, body, values)
                values[inner].meta["stack_trace"] = stretch[-1].meta.get("stack_trace")
    for node, value in zip(results, made, strict=True):
        node.replace_all_uses_with(value, delete_user_cb=lambda user: user not in inside)
    for node in reversed(stretch):
        module.graph.erase_node(node)
    return True


def _is_without_gradient(stretch: Sequence[Node]) -> bool:
    """Whether gradients are disabled in it (torch.func.grad enables them, and then restores the mode)."""
    return not all([bool(n.args[0]) for n in stretch if own_name(n) == "_set_grad_enabled"][:1])


def _traced(
    module: GraphModule, stretch: Sequence[Node], given: Sequence[Node], results: Sequence[Node]
) -> GraphModule | None:
    """The graph of the calls that a stretch makes below autograd; None if it cannot be made."""

    def run(*arguments: Any) -> list[Any]:
        values: dict[Node, Any] = dict(zip(given, arguments, strict=True))
        for node in stretch:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            values[node] = _called(module, node, args, kwargs)
        return [values[n] for n in results]

    shown = [x.detach() if isinstance(x, torch.Tensor) else x for x in map(example, given)]
    try:
        with ExitStack() as stack:
            for mode in {x.fake_mode for x in shown if isinstance(x, FakeTensor)}:
                stack.enter_context(mode)
            stack.enter_context(levels_kept())
            stack.enter_context(torch.enable_grad())
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")  # PyTorch's warnings about its own formulas
            made = make_fx(run, decomposition_table=_decompositions())(*shown)
    except Exception:  # whatever a foreign function does with tensors without values
        return None
    made.graph.eliminate_dead_code()
    leaves = pytree.tree_leaves([(n.args, n.kwargs) for n in made.graph.nodes])
    sized = any(isinstance(x, (torch.SymInt, torch.SymFloat)) for x in leaves)
    held = [getattr(made, str(n.target)) for n in made.graph.nodes if n.op == "get_attr"]
    return None if sized or any(isinstance(x, FakeTensor) for x in held) else made


@contextmanager
def levels_kept() -> Iterator[None]:
    """After the block PyTorch is at its previous level, however the block was left."""
    before, hooks = functorch.maybe_current_level(), torch._C._autograd._saved_tensors_hooks_is_enabled()
    free = _has_no_dual_level()
    try:
        yield
    finally:
        while functorch.maybe_current_level() != before:
            functorch.pop_dynamic_layer_stack()
        if free and not _has_no_dual_level():
            torch._C._exit_dual_level(level=0)
            forward_ad._current_level = -1
        if hooks and not torch._C._autograd._saved_tensors_hooks_is_enabled():
            torch._C._autograd._saved_tensors_hooks_enable()


def _has_no_dual_level() -> bool:
    """Whether a forward-mode level may be entered: PyTorch has at most one."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        return False
    torch._C._exit_dual_level(level=level)
    return True


def _called(module: GraphModule, node: Node, args: Any, kwargs: Any) -> Any:
    """A node's result; `detach` is marked by a copy, because below autograd only that one is the user's."""
    target: Any = node.target
    if own_name(node) == "detach":
        return args[0].detach().clone()
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    if node.op == "call_function":
        return target(*args, **kwargs)
    held: Any = module
    for name in target.split("."):
        held = getattr(held, name)
    return held(*args, **kwargs) if node.op == "call_module" else held


@cache
def _decompositions() -> dict[Any, Any]:
    """PyTorch's formulas of the functions without a counterpart, which include most gradient functions."""
    return {op: formula for op, formula in core_aten_decompositions().items() if not is_known(op)}


def _copied(module: GraphModule, inner: Node, body: GraphModule, values: dict[Node, Any]) -> Node:
    """A node of the traced graph copied to the module's, which takes over its attributes."""
    if inner.op != "get_attr":
        return module.graph.node_copy(inner, values.__getitem__)
    name = next(n for i in range(len(vars(module)) + 1) if not hasattr(module, n := f"_level_{i}"))
    setattr(module, name, getattr(body, str(inner.target)))
    found = module.graph.create_node("get_attr", name)
    found.meta = dict(inner.meta)
    return found
