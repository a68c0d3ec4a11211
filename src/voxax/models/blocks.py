"""The blocks of residual networks under their former module; new code takes them from
:mod:`voxax.models`."""

from voxax.models.minkunet import ConvNormAct as ConvNormAct
from voxax.models.minkunet import ResidualBlock as ResidualBlock
