"""The compiled step of text generation: tokens in, logits of the next one out, a cache that is updated in place."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, Protocol
from weakref import WeakKeyDictionary, ref

import numpy as np

from lamina import jitting, ops
from lamina._tree import flatten, unflatten
from lamina.nn.module import Module, substitute
from lamina.ops.core import Operand
from lamina.tensors import Tensor, tensor

Array = np.ndarray[Any, Any]
#: The maximum number of idle steps, with their caches, that are kept for a network.
MOST_STEPS = 4


class Continues(Protocol):
    """A language model that decodes with a cache: `nn.GPT2LMHeadModel`, and converted ones of transformers."""

    def empty_cache(self, batch: int, length: int) -> Any:
        """An empty cache for `length` tokens of `batch` texts: zeros in tuples, lists, dicts and dataclasses."""

    def continued(
        self, input_ids: Any, cache: Any, position: Any, attention_mask: Any = None
    ) -> tuple[Any, Any]:
        """Next-token logits for input_ids (B, L) from `position` on, and the cache: of all (B, L, V), or of the last
        (B, 1, V).

        attention_mask: (B, length of the cache), 0 at the padding on the left of shorter texts; networks that
        generate for texts of one length need not take it.
        """


class DecodingStep:
    """`continued` of a network, compiled for one cache; it is traced for the prompt and for a token.

    The cache, the position and the mask are tensors that the program reads and writes where they are. own: what
    stands for parameters and buffers of these names. encoded: the results of a network's encoder.
    """

    def __init__(
        self,
        net: Any,
        batch: int,
        length: int,
        masked: bool,
        own: Mapping[str, Tensor],
        encoded: Sequence[Tensor] = (),
    ) -> None:
        more = {"encoded": encoded} if encoded else {}
        leaves, structure = flatten(net.empty_cache(batch, length, **more), open_dataclasses=True)
        self.encoded = tuple(tensor(x) for x in encoded)
        self.net, self.own, self.fresh = ref(net), own, True
        self.batch, self.length = batch, length
        self.tensors = [x for x in leaves if isinstance(x, Tensor)]
        where = {x.device for x in self.tensors}
        device = where.pop() if where else None
        self.position = tensor(np.array(0, np.int64), device=device)
        self.mask = tensor(np.ones((batch, length), np.int64), device=device) if masked else None
        self.empty = jitting.jit(self._empty)
        self.forms = [(structure, [None if isinstance(x, Tensor) else x for x in leaves])]
        self.after: dict[int, int] = {}  # forms of the cache before and after a call
        self.programs: list[Callable[[Any], Any]] = []
        self.form = 0

    def begin(self, padding: Array | None, encoded: Sequence[Tensor] = ()) -> None:
        """Empty the cache. padding: how many tokens (B,) are missing on the left, for a step with a mask."""
        for own, new in zip(self.encoded, encoded, strict=True):
            own.copy_(new)
        if not self.fresh:
            self.empty()
        if self.mask is not None and padding is not None:
            self.mask.copy_((np.arange(self.length) >= padding[:, None]).astype(np.int64))
        self.fresh, self.form = False, 0

    def _empty(self) -> None:
        for x in (*self.tensors, self.position):
            x.copy_(ops.zeros_like(x))

    def __call__(self, input_ids: Any) -> tuple[Tensor, Tensor]:
        """The logits (B, V) after the last of input_ids (B, L), and the likeliest token (B, 1)."""
        form = self.form
        while len(self.programs) <= form:
            self.programs.append(jitting.jit(self._traced(len(self.programs))))
        found: tuple[Tensor, Tensor] = self.programs[form](input_ids)
        self.form = self.after[form]
        return found

    def _traced(self, form: int) -> Callable[[Any], tuple[Any, Any]]:
        """The step from one form of the cache: what it holds beside tensors (flags, counts) is fixed in a program."""

        def step(input_ids: Any) -> tuple[Any, Any]:
            net = self.net()
            assert net is not None, "who calls has the network"
            structure, others = self.forms[form]
            held = iter(self.tensors)
            cache = unflatten(structure, [next(held) if x is None else x for x in others])
            options: dict[str, Any] = {} if self.mask is None else {"attention_mask": self.mask}
            options |= {"encoded": self.encoded} if self.encoded else {}
            with substitute(net, self.own) if self.own else nullcontext():
                logits, after = net.continued(input_ids, cache, self.position, **options)
            self.after[form] = self._write(after)
            self.position.copy_(ops.add(self.position, input_ids.shape[1]))
            last = logits[:, -1]
            return last, ops.cast(ops.argmax(last, 1, keepdim=True), "int64")

        return step

    def _write(self, after: Any) -> int:
        """Write the new cache over the old one; its form. Raises TypeError for one of other tensors."""
        leaves, structure = flatten(after, open_dataclasses=True)
        new = [x for x in leaves if isinstance(x, Operand)]
        if [x.spec.open for x in new] != [x.spec.open for x in self.tensors]:
            raise TypeError(
                "generate: `continued` must return a cache like the one that it takes, of "
                f"{[str(x.spec.open) for x in self.tensors]}, got {[str(x.spec.open) for x in new]}"
            )
        for own, value in zip(self.tensors, new, strict=True):
            if value is not own:
                own.copy_(value)
        form = structure, [None if isinstance(x, Operand) else x for x in leaves]
        if form not in self.forms:
            self.forms.append(form)
        return self.forms.index(form)


class _Kept:
    """What is kept for a network that generates.

    kinds: of its parameters and buffers, for which the rest holds. own: copies of those whose memory belongs to
    another library, which may write it at any time: a program would read and arrange them for its kernels at each
    token. They follow the originals once for each call. idle: steps that nobody uses, the last used last.
    """

    def __init__(self, net: Module) -> None:
        self.kinds = _kinds(net)
        self.own = {name: tensor(x) for name, x in _state(net) if x.buffer.borrowed}
        self.idle: OrderedDict[Hashable, list[DecodingStep]] = OrderedDict()
        self.encoder = jitting.jit(self._encoder(ref(net)))

    def _encoder(self, there: Callable[[], Any]) -> Callable[..., Any]:
        own = self.own

        def encoded(inputs: Any, attention_mask: Any) -> Any:
            net = there()
            assert net is not None, "who calls has the network"
            with substitute(net, own) if own else nullcontext():
                return net.encoded(inputs, attention_mask)

        return encoded

    def follow(self, net: Module) -> None:
        """Read what the other library may have written."""
        for name, x in _state(net):
            if name in self.own:
                self.own[name].copy_(x)

    def put_back(self, key: Hashable, step: DecodingStep) -> None:
        """Keep a step for later calls."""
        self.idle.setdefault(key, []).append(step)
        self.idle.move_to_end(key)
        while len(self.idle) > MOST_STEPS:
            self.idle.popitem(last=False)


#: What is kept of each network that has generated text.
_kept: WeakKeyDictionary[Any, _Kept] = WeakKeyDictionary()


def _kept_of(net: Any) -> _Kept:
    """What is kept of a network, whose copies are as its parameters are now."""
    kept = _kept.get(net)
    if kept is None or kept.kinds != _kinds(net):
        kept = _kept[net] = _Kept(net)
    else:
        kept.follow(net)
    return kept


@contextmanager
def step_of(
    net: Any, batch: int, length: int, padding: Array | None, encoder: tuple[Any, Any] | None = None
) -> Iterator[DecodingStep]:
    """A step that has begun and that nobody else uses within the block; kept for later calls as long as the network
    is. padding: how many tokens (B,) are missing on the left. encoder: inputs and mask of a network's encoder.

    Raises TypeError for texts of several lengths where the network takes no mask.
    """
    masked = padding is not None
    if masked and not _takes_mask(net.continued):
        raise TypeError(
            f"generate: {type(net).__name__}.continued takes no attention_mask: generate for texts of one length"
        )
    kept = _kept_of(net)
    encoded = () if encoder is None else kept.encoder(*encoder)
    key = batch, length, masked, *(x.spec.open for x in encoded)
    idle = kept.idle.get(key, [])
    step = idle.pop() if idle else DecodingStep(net, batch, length, masked, kept.own, encoded)
    step.begin(padding, encoded)
    yield step
    kept.put_back(key, step)  # not where an error left it half written


def _takes_mask(continued: Callable[..., Any]) -> bool:
    takes = inspect.signature(continued).parameters
    return "attention_mask" in takes or any(p.kind is p.VAR_KEYWORD for p in takes.values())


def _state(net: Any) -> list[tuple[str, Tensor]]:
    return [*net.named_parameters(), *net.named_buffers()] if isinstance(net, Module) else []


def _kinds(net: Any) -> list[Hashable]:
    return [(name, x.spec.open, x.device, x.buffer.borrowed) for name, x in _state(net)]
