"""Define the constants of ``spconv.constants``; two environment variables set two of them.

``SPCONV_SAVED_WEIGHT_LAYOUT`` sets ``SAVED_WEIGHT_LAYOUT``, the order of axes of weights in the
checkpoints to load. Empty and ``KRSC`` mean ``[C_out, *k, C_in]`` for kernel size k, ``RSKC`` means
``[*k, C_out, C_in]``, and ``RSCK`` means ``[*k, C_in, C_out]``. ``SPCONV_DEBUG_SAVE_PATH`` is the
file that ``spconv.debug_utils`` writes. No other constant has an effect.
"""

from __future__ import annotations

import os
import re

import torch

PYTORCH_VERSION = [int(part) for part in re.findall(r"\d+", torch.__version__)[:3]]
TORCH_HAS_AMP = True
NDIM_DONT_CARE = 3
FILTER_HWIO = False
SAVED_WEIGHT_LAYOUT = os.environ.get("SPCONV_SAVED_WEIGHT_LAYOUT", "")
ALL_WEIGHT_IS_KRSC = True
SPCONV_DEBUG_SAVE_PATH = os.environ.get("SPCONV_DEBUG_SAVE_PATH", "")
SPCONV_DEBUG_WEIGHT = False
SPCONV_CPP_INDICE_PAIRS = True
SPCONV_CPP_INDICE_PAIRS_IGEMM = False
SPCONV_CPP_GEMM = True
SPCONV_USE_DIRECT_TABLE = True
SPCONV_DO_SORT = True
SPCONV_FX_TRACE_MODE = False
SPCONV_ALLOW_TF32 = False


def is_amp_enabled() -> bool:
    """Return True if PyTorch's autocast is on for GPUs."""
    return torch.is_autocast_enabled()
