"""Layers as functions on Voxels and arrays."""

from voxax.nn.functional.dropout import dropout as dropout
from voxax.nn.functional.dynamic_bank import BankError as BankError
from voxax.nn.functional.dynamic_choice import choose_size as choose_size
from voxax.nn.functional.dynamic_conv import bank_error as bank_error
from voxax.nn.functional.dynamic_conv import dynamic_conv as dynamic_conv
from voxax.nn.functional.global_pooling import global_pool as global_pool
from voxax.nn.functional.norm import masked_moments as masked_moments
from voxax.nn.functional.norm import normalize as normalize
from voxax.nn.functional.norm_per_scene import group_norm as group_norm
from voxax.nn.functional.norm_per_scene import instance_norm as instance_norm
from voxax.nn.functional.norm_per_voxel import layer_norm as layer_norm
from voxax.nn.functional.norm_per_voxel import rms_norm as rms_norm
from voxax.nn.functional.pooling import max_pool as max_pool
from voxax.nn.functional.pooling import mean_pool as mean_pool
from voxax.nn.functional.pooling import min_pool as min_pool
from voxax.nn.functional.pooling import sum_pool as sum_pool
from voxax.nn.functional.space_to_channel import channel_to_space as channel_to_space
from voxax.nn.functional.space_to_channel import space_to_channel as space_to_channel
from voxax.nn.functional.sparse_conv import spatially_sparse_conv as spatially_sparse_conv
from voxax.nn.functional.sparse_conv_depth import depthwise_conv as depthwise_conv
from voxax.nn.functional.sparse_conv_depth import (
    spatially_sparse_depthwise_conv as spatially_sparse_depthwise_conv,
)
from voxax.nn.functional.sparse_dynamic_conv import sparse_dynamic_conv as sparse_dynamic_conv
from voxax.nn.functional.unpooling import unpool as unpool
