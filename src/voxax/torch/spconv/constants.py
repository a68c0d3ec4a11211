"""Constants that code of spconv reads.

``SAVED_WEIGHT_LAYOUT`` is the order of axes in checkpoints that are loaded, from the environment's
``SPCONV_SAVED_WEIGHT_LAYOUT``. Empty and ``KRSC`` are ``[C_out, *k, C_in]``,
``RSKC`` is ``[*k, C_out, C_in]`` and ``RSCK`` is ``[*k, C_in, C_out]``. ``SPCONV_DEBUG_SAVE_PATH``
is read by :mod:`voxax.torch.spconv.debug_utils`, and no other constant has an effect.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

PYTORCH_VERSION = [int(part) for part in re.findall(r"\d+", torch.__version__)[:3]]
TORCH_HAS_AMP = True

PACKAGE_NAME = "spconv"
PACKAGE_ROOT = Path(__file__).parent
EDITABLE_INSTALLED = False
DISABLE_JIT = True
NDIM_DONT_CARE = 3
FILTER_HWIO = False
SAVED_WEIGHT_LAYOUT = os.environ.get("SPCONV_SAVED_WEIGHT_LAYOUT", "")
ALL_WEIGHT_IS_KRSC = True
BOOST_ROOT = None
SPCONV_DEBUG_SAVE_PATH = os.environ.get("SPCONV_DEBUG_SAVE_PATH", "")
SPCONV_DEBUG_WEIGHT = False
SPCONV_BWD_SPLITK = [1]
SPCONV_CPP_INDICE_PAIRS = True
SPCONV_CPP_INDICE_PAIRS_IGEMM = False
SPCONV_CPP_GEMM = True
SPCONV_USE_DIRECT_TABLE = True
SPCONV_DIRECT_TABLE_HASH_SIZE_SCALE = 1.1
SPCONV_DO_SORT = True
SPCONV_FX_TRACE_MODE = False
SPCONV_ALLOW_TF32 = False
SPCONV_INT8_DEBUG = False
SPCONV_DEBUG_NVRTC_KERNELS = False
SPCONV_DEBUG_CPP_ONLY = False


class AllocKeys:
    """Names of buffers in spconv's GPU code."""

    PairBwd = "PairBwd"
    IndiceNumPerLoc = "IndiceNumPerLoc"
    PairMask = "PairMask"
    MaskArgSort = "MaskArgSort"
    OutIndices = "OutIndices"
    PairFwd = "PairFwd"
    PairMaskBwd = "PairMaskBwd"
    MaskArgSortBwd = "MaskArgSortBwd"
    MaskOutputFwd = "MaskOutputFwd"
    OutFeatures = "OutFeatures"
    Features = "Features"
    Filters = "Filters"
    OutBp = "OutBp"
    DIn = "DIn"
    DFilters = "DFilters"
    InpBuffer = "InpBuffer"
    OutBuffer = "OutBuffer"
    IndicePairsUniq = "IndicePairsUniq"
    IndicePairsUniqBackup = "IndicePairsUniqBackup"
    HashKOrKV = "HashKOrKV"
    HashV = "HashV"
    ThrustTemp = "ThrustTemp"
    TightUniqueCount = "TightUniqueCount"


def is_amp_enabled() -> bool:
    """Return whether autocast is on for GPUs, of which nothing runs here."""
    return torch.is_autocast_enabled()
