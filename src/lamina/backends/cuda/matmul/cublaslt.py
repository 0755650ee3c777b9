"""Products by cuBLASLt, where it is installed: its best algorithms compete with cuDNN's engines.

cuBLASLt reads matrices column-major. A row-major C [M, N] is a column-major C^T [N, M] = B^T A^T, so that the
operands are swapped, and a bias along N runs along the rows, as its epilogues require.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from lamina.backends import Call, PlanTape, Run
from lamina.backends.cuda.cudnn_graphs.epilogue import Vector
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.launch.program import VECTOR, Aligned, Bindable, Place, source
from lamina.backends.cuda.select.formulations import Formulation
from lamina.backends.cuda.select.target import target_of
from lamina.c import cublaslt as c
from lamina.cudnn import Handle
from lamina.ops.core import Op
from lamina.ops.primitives.pointwise import GeluTanh, Relu
from lamina.replay.products import Descriptors, Matrices, handle_on, multiply
from lamina.runtime import Device
from lamina.spec import DType, Policy

#: How many algorithms of one product compete.
_MOST = 6
#: The activations of its epilogues.
_ACTIVATIONS: dict[type[Op], str] = {Relu: "relu", GeluTanh: "gelu"}
#: Default limit on the bytes of workspace, if the policy sets none: NVIDIA's advice for Hopper.
_WORKSPACE = 32 << 20
#: cublasLtReductionScheme_t, how split-K sums are combined: in place (1), in no fixed order, or through the workspace
#: in the compute type (2); never in the result's type.
_REPEATABLE, _EXACT = 2, 1 | 2


@cache
def _present() -> bool:
    """Whether the library is available: looked up once."""
    return c.library.available()


@dataclass(frozen=True)
class Extras:
    """The places of an epilogue's operands.

    bias: a vector along N, which "…bgrad" writes. residual: added to the product. aux: the activation's input, in the
        layout of D, which "…aux" writes and the gradients "d…" read.
    """

    bias: Place | None = None
    residual: Place | None = None
    aux: Place | None = None


@dataclass(frozen=True)
class Multiply:
    """One run of one algorithm. places: of A, B and D of the product; extras: of its epilogue's operands."""

    matrices: Matrices
    places: tuple[Place, Place, Place]
    algorithm: bytes
    workspace: int
    extras: Extras
    offset: int = 0

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        first, second, d = (place.address(call) for place in self.places)
        a, b = (second, first) if self.matrices.swapped else (first, second)
        bias, aux, residual = (
            place.address(call) if place else 0
            for place in (self.extras.bias, self.extras.aux, self.extras.residual)
        )
        workspace = call.workspace + self.offset if self.workspace else 0
        return multiply(
            self.matrices,
            device,
            (a, b, d),
            (bias, aux, residual),
            self.algorithm,
            (workspace, self.workspace),
            call.stream,
        )

    def recorded(self, device: Device, call: Call, tape: PlanTape) -> list[Any]:
        """As data."""
        places = [place.address(call) for place in self.places]
        extras = [
            place.address(call) if place else 0
            for place in (self.extras.bias, self.extras.aux, self.extras.residual)
        ]
        workspace = call.workspace + self.offset if self.workspace else 0
        facts = asdict(self.matrices)
        return [["cublaslt", facts, places, extras, self.algorithm.hex(), workspace, self.workspace]]


def matrices(p: Product, dtype: DType, vector: Vector, *, tf32: bool) -> Matrices | None:
    """A product in cuBLASLt's terms, or None where no epilogue of it has such steps."""
    named = [_ACTIVATIONS.get(type(step)) for step in vector.activations]
    if None in named or len(named) > 1 or (p.c_transposed and vector.bias is not None):
        return None
    swapped = (p.n, p.m, p.k, p.b_transposed, p.a_transposed, True)
    sides = (
        (p.m, p.n, p.k, False, False, False) if p.c_transposed else swapped
    )  # transposed results are column-major
    parts = [*named, "bias" if vector.bias is not None else ""]
    compute = "tf32" if dtype.name == "float32" and tf32 else dtype.compute.name
    epilogue = "_".join(filter(None, parts))
    return Matrices(p.batch, *sides, dtype.name, compute, epilogue, vector.residual is not None)


