"""flax.nnx modules over :mod:`voxax.nn.functional`. Needs ``pip install "voxax[nn]"``."""

try:
    import flax as _flax  # noqa: F401
except ImportError as _error:
    from voxax.errors import MissingExtraError

    raise MissingExtraError('voxax.nn.modules needs flax: pip install "voxax[nn]"') from _error

from voxax.nn.modules.activation import GELU as GELU
from voxax.nn.modules.activation import Activation as Activation
from voxax.nn.modules.activation import LeakyReLU as LeakyReLU
from voxax.nn.modules.activation import ReLU as ReLU
from voxax.nn.modules.activation import SiLU as SiLU
from voxax.nn.modules.container import Sequential as Sequential
from voxax.nn.modules.conv import SparseConv2d as SparseConv2d
from voxax.nn.modules.conv import SparseConv3d as SparseConv3d
from voxax.nn.modules.conv import SpatiallySparseConv as SpatiallySparseConv
from voxax.nn.modules.conv import SubMConv3d as SubMConv3d
from voxax.nn.modules.linear import Linear as Linear
from voxax.nn.modules.norm import BatchNorm as BatchNorm
from voxax.nn.modules.pooling import GlobalPool as GlobalPool
