"""Execution arguments by short names: ARG.SRC is DNNL_ARG_SRC."""

from lamina.c.dnnl import DNNL_ARG_BIAS as BIAS
from lamina.c.dnnl import DNNL_ARG_DIFF_BIAS as DIFF_BIAS
from lamina.c.dnnl import DNNL_ARG_DIFF_DST as DIFF_DST
from lamina.c.dnnl import DNNL_ARG_DIFF_SCALE as DIFF_SCALE
from lamina.c.dnnl import DNNL_ARG_DIFF_SHIFT as DIFF_SHIFT
from lamina.c.dnnl import DNNL_ARG_DIFF_SRC as DIFF_SRC
from lamina.c.dnnl import DNNL_ARG_DIFF_WEIGHTS as DIFF_WEIGHTS
from lamina.c.dnnl import DNNL_ARG_DST as DST
from lamina.c.dnnl import DNNL_ARG_MEAN as MEAN
from lamina.c.dnnl import DNNL_ARG_MULTIPLE_SRC as MULTIPLE_SRC
from lamina.c.dnnl import DNNL_ARG_SCALE as SCALE
from lamina.c.dnnl import DNNL_ARG_SCRATCHPAD as SCRATCHPAD
from lamina.c.dnnl import DNNL_ARG_SHIFT as SHIFT
from lamina.c.dnnl import DNNL_ARG_SRC as SRC
from lamina.c.dnnl import DNNL_ARG_SRC_0 as SRC_0
from lamina.c.dnnl import DNNL_ARG_SRC_1 as SRC_1
from lamina.c.dnnl import DNNL_ARG_VARIANCE as VARIANCE
from lamina.c.dnnl import DNNL_ARG_WEIGHTS as WEIGHTS
from lamina.c.dnnl import DNNL_ARG_WORKSPACE as WORKSPACE

__all__ = [
    "BIAS",
    "DIFF_BIAS",
    "DIFF_DST",
    "DIFF_SCALE",
    "DIFF_SHIFT",
    "DIFF_SRC",
    "DIFF_WEIGHTS",
    "DST",
    "MEAN",
    "MULTIPLE_SRC",
    "SCALE",
    "SCRATCHPAD",
    "SHIFT",
    "SRC",
    "SRC_0",
    "SRC_1",
    "VARIANCE",
    "WEIGHTS",
    "WORKSPACE",
]
