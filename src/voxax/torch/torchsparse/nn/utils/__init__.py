"""Helpers of layers, under TorchSparse's name."""

from voxax.torch.torchsparse.nn.functional.kmap import get_kernel_offsets as get_kernel_offsets
from voxax.torch.torchsparse.nn.functional.rows import fapply as fapply
