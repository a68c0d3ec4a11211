"""Voxels, points, kernel maps: what exists where, and what feeds what."""

from voxax.geometry.attached import AttachedMaps as AttachedMaps
from voxax.geometry.attached import MapRecord as MapRecord
from voxax.geometry.build import MAP_BUILT_EVENT as MAP_BUILT_EVENT
from voxax.geometry.build import kernel_map_of as kernel_map_of
from voxax.geometry.build import result_geometry as result_geometry
from voxax.geometry.combine import batch as batch
from voxax.geometry.combine import cat as cat
from voxax.geometry.combine import scene as scene
from voxax.geometry.combine import union as union
from voxax.geometry.convert import from_coords as from_coords
from voxax.geometry.convert import voxelize as voxelize
from voxax.geometry.dense import from_dense as from_dense
from voxax.geometry.dense import to_dense as to_dense
from voxax.geometry.kernel_map import KernelMap as KernelMap
from voxax.geometry.kernel_maps import kernel_map as kernel_map
from voxax.geometry.kernel_spec import KernelSpec as KernelSpec
from voxax.geometry.plan import Plan as Plan
from voxax.geometry.plan import plan as plan
from voxax.geometry.points import Points as Points
from voxax.geometry.voxel_geometry import VoxelGeometry as VoxelGeometry
from voxax.geometry.voxels import Voxels as Voxels
