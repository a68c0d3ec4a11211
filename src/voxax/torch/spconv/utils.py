"""The names of ``spconv.pytorch.utils``: the file is called as code that imports it calls it."""

from voxax.torch.spconv.point_to_voxel import PointToVoxel as PointToVoxel
from voxax.torch.spconv.point_to_voxel import (
    gather_features_by_pc_voxel_id as gather_features_by_pc_voxel_id,
)
