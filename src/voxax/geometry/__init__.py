"""Voxels, points, and the kernel maps between sets of voxels."""

from voxax._shared_names import share_names as _share_names
from voxax.geometry.bev import to_bev as to_bev
from voxax.geometry.build import MAP_BUILT_EVENT as MAP_BUILT_EVENT
from voxax.geometry.build import kernel_map as kernel_map
from voxax.geometry.build import kernel_map_of as kernel_map_of
from voxax.geometry.build import result_geometry as result_geometry
from voxax.geometry.grow import add_sites as add_sites
from voxax.geometry.grow import coarsen as coarsen
from voxax.geometry.grow import dilate as dilate
from voxax.geometry.grow import refine as refine
from voxax.geometry.interpolate import devoxelize as devoxelize
from voxax.geometry.interpolate import splat as splat
from voxax.geometry.kernel_map import PAIR_ROOM as PAIR_ROOM
from voxax.geometry.kernel_map import KernelMap as KernelMap
from voxax.geometry.kernel_spec import KernelShape as KernelShape
from voxax.geometry.kernel_spec import KernelSpec as KernelSpec
from voxax.geometry.neighbors import Neighbors as Neighbors
from voxax.geometry.neighbors import knn_search as knn_search
from voxax.geometry.neighbors import radius_search as radius_search
from voxax.geometry.order import CurveOrder as CurveOrder
from voxax.geometry.order import curve_order as curve_order
from voxax.geometry.plan import Plan as Plan
from voxax.geometry.plan import plan as plan
from voxax.geometry.points import Points as Points
from voxax.geometry.select import crop as crop
from voxax.geometry.select import prune as prune
from voxax.geometry.select import top_k as top_k
from voxax.geometry.sets import cat as cat
from voxax.geometry.sets import inject as inject
from voxax.geometry.sets import intersection as intersection
from voxax.geometry.sets import union as union
from voxax.geometry.voxel_geometry import AttachedMaps as AttachedMaps
from voxax.geometry.voxel_geometry import MapRecord as MapRecord
from voxax.geometry.voxel_geometry import VoxelGeometry as VoxelGeometry
from voxax.geometry.voxels import Voxels as Voxels
from voxax.geometry.voxels import batch as batch
from voxax.geometry.voxels import from_coords as from_coords
from voxax.geometry.voxels import from_dense as from_dense
from voxax.geometry.voxels import scene as scene
from voxax.geometry.voxels import to_dense as to_dense
from voxax.geometry.voxels import unbatch as unbatch
from voxax.geometry.voxels import voxelize as voxelize

_share_names(__name__)
