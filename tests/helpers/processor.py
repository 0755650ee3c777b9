"""Which instructions a test needs. Its reason begins as `tools.skips` has it: another machine runs the test."""

import pytest

from lamina.c import dnnl
from tools.skips import PROCESSOR

_ISA, _VNNI = dnnl.dnnl_get_effective_cpu_isa(), dnnl.dnnl_cpu_isa_t.dnnl_cpu_isa_avx512_core_vnni
#: The tables of plans for a CPU are of such processors.
needs_avx512_vnni = pytest.mark.skipif(_ISA & _VNNI != _VNNI, reason=f"{PROCESSOR} AVX-512 VNNI")
