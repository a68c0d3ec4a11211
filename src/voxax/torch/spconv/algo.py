"""Define spconv's enumerations of algorithms, which all run on the same CPU kernels here."""

from __future__ import annotations

import enum


class ConvAlgo(enum.Enum):
    """Algorithm of a layer; it decides the class of the pairs that layers store in a tensor."""

    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class AlgoHint(enum.Enum):
    """Flags of the products that an algorithm can compute, spelled as in spconv."""

    NoHint = 0b000
    Fowrard = 0b001
    BackwardInput = 0b010
    BackwardWeight = 0b100


class Activation(enum.Enum):
    """Activation that a layer applies in evaluation mode, ``cumm.tensorview.gemm.Activation``."""

    None_ = 0
    ReLU = 1
    Sigmoid = 2
    LeakyReLU = 3
