"""Execution arguments by short names: ARG.SRC is DNNL_ARG_SRC."""

from lamina.c.dnnl import DNNL_ARG_BIAS as BIAS
from lamina.c.dnnl import DNNL_ARG_DIFF_BIAS as DIFF_BIAS
from lamina.c.dnnl import DNNL_ARG_DIFF_DST as DIFF_DST
from lamina.c.dnnl import DNNL_ARG_DIFF_DST_ITER as DIFF_DST_ITER
from lamina.c.dnnl import DNNL_ARG_DIFF_DST_ITER_C as DIFF_DST_ITER_C
from lamina.c.dnnl import DNNL_ARG_DIFF_DST_LAYER as DIFF_DST_LAYER
from lamina.c.dnnl import DNNL_ARG_DIFF_SCALE as DIFF_SCALE
from lamina.c.dnnl import DNNL_ARG_DIFF_SHIFT as DIFF_SHIFT
from lamina.c.dnnl import DNNL_ARG_DIFF_SRC as DIFF_SRC
from lamina.c.dnnl import DNNL_ARG_DIFF_SRC_ITER as DIFF_SRC_ITER
from lamina.c.dnnl import DNNL_ARG_DIFF_SRC_ITER_C as DIFF_SRC_ITER_C
from lamina.c.dnnl import DNNL_ARG_DIFF_SRC_LAYER as DIFF_SRC_LAYER
from lamina.c.dnnl import DNNL_ARG_DIFF_WEIGHTS as DIFF_WEIGHTS
from lamina.c.dnnl import DNNL_ARG_DIFF_WEIGHTS_ITER as DIFF_WEIGHTS_ITER
from lamina.c.dnnl import DNNL_ARG_DIFF_WEIGHTS_LAYER as DIFF_WEIGHTS_LAYER
from lamina.c.dnnl import DNNL_ARG_DST as DST
from lamina.c.dnnl import DNNL_ARG_DST_ITER as DST_ITER
from lamina.c.dnnl import DNNL_ARG_DST_ITER_C as DST_ITER_C
from lamina.c.dnnl import DNNL_ARG_DST_LAYER as DST_LAYER
from lamina.c.dnnl import DNNL_ARG_MEAN as MEAN
from lamina.c.dnnl import DNNL_ARG_MULTIPLE_SRC as MULTIPLE_SRC
from lamina.c.dnnl import DNNL_ARG_SCALE as SCALE
from lamina.c.dnnl import DNNL_ARG_SCRATCHPAD as SCRATCHPAD
from lamina.c.dnnl import DNNL_ARG_SHIFT as SHIFT
from lamina.c.dnnl import DNNL_ARG_SRC as SRC
from lamina.c.dnnl import DNNL_ARG_SRC_0 as SRC_0
from lamina.c.dnnl import DNNL_ARG_SRC_1 as SRC_1
from lamina.c.dnnl import DNNL_ARG_SRC_ITER as SRC_ITER
from lamina.c.dnnl import DNNL_ARG_SRC_ITER_C as SRC_ITER_C
from lamina.c.dnnl import DNNL_ARG_SRC_LAYER as SRC_LAYER
from lamina.c.dnnl import DNNL_ARG_VARIANCE as VARIANCE
from lamina.c.dnnl import DNNL_ARG_WEIGHTS as WEIGHTS
from lamina.c.dnnl import DNNL_ARG_WEIGHTS_ITER as WEIGHTS_ITER
from lamina.c.dnnl import DNNL_ARG_WEIGHTS_LAYER as WEIGHTS_LAYER
from lamina.c.dnnl import DNNL_ARG_WORKSPACE as WORKSPACE

__all__ = [
    "BIAS",
    "DIFF_BIAS",
    "DIFF_DST",
    "DIFF_DST_ITER",
    "DIFF_DST_ITER_C",
    "DIFF_DST_LAYER",
    "DIFF_SCALE",
    "DIFF_SHIFT",
    "DIFF_SRC",
    "DIFF_SRC_ITER",
    "DIFF_SRC_ITER_C",
    "DIFF_SRC_LAYER",
    "DIFF_WEIGHTS",
    "DIFF_WEIGHTS_ITER",
    "DIFF_WEIGHTS_LAYER",
    "DST",
    "DST_ITER",
    "DST_ITER_C",
    "DST_LAYER",
    "MEAN",
    "MULTIPLE_SRC",
    "SCALE",
    "SCRATCHPAD",
    "SHIFT",
    "SRC",
    "SRC_0",
    "SRC_1",
    "SRC_ITER",
    "SRC_ITER_C",
    "SRC_LAYER",
    "VARIANCE",
    "WEIGHTS",
    "WEIGHTS_ITER",
    "WEIGHTS_LAYER",
    "WORKSPACE",
]
