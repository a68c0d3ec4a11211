"""Networks, by class and by name. Needs ``pip install "voxax[nn]"``."""

try:
    import flax as _flax  # noqa: F401
except ImportError as _error:
    from voxax.errors import MissingExtraError

    raise MissingExtraError('voxax.models needs flax: pip install "voxax[nn]"') from _error

from voxax.models.bev_backbone import BEVBackbone as BEVBackbone
from voxax.models.centerpoint import CenterDetector as CenterDetector
from voxax.models.centerpoint import CenterHead as CenterHead
from voxax.models.centerpoint import CenterPoint as CenterPoint
from voxax.models.detector_boxes import DETECTORS as DETECTORS
from voxax.models.detector_boxes import found_boxes as found_boxes
from voxax.models.minkunet import ConvNormAct as ConvNormAct
from voxax.models.minkunet import MinkUNet as MinkUNet
from voxax.models.minkunet import MinkUNet14 as MinkUNet14
from voxax.models.minkunet import MinkUNet18 as MinkUNet18
from voxax.models.minkunet import MinkUNet34 as MinkUNet34
from voxax.models.minkunet import ResidualBlock as ResidualBlock
from voxax.models.minkunet import UNet as UNet
from voxax.models.ptv3 import PTv3 as PTv3
from voxax.models.ptv3 import PTv3Block as PTv3Block
from voxax.models.ptv3 import PTv3Encoder as PTv3Encoder
from voxax.models.ptv3 import PTv3Stage as PTv3Stage
from voxax.models.registry import create as create
from voxax.models.registry import list as list
from voxax.models.registry import load as load
from voxax.models.registry import save as save
from voxax.models.second import SECOND as SECOND
from voxax.models.second import AnchorHead as AnchorHead
from voxax.models.second import AnchorOutput as AnchorOutput
from voxax.models.small_centerpoint import ColumnBackbone as ColumnBackbone
from voxax.models.small_centerpoint import SmallCenterPoint as SmallCenterPoint
from voxax.models.spunet import SpUNet as SpUNet
from voxax.models.voxel_backbone import VoxelBackBone8x as VoxelBackBone8x
from voxax.models.voxel_backbone import VoxelResBackBone8x as VoxelResBackBone8x
from voxax.models.voxel_mlp import VoxelMLP as VoxelMLP
from voxax.models.voxelnext import VoxelNeXt as VoxelNeXt
from voxax.models.voxelnext import VoxelNeXtBackbone as VoxelNeXtBackbone
from voxax.models.voxelnext import VoxelNeXtOutput as VoxelNeXtOutput
