"""Layers as functions on Voxels and arrays."""

from voxax.nn.functional.norm import masked_moments as masked_moments
from voxax.nn.functional.norm import normalize as normalize
from voxax.nn.functional.pooling import global_pool as global_pool
from voxax.nn.functional.sparse_conv import spatially_sparse_conv as spatially_sparse_conv
from voxax.nn.functional.sparse_conv_depth import (
    spatially_sparse_depthwise_conv as spatially_sparse_depthwise_conv,
)
