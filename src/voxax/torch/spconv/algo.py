"""Define spconv's enumerations of algorithms, which all run on the same CPU kernels here."""

from __future__ import annotations

import enum


class ConvAlgo(enum.Enum):
    """Algorithm of a layer; here it only decides the class of kernel maps in ``indice_dict``."""

    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class AlgoHint(enum.Enum):
    """Flags for a layer's output and its two gradients, spelled as in spconv; without effect."""

    NoHint = 0b000
    Fowrard = 0b001
    BackwardInput = 0b010
    BackwardWeight = 0b100


class Activation(enum.Enum):
    """Activation that a layer applies in evaluation mode; also in ``cumm.tensorview.gemm``."""

    None_ = 0
    ReLU = 1
    Sigmoid = 2
    LeakyReLU = 3