def cublaslt_formulations(
    p: Product,
    dtype: DType,
    places: tuple[Place, Place, Place],
    device: Device | None,
    policy: Policy,
    vector: Vector | None,
    *,
    before: tuple[Bindable, ...] = (),
    after: tuple[Bindable, ...] = (),
    offset: int = 0,
) -> list[Formulation]:
    """The library's best algorithms for a product, none where there is no library, GPU or such epilogue.

    Args:
        places: of A, B and C.
        vector: the epilogue; None: one that cuBLASLt does not support.
        before, after: kernels around the product. offset: bytes of workspace that they take.
    """
    asked = None if vector is None else matrices(p, dtype, vector, tf32=policy.tf32)
    if vector is None or asked is None or device is None or not _multiplies(device, dtype):
        return []
    extras = Extras(*(None if i is None else source(i) for i in (vector.bias, vector.residual)))
    return _formulations(asked, places, extras, device, policy, before, after, offset)


def cublaslt_aux_formulations(
    p: Product,
    dtype: DType,
    places: tuple[Place, Place, Place],
    device: Device,
    policy: Policy,
    epilogue: str,
    extras: Extras,
) -> list[Formulation]:
    """The same with an epilogue by name ("gelu_aux_bias") that writes or reads more than C."""
    asked = matrices(p, dtype, Vector(), tf32=policy.tf32)
    if asked is None or p.c_transposed or not _multiplies(device, dtype):
        return []
    return _formulations(replace(asked, epilogue=epilogue), places, extras, device, policy)


def _multiplies(device: Device, dtype: DType) -> bool:
    """Whether there is a GPU, and the library, and it supports the type."""
    return dtype.name in c.DATA_TYPES and isinstance(target_of(device), Handle) and _present()


def _formulations(
    asked: Matrices,
    places: tuple[Place, Place, Place],
    extras: Extras,
    device: Device,
    policy: Policy,
    before: tuple[Bindable, ...] = (),
    after: tuple[Bindable, ...] = (),
    offset: int = 0,
) -> list[Formulation]:
    """A formulation for each of the best algorithms."""
    limit = _WORKSPACE if policy.workspace_limit is None else max(0, policy.workspace_limit - offset)
    version = ".".join(map(str, c.library.version))
    schemes = _REPEATABLE if policy.deterministic else _EXACT
    found = _algorithms(asked, device, min(limit, _WORKSPACE), schemes)
    formulations = []
    for number, (algorithm, workspace) in enumerate(found):
        step = Multiply(asked, places, algorithm, workspace, extras, offset)
        steps = (Aligned(), *before, step, *after)
        formulations.append(Formulation(f"blas{version}:{number}", steps=steps, scratch=offset + workspace))
    return formulations


def _algorithms(asked: Matrices, device: Device, limit: int, schemes: int) -> list[tuple[bytes, int]]:
    """(algorithm, bytes of workspace), best first; none where the library cannot compute it."""
    with device.current(), suppress(c.CublasError):
        address = 256  # any aligned address: it is not read
        made = Descriptors(asked, address * asked.has_bias, address * asked.has_aux)
        preference = c.cublasLtMatmulPreferenceCreate()
        try:
            c.cublasLtMatmulPreferenceSetAttribute(preference, "max_workspace_bytes", limit)
            c.cublasLtMatmulPreferenceSetAttribute(preference, "reduction_scheme_mask", schemes)
            for name in "abcd":
                c.cublasLtMatmulPreferenceSetAttribute(preference, f"min_alignment_{name}_bytes", VECTOR)
            found = c.cublasLtMatmulAlgoGetHeuristic(
                handle_on(device).address, made.description, made.layouts, preference, _MOST
            )
        finally:
            c.cublasLtMatmulPreferenceDestroy(preference)
        return [(bytes(one.algorithm), int(one.workspace)) for one in found]
    return []
