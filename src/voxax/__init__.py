"""voxax: sparse and dynamic spatial convolution for JAX, on TPU, GPU and CPU."""

import importlib

from voxax import hardware as hardware
from voxax._shared_names import share_names as _share_names
from voxax._version import __version__ as __version__
from voxax.coords import PAD as PAD
from voxax.coords import bucket_capacity as bucket_capacity
from voxax.errors import AlgorithmError as AlgorithmError
from voxax.errors import CapacityError as CapacityError
from voxax.errors import FileFormatError as FileFormatError
from voxax.errors import GeometryMismatchError as GeometryMismatchError
from voxax.errors import InputError as InputError
from voxax.errors import MissingExtraError as MissingExtraError
from voxax.errors import VoxaxError as VoxaxError
from voxax.geometry import CurveOrder as CurveOrder
from voxax.geometry import KernelMap as KernelMap
from voxax.geometry import KernelSpec as KernelSpec
from voxax.geometry import Neighbors as Neighbors
from voxax.geometry import Patches as Patches
from voxax.geometry import Plan as Plan
from voxax.geometry import Points as Points
from voxax.geometry import VoxelGeometry as VoxelGeometry
from voxax.geometry import Voxels as Voxels
from voxax.geometry import Windows as Windows
from voxax.geometry import batch as batch
from voxax.geometry import cat as cat
from voxax.geometry import coarsen as coarsen
from voxax.geometry import crop as crop
from voxax.geometry import cubic_windows as cubic_windows
from voxax.geometry import curve_order as curve_order
from voxax.geometry import cut_patches as cut_patches
from voxax.geometry import cylindrical_windows as cylindrical_windows
from voxax.geometry import devoxelize as devoxelize
from voxax.geometry import dilate as dilate
from voxax.geometry import inject as inject
from voxax.geometry import intersection as intersection
from voxax.geometry import kernel_map as kernel_map
from voxax.geometry import knn_search as knn_search
from voxax.geometry import plan as plan
from voxax.geometry import prune as prune
from voxax.geometry import radius_search as radius_search
from voxax.geometry import refine as refine
from voxax.geometry import splat as splat
from voxax.geometry import to_bev as to_bev
from voxax.geometry import top_k as top_k
from voxax.geometry import unbatch as unbatch
from voxax.geometry import union as union
from voxax.geometry import voxelize as voxelize
from voxax.geometry import voxelize_on_host as voxelize_on_host
from voxax.hardware import keep_programs as keep_programs
from voxax.products import explain as explain
from voxax.products import tune as tune
from voxax.tuning import algorithms as algorithms
from voxax.tuning import reload_environment as reload_environment

_share_names(__name__)


def __getattr__(name: str) -> object:
    """Import the checker, the memory prediction and the networks when they are first used."""
    if name == "models":
        return importlib.import_module("voxax.models")
    package = {"check_static": "voxax.check", "fits": "voxax.predict"}.get(name)
    if package is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(package), name)
