"""A few planes that become the innermost axis: channels of an image, with an optional conversion."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends.cuda.launch.indexing import Space, offset_function
from lamina.backends.cuda.launch.program import LOOPING, VECTOR, Launch, Place, Program, constants

#: The most planes that separate threads interleave, and the accesses of a block to each of them.
_MOST_PLANES, _RUN = 4, 256


def interleaves(space: Space, width: int, places: Sequence[Place]) -> bool:
    """Whether a few planes of the source become the innermost axis, all in accesses of `width` elements.

    space: row 0 of its strides is the source, row 1 the target.
    """
    if len(space.sizes) < 2 or 0 in space.sizes or width == 1 or any(p.offset % VECTOR for p in places):
        return False
    (*_, columns, planes), (read, write) = space.sizes, space.strides
    if not 1 < planes <= _MOST_PLANES or read[-2] != 1 or write[-2:] != (planes, 1):
        return False
    return all(n % width == 0 for n in (columns, read[-1], *read[:-2], *write[:-2]))


def interleaved(
    space: Space,
    width: int,
    types: tuple[str, str],
    converted: str,
    places: Sequence[Place],
    *,
    stepwise: bool = False,
) -> Launch:
    """The launch for such a space. types: of source and target, in C. stepwise: see `Program`.

    converted: the body of the C function from e0, a source element, to a target element.
    """
    *outer, columns, planes = range(len(space.sizes))
    batch = space.part(outer) if outer else Space((1,), ((0,), (0,)))
    given, made = types
    text = constants(
        S=given,
        T=made,
        V=width,
        PLANES=space.sizes[planes],
        COLUMNS=space.sizes[columns],
        SOURCE_PLANE=space.strides[0][planes],
        BATCHES=batch.count,
    )
    text = f"typedef {space.index_type} Index;\n{text}"
    text += f"__device__ __forceinline__ T converted(S e0) {{ {converted} }}\n"
    text += offset_function("source_batch", batch, 0) + offset_function("target_batch", batch, 1)
    runs = -(-(space.sizes[columns] // width * batch.count) // _RUN)
    return Launch(
        Program("interleave", "elementwise/interleave.cu", text, stepwise),
        (runs,),
        (_RUN,),
        tuple(places),
        waves=LOOPING * 4,
    )
