"""Primitive descriptors (a kernel chosen for given operands) and primitives (that kernel, ready to run)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lamina._cached import cached_property
from lamina.c import dnnl
from lamina.c.errors import DnnlError, DnnlLastImplReached, dnnl_class
from lamina.onednn.attributes import Attributes, Binary, post_op_argument
from lamina.onednn.engine import Stream, default_stream
from lamina.onednn.memory import Memory, MemoryDesc
from lamina.onednn.owned import Owned
from lamina.onednn.threads import alone, is_small, run_alone

Query = dnnl.dnnl_query_t
#: The execution arguments of a recipe's operands.
_ARGUMENTS = {
    "src": dnnl.DNNL_ARG_SRC,
    "src0": dnnl.DNNL_ARG_SRC_0,
    "src1": dnnl.DNNL_ARG_SRC_1,
    "dst": dnnl.DNNL_ARG_DST,
    "weights": dnnl.DNNL_ARG_WEIGHTS,
    "bias": dnnl.DNNL_ARG_BIAS,
    "diff_src": dnnl.DNNL_ARG_DIFF_SRC,
    "diff_dst": dnnl.DNNL_ARG_DIFF_DST,
    "diff_weights": dnnl.DNNL_ARG_DIFF_WEIGHTS,
    "diff_bias": dnnl.DNNL_ARG_DIFF_BIAS,
}


@dataclass(frozen=True, eq=False)
class Recipe:
    """The arguments from which a primitive descriptor was made, so that it can be recreated.

    title, details: for error messages; the title's first word names the C function. operands: by the C parameters'
    names. engines: the parameters that take the engine. hint: the forward primitive. sources: operands of a primitive
    with any number of them. settings: numbers, and lists with one number per spatial axis.
    """

    title: str
    operands: Mapping[str, MemoryDesc | None]
    attributes: Attributes
    details: str
    engines: tuple[str, ...]
    hint: PrimitiveDesc | None
    sources: Sequence[MemoryDesc] | None
    settings: Mapping[str, Any]

    @cached_property
    def is_small(self) -> bool:
        """Whether a single thread suffices: the primitive is then made for one thread, and run by one."""
        return is_small(self.operands, self.sources)

    @cached_property
    def text(self) -> str:
        """Human-readable: "convolution_forward src=f32[8,3,32,32] weights=… +relu strides=(1, 1) …"."""
        shown = (f"{name}={desc}" for name, desc in self.operands.items() if desc is not None)
        posts = (f"+{post}" for post in self.attributes.post_ops)
        return " ".join(filter(None, (self.title, *shown, *posts, self.details)))


class PrimitiveDesc(Owned):
    """A kernel that oneDNN chose. Made by the functions of `lamina.onednn.primitives`.

    `context` names its operation; `post_ops` are those of the attributes; `recipe` is how it was made.
    """

    def __init__(self, handle: int, attributes: Attributes, recipe: Recipe) -> None:
        super().__init__(handle, dnnl.dnnl_primitive_desc_destroy, attributes.owner)
        self.recipe, self.post_ops = recipe, attributes.post_ops

    @property
    def context(self) -> str:
        """The operation that it is for."""
        return self.recipe.text

    def md(self, what: Query, index: int = 0, like: MemoryDesc | None = None) -> MemoryDesc:
        """A descriptor by query; the empty one where the primitive has no such operand.

        like: a descriptor of the same sizes and data type, if there is one.
        """
        found = dnnl.dnnl_primitive_desc_query_md(self.handle, what, index)
        return MemoryDesc.copy_of(found, like) if found else MemoryDesc()

    def argument(self, argument: int) -> MemoryDesc:
        """The descriptor of an execution argument (DNNL_ARG_…); the empty one where it takes none.

        A given layout is kept: only those left to the kernel are queried, once.
        """
        given = self._given.get(argument)
        if given is not None and given.is_strided and not given.closed:
            return given
        if argument >= dnnl.DNNL_ARG_ATTR_MULTIPLE_POST_OP_BASE and given is None:
            return MemoryDesc()  # the library would treat another kind of post-op as a binary one
        found = self._chosen.get(argument)
        if found is None or found.closed:
            found = self._chosen[argument] = self.md(Query.dnnl_query_exec_arg_md, argument, given)
        return found

    @cached_property
    def _chosen(self) -> dict[int, MemoryDesc]:
        """Execution arguments with the kernel's layouts."""
        return {}

    @cached_property
    def _given(self) -> dict[int, MemoryDesc]:
        """Execution arguments as they were described."""
        named = {a: d for name, a in _ARGUMENTS.items() if (d := self.recipe.operands.get(name)) is not None}
        binary = {post_op_argument(i): p.desc for i, p in enumerate(self.post_ops) if isinstance(p, Binary)}
        return named | binary

    @cached_property
    def src(self) -> MemoryDesc:
        """The input."""
        return self.argument(dnnl.DNNL_ARG_SRC)

    @cached_property
    def weights(self) -> MemoryDesc:
        """The filter or matrix."""
        return self.argument(dnnl.DNNL_ARG_WEIGHTS)

    @cached_property
    def dst(self) -> MemoryDesc:
        """The output."""
        return self.argument(dnnl.DNNL_ARG_DST)

    @cached_property
    def diff_src(self) -> MemoryDesc:
        """The gradient of the input."""
        return self.argument(dnnl.DNNL_ARG_DIFF_SRC)

    @cached_property
    def diff_weights(self) -> MemoryDesc:
        """The gradient of the filter or matrix."""
        return self.argument(dnnl.DNNL_ARG_DIFF_WEIGHTS)

    @cached_property
    def diff_dst(self) -> MemoryDesc:
        """The gradient of the output."""
        return self.argument(dnnl.DNNL_ARG_DIFF_DST)

    @cached_property
    def workspace(self) -> MemoryDesc:
        """Data that the forward pass keeps for the backward pass (max pooling: the index in the window)."""
        return self.md(Query.dnnl_query_workspace_md)

    @cached_property
    def scratchpad(self) -> MemoryDesc:
        """Scratch memory that an execution needs."""
        return self.md(Query.dnnl_query_scratchpad_md)

    @cached_property
    def implementation(self) -> str:
        """The kernel's name, such as "brgconv:avx512_core"."""
        return str(dnnl.dnnl_primitive_desc_query(self.handle, Query.dnnl_query_impl_info_str, 0))

    def next_implementation(self) -> bool:
        """Switch to the next kernel for the same operation; False, and no change, when there is none."""
        try:
            dnnl.dnnl_primitive_desc_next_impl(self.handle)
        except DnnlLastImplReached:
            return False
        for name in [n for n, v in vars(PrimitiveDesc).items() if isinstance(v, cached_property)]:
            self.__dict__.pop(name, None)
        return True

    def _describe(self) -> str:
        return f"{self.context}, {self.implementation}"


