"""TorchSparse's name for what layers are made with."""

from voxax.torch.torchsparse.nn.functional.kmap import get_kernel_offsets as get_kernel_offsets
from voxax.torch.torchsparse.nn.functional.rows import fapply as fapply
