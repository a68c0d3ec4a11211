"""Weights from and to other libraries. Needs ``pip install "voxax[nn]"``.

State dicts are dictionaries from names to NumPy arrays or PyTorch tensors; PyTorch itself is needed
only to read a checkpoint file.
"""

from voxax.interop.checkpoint_file import read_checkpoint as read_checkpoint
from voxax.interop.minkowski import from_minkowski as from_minkowski
from voxax.interop.minkowski import minkowski_offsets as minkowski_offsets
from voxax.interop.minkowski import to_minkowski as to_minkowski
from voxax.interop.spconv import from_spconv as from_spconv
from voxax.interop.spconv import spconv_offsets as spconv_offsets
from voxax.interop.spconv import to_spconv as to_spconv