class Primitive(Owned):
    """A kernel ready to run: dnnl_primitive_create, which the library caches by its descriptor."""

    __slots__ = ("desc",)

    def __init__(self, desc: PrimitiveDesc) -> None:
        with alone(desc.recipe.is_small):
            handle = dnnl.dnnl_primitive_create(desc.handle)
        super().__init__(handle, dnnl.dnnl_primitive_destroy, desc.owner)
        self.desc = desc

    def bind(self, args: Mapping[int, Memory], stream: Stream | None = None) -> Callable[[], None]:
        """A function that executes on these memories; it costs one C call and keeps everything alive.

        Args:
            args: execution argument (DNNL_ARG_…) -> memory.
            stream: where it runs.

        Raises (when called):
            DnnlError: naming the operation.
        """
        stream = stream or default_stream()
        kept = (self.owner, stream.owner, tuple(m.owner for m in args.values()))
        array = (dnnl.dnnl_exec_arg_t * len(args))(
            *(dnnl.dnnl_exec_arg_t(a, m.handle) for a, m in args.items())
        )
        execute: Any = dnnl.library.symbols.dnnl_primitive_execute
        primitive, queue, count, recipe = self.handle, stream.handle, len(args), self.desc.recipe

        def run(_kept: object = kept) -> None:
            status = execute(primitive, queue, count, array)
            if status:
                raise failed(status, "dnnl_primitive_execute", recipe.text)

        return run_alone(run) if self.desc.recipe.is_small else run

    def execute(self, args: Mapping[int, Memory], stream: Stream | None = None) -> None:
        """Run once. Raises DnnlError."""
        self.bind(args, stream)()

    def _describe(self) -> str:
        return self.desc._describe() if not self.desc.closed else self.desc.context


def failed(status: int, function: str, context: str) -> DnnlError:
    """The exception for a status, with a description of the operation in place of addresses."""
    return dnnl_class(status)(status, function, "", context)
