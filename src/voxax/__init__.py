"""voxax: sparse and dynamic spatial convolution for JAX, on TPU, GPU and CPU."""

from voxax.coords import PAD as PAD
from voxax.coords import bucket_capacity as bucket_capacity
from voxax.errors import AlgorithmError as AlgorithmError
from voxax.errors import CapacityError as CapacityError
from voxax.errors import FileFormatError as FileFormatError
from voxax.errors import GeometryMismatchError as GeometryMismatchError
from voxax.errors import InputError as InputError
from voxax.errors import MissingExtraError as MissingExtraError
from voxax.errors import VoxaxError as VoxaxError
from voxax.geometry import KernelMap as KernelMap
from voxax.geometry import KernelSpec as KernelSpec
from voxax.geometry import Plan as Plan
from voxax.geometry import Points as Points
from voxax.geometry import VoxelGeometry as VoxelGeometry
from voxax.geometry import Voxels as Voxels
from voxax.geometry import batch as batch
from voxax.geometry import cat as cat
from voxax.geometry import kernel_map as kernel_map
from voxax.geometry import plan as plan
from voxax.geometry import union as union
from voxax.geometry import voxelize as voxelize

__version__ = "0.1.0"
