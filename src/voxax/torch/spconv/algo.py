"""spconv's names of algorithms. They all run on the same kernels here."""

from __future__ import annotations

import enum


class ConvAlgo(enum.Enum):
    """Algorithm of a layer. It decides the format of the pairs in ``indice_dict``."""

    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class AlgoHint(enum.Enum):
    """Products that an algorithm is for (spelled as in spconv)."""

    NoHint = 0b000
    Fowrard = 0b001
    BackwardInput = 0b010
    BackwardWeight = 0b100


class Activation(enum.Enum):
    """Function after a layer in evaluation mode, as ``cumm.tensorview.gemm.Activation``."""

    None_ = 0
    ReLU = 1
    Sigmoid = 2
    LeakyReLU = 3
