"""Weights from and to other libraries. Needs ``pip install "voxax[nn]"``.

State dicts are dictionaries from names to NumPy arrays or PyTorch tensors; PyTorch itself is needed
only to read a checkpoint file.
"""

from voxax.interop.checkpoint_file import read_checkpoint as read_checkpoint
from voxax.interop.checkpoint_file import write_checkpoint as write_checkpoint
from voxax.interop.minkowski import from_minkowski as from_minkowski
from voxax.interop.minkowski import minkowski_offsets as minkowski_offsets
from voxax.interop.minkowski import to_minkowski as to_minkowski
from voxax.interop.pytorch import from_torch as from_torch
from voxax.interop.pytorch import to_torch as to_torch
from voxax.interop.spconv import from_spconv as from_spconv
from voxax.interop.spconv import spconv_offsets as spconv_offsets
from voxax.interop.spconv import to_spconv as to_spconv
from voxax.interop.torchsparse import from_torchsparse as from_torchsparse
from voxax.interop.torchsparse import to_torchsparse as to_torchsparse
from voxax.interop.torchsparse import torchsparse_offsets as torchsparse_offsets
from voxax.interop.warpconvnet import from_warpconvnet as from_warpconvnet
from voxax.interop.warpconvnet import to_warpconvnet as to_warpconvnet
from voxax.interop.warpconvnet import warpconvnet_offsets as warpconvnet_offsets
