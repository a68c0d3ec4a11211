"""Functions of MinkowskiEngine's ``utils``: quantization, batches, initialization, summaries."""

from voxax.torch.minkowski.utils import networks as init  # noqa: F401
from voxax.torch.minkowski.utils.collation import SparseCollation as SparseCollation
from voxax.torch.minkowski.utils.collation import batch_sparse_collate as batch_sparse_collate
from voxax.torch.minkowski.utils.collation import batched_coordinates as batched_coordinates
from voxax.torch.minkowski.utils.collation import sparse_collate as sparse_collate
from voxax.torch.minkowski.utils.networks import kaiming_normal_ as kaiming_normal_
from voxax.torch.minkowski.utils.networks import summary as summary
from voxax.torch.minkowski.utils.quantization import fnv_hash_vec as fnv_hash_vec
from voxax.torch.minkowski.utils.quantization import ravel_hash_vec as ravel_hash_vec
from voxax.torch.minkowski.utils.quantization import sparse_quantize as sparse_quantize
from voxax.torch.minkowski.utils.quantization import unique_coordinate_map as unique_coordinate_map
