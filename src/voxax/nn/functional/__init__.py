"""Layers as functions on Voxels and arrays."""

from typing import TYPE_CHECKING

from voxax.nn import removed as _removed
from voxax.nn.dynamic.deform_conv import deform_conv as deform_conv
from voxax.nn.dynamic.dynamic_conv import DYNAMIC_CONV_ALGO_MODE as DYNAMIC_CONV_ALGO_MODE
from voxax.nn.dynamic.dynamic_conv import BankError as BankError
from voxax.nn.dynamic.dynamic_conv import bank_error as bank_error
from voxax.nn.dynamic.dynamic_conv import dynamic_conv as dynamic_conv
from voxax.nn.dynamic.focal_conv import focal_conv as focal_conv
from voxax.nn.dynamic.local_conv import local_conv as local_conv
from voxax.nn.dynamic.neighbor_conv import continuous_conv as continuous_conv
from voxax.nn.dynamic.neighbor_conv import kernel_point_conv as kernel_point_conv
from voxax.nn.dynamic.neighbor_conv import kernel_point_penalty as kernel_point_penalty
from voxax.nn.dynamic.neighbor_conv import kernel_point_positions as kernel_point_positions
from voxax.nn.dynamic.neighbor_conv import poly6 as poly6
from voxax.nn.dynamic.selected_stride_conv import choose_size as choose_size
from voxax.nn.dynamic.selected_stride_conv import selected_stride_conv as selected_stride_conv
from voxax.nn.dynamic.sparse_dynamic_conv import sparse_dynamic_conv as sparse_dynamic_conv
from voxax.nn.functional.attention import Tokens as Tokens
from voxax.nn.functional.attention import cross_attention as cross_attention
from voxax.nn.functional.attention import scene_attention as scene_attention
from voxax.nn.functional.attention import serial_order as serial_order
from voxax.nn.functional.attention import serialized_attention as serialized_attention
from voxax.nn.functional.attention import window_attention as window_attention
from voxax.nn.functional.batch_norm import normalize as normalize
from voxax.nn.functional.channel_blocks import channel_to_space as channel_to_space
from voxax.nn.functional.channel_blocks import space_to_channel as space_to_channel
from voxax.nn.functional.normalization import group_norm as group_norm
from voxax.nn.functional.normalization import instance_norm as instance_norm
from voxax.nn.functional.normalization import layer_norm as layer_norm
from voxax.nn.functional.normalization import masked_moments as masked_moments
from voxax.nn.functional.normalization import rms_norm as rms_norm
from voxax.nn.functional.pooling import global_pool as global_pool
from voxax.nn.functional.pooling import max_pool as max_pool
from voxax.nn.functional.pooling import mean_pool as mean_pool
from voxax.nn.functional.pooling import min_pool as min_pool
from voxax.nn.functional.pooling import sum_pool as sum_pool
from voxax.nn.functional.pooling import unpool as unpool
from voxax.nn.functional.random_drop import dropout as dropout
from voxax.nn.functional.rotary import rotary_embedding as rotary_embedding
from voxax.nn.functional.sparse_conv import spatially_sparse_conv as spatially_sparse_conv
from voxax.nn.functional.sparse_conv_depth import depthwise_conv as depthwise_conv
from voxax.nn.functional.sparse_conv_depth import (
    spatially_sparse_depthwise_conv as spatially_sparse_depthwise_conv,
)

if not TYPE_CHECKING:  # type checkers know which names exist

    def __getattr__(name: str) -> object:
        raise _removed.missing(__name__, name, _removed.FUNCTIONS)
