"""Functions of TorchSparse's ``nn.utils``: kernel offsets, and functions on features."""

from voxax.torch.torchsparse.nn.functional.kmap import get_kernel_offsets as get_kernel_offsets
from voxax.torch.torchsparse.nn.functional.rows import fapply as fapply
