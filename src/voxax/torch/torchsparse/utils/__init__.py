"""Functions of TorchSparse's ``utils`` for sizes, dense grids, quantization and batches."""

from voxax.torch.torchsparse.utils.grids import make_divisible as make_divisible
from voxax.torch.torchsparse.utils.grids import make_ntuple as make_ntuple
from voxax.torch.torchsparse.utils.grids import make_tensor as make_tensor
from voxax.torch.torchsparse.utils.grids import to_dense as to_dense
