"""The end of own kernels for products: the epilogue on a sum, and writing the element."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.elementwise.loop import Statement
from lamina.backends.cuda.elementwise.pointwise import chain_values
from lamina.backends.cuda.launch.program import c_type, wide_type
from lamina.spec import Spec


def finish_text(
    c: Spec,
    epilogue: Epilogue,
    extras: Sequence[Spec],
    written: tuple[str, str],
    read: Sequence[tuple[str, str]],
    more: str = "",
) -> str:
    """`finish(sum, m, n, c GIVEN)` as C++, with EXTRAS, further parameters, and GIVEN, their names.

    written: the strides of c along its rows and columns; read: those of each further operand. more: further
    parameters of the function.
    """
    body = chain_values(epilogue.steps, c, Statement("a0", wide_type(c.dtype), ""), extras, 1)
    types, names = [c_type(s.dtype) for s in extras], [f"x{i}" for i in range(len(extras))]
    parameters = "".join(f", const {kind} *{name}" for kind, name in zip(types, names, strict=True))
    text = f"#define EXTRAS {parameters}\n#define GIVEN {''.join(f', {name}' for name in names)}\n"
    text += f"__device__ __forceinline__ void finish(A a0, Index m, Index n, T *c EXTRAS{more})\n{{\n"
    for number, (spec, name, (along_m, along_n)) in enumerate(zip(extras, names, read, strict=True), 1):
        text += (
            f"    const {wide_type(spec.dtype)} a{number} = widen({name}[m * {along_m} + n * {along_n}]);\n"
        )
    text += "".join(f"    const {v.type} {v.name} = {v.expression};\n" for v in body)
    value = body[-1].name if body else "a0"
    return f"{text}    c[m * {written[0]} + n * {written[1]}] = narrow<T>({value});\n}}\n"
