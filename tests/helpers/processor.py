"""Instructions required by a test. The skip reason has the prefix of `tools.skips`: another machine runs the test."""

import pytest

from lamina.c import dnnl
from tools.skips import PROCESSOR

_ISA, _VNNI = dnnl.dnnl_get_effective_cpu_isa(), dnnl.dnnl_cpu_isa_t.dnnl_cpu_isa_avx512_core_vnni
_BF16 = dnnl.dnnl_cpu_isa_t.dnnl_cpu_isa_avx512_core_bf16
_FP16 = dnnl.dnnl_cpu_isa_t.dnnl_cpu_isa_avx512_core_fp16
#: The tables of CPU plans are for processors with these.
HAS_AVX512_VNNI = _ISA & _VNNI == _VNNI
needs_avx512_vnni = pytest.mark.skipif(not HAS_AVX512_VNNI, reason=f"{PROCESSOR} AVX-512 VNNI")
#: Programs in bfloat16 are planned otherwise for processors that compute in it: the tables are for those that do not.
HAS_BFLOAT16 = _ISA & _BF16 == _BF16
without_bfloat16 = pytest.mark.skipif(
    HAS_BFLOAT16, reason=f"{PROCESSOR} AVX-512 without bfloat16 instructions"
)
#: So are those in float16, and ops in it.
HAS_FLOAT16 = _ISA & _FP16 == _FP16
without_float16 = pytest.mark.skipif(HAS_FLOAT16, reason=f"{PROCESSOR} AVX-512 without float16 instructions")
