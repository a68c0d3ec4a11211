"""Helpers for sizes and dense grids; modules for quantization, batches and caches."""

from voxax.torch.torchsparse.utils.grids import make_divisible as make_divisible
from voxax.torch.torchsparse.utils.grids import make_ntuple as make_ntuple
from voxax.torch.torchsparse.utils.grids import make_tensor as make_tensor
from voxax.torch.torchsparse.utils.grids import to_dense as to_dense
