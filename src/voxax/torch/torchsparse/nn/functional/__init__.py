"""Functions with TorchSparse's names for sparse tensors, points and hashes of voxels."""

from voxax.torch.torchsparse.nn.functional import conv_config as conv_config
from voxax.torch.torchsparse.nn.functional.conv import conv3d as conv3d
from voxax.torch.torchsparse.nn.functional.conv_config import ConvMode as ConvMode
from voxax.torch.torchsparse.nn.functional.conv_config import Dataflow as Dataflow
from voxax.torch.torchsparse.nn.functional.conv_config import (
    clear_global_conv_config as clear_global_conv_config,
)
from voxax.torch.torchsparse.nn.functional.conv_config import get_conv_mode as get_conv_mode
from voxax.torch.torchsparse.nn.functional.conv_config import (
    get_default_conv_config as get_default_conv_config,
)
from voxax.torch.torchsparse.nn.functional.conv_config import (
    get_downsample_mode as get_downsample_mode,
)
from voxax.torch.torchsparse.nn.functional.conv_config import (
    get_global_conv_config as get_global_conv_config,
)
from voxax.torch.torchsparse.nn.functional.conv_config import get_kmap_mode as get_kmap_mode
from voxax.torch.torchsparse.nn.functional.conv_config import set_conv_mode as set_conv_mode
from voxax.torch.torchsparse.nn.functional.conv_config import (
    set_downsample_mode as set_downsample_mode,
)
from voxax.torch.torchsparse.nn.functional.conv_config import (
    set_global_conv_config as set_global_conv_config,
)
from voxax.torch.torchsparse.nn.functional.conv_config import set_kmap_mode as set_kmap_mode
from voxax.torch.torchsparse.nn.functional.hash import sphash as sphash
from voxax.torch.torchsparse.nn.functional.hash import sphashquery as sphashquery
from voxax.torch.torchsparse.nn.functional.kmap import spdownsample as spdownsample
from voxax.torch.torchsparse.nn.functional.kmap import (
    spupsample_generative as spupsample_generative,
)
from voxax.torch.torchsparse.nn.functional.rows import global_avg_pool as global_avg_pool
from voxax.torch.torchsparse.nn.functional.rows import global_max_pool as global_max_pool
from voxax.torch.torchsparse.nn.functional.rows import leaky_relu as leaky_relu
from voxax.torch.torchsparse.nn.functional.rows import relu as relu
from voxax.torch.torchsparse.nn.functional.rows import silu as silu
from voxax.torch.torchsparse.nn.functional.rows import spcrop as spcrop
from voxax.torch.torchsparse.nn.functional.voxelize import calc_ti_weights as calc_ti_weights
from voxax.torch.torchsparse.nn.functional.voxelize import spcount as spcount
from voxax.torch.torchsparse.nn.functional.voxelize import spdevoxelize as spdevoxelize
from voxax.torch.torchsparse.nn.functional.voxelize import spvoxelize as spvoxelize
