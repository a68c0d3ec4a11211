"""Functions of TorchSparse 1.4's ``utils`` for sizes, quantization and batches."""

from voxax.torch.torchsparse.utils import collate as collate
from voxax.torch.torchsparse.utils.grids import make_ntuple as make_ntuple
from voxax.torch.torchsparse.version_1_4.utils import quantize as quantize
