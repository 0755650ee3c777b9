"""torch.func's transformations in a graph (`vmap`, `grad`, `jacrev`), computed away.

PyTorch's graphs keep them as calls that enter and leave a level, with the calls of one sample in between. Such a
stretch is run once on what was seen in place of its arguments, below autograd: what arrives there are calls of whole
batches, and those of derivatives, which take the stretch's place.
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

#: Where functions of levels are from, and what only prepares PyTorch for them.
_PLACES = ("torch._functorch", "torch._C._functorch")
_PREPARING = ("_saved_tensors_hooks_disable", "_saved_tensors_hooks_enable", "lazy_load_decompositions")


def flattened(module: GraphModule) -> GraphModule:
    """The module, in whose graph each stretch of levels is replaced by the calls that are left of it.

    A stretch stays as it is where a size in it is a symbol, where it enters `no_grad`, which below autograd nobody
    sees, and where PyTorch cannot run it without numbers.
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
    """The nodes of a graph from where a first level is entered to where the last one is left, for each such place;
    on to the last call that reads what belongs to a level (`torch.func.vjp` gives its function away, whose calls
    may be of a level of their own, as those of `jacrev` are).
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
    """Whether a node gives what belonged to a level without it."""
    return node.op == "call_function" and any(w in own_name(node) for w in ("_unwrap", "_remove_batch_dim"))


def _is_of_levels(node: Node) -> bool:
    """Whether a node calls what torch.func is made of, and gives something."""
    place = getattr(node.target, "__module__", None) or ""
    return node.op == "call_function" and place.startswith(_PLACES) and bool(node.users)


def _flatten(module: GraphModule, stretch: Sequence[Node]) -> bool:
    """Put what is left of a stretch in its place. False where that cannot be told."""
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
                values[inner] = values[inner.args[0]]  # what autograd keeps of a result
            else:
                values[inner] = _copied(module, inner, body, values)
                values[inner].meta["stack_trace"] = stretch[-1].meta.get("stack_trace")
    for node, value in zip(results, made, strict=True):
        node.replace_all_uses_with(value, delete_user_cb=lambda user: user not in inside)
    for node in reversed(stretch):
        module.graph.erase_node(node)
    return True


def _is_without_gradient(stretch: Sequence[Node]) -> bool:
    """Whether gradients are switched off in it (torch.func.grad switches them on, and then to what they were)."""
    return not all([bool(n.args[0]) for n in stretch if own_name(n) == "_set_grad_enabled"][:1])


def _traced(
    module: GraphModule, stretch: Sequence[Node], given: Sequence[Node], results: Sequence[Node]
) -> GraphModule | None:
    """The graph of the calls that a stretch makes below autograd; None where it cannot be made."""

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
            warnings.simplefilter("ignore")  # what PyTorch says of its own formulas
            made = make_fx(run, decomposition_table=_decompositions())(*shown)
    except Exception:  # whatever a foreign function does with tensors that have no numbers
        return None
    made.graph.eliminate_dead_code()
    leaves = pytree.tree_leaves([(n.args, n.kwargs) for n in made.graph.nodes])
    sized = any(isinstance(x, (torch.SymInt, torch.SymFloat)) for x in leaves)
    held = [getattr(made, str(n.target)) for n in made.graph.nodes if n.op == "get_attr"]
    return None if sized or any(isinstance(x, FakeTensor) for x in held) else made


@contextmanager
def levels_kept() -> Iterator[None]:
    """Behind the block PyTorch is at the level at which it was, wherever the block was left."""
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
    """Whether a level of derivatives forward may be entered: PyTorch has one at most."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        return False
    torch._C._exit_dual_level(level=level)
    return True


def _called(module: GraphModule, node: Node, args: Any, kwargs: Any) -> Any:
    """What a node gives; `detach` with a mark, a copy, as below autograd only this one is the user's."""
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
    """PyTorch's formulas of the functions that have no counterpart, as most that give gradients."""
    return {op: formula for op, formula in core_aten_decompositions().items() if not is_known(op)}


def _copied(module: GraphModule, inner: Node, body: GraphModule, values: dict[Node, Any]) -> Node:
    """A node of the traced graph in the module's, which takes over what it holds."""
    if inner.op != "get_attr":
        return module.graph.node_copy(inner, values.__getitem__)
    name = next(n for i in range(len(vars(module)) + 1) if not hasattr(module, n := f"_level_{i}"))
    setattr(module, name, getattr(body, str(inner.target)))
    found = module.graph.create_node("get_attr", name)
    found.meta = dict(inner.meta)
    return found
