"""Layers as functions on Voxels and arrays."""

from voxax.nn.functional.continuous_conv import continuous_conv as continuous_conv
from voxax.nn.functional.continuous_conv import poly6 as poly6
from voxax.nn.functional.deform_conv import deform_conv as deform_conv
from voxax.nn.functional.dropout import dropout as dropout
from voxax.nn.functional.dynamic_bank import BankError as BankError
from voxax.nn.functional.dynamic_choice import choose_size as choose_size
from voxax.nn.functional.dynamic_conv import DYNAMIC_CONV_ALGO_MODE as DYNAMIC_CONV_ALGO_MODE
from voxax.nn.functional.dynamic_conv import bank_error as bank_error
from voxax.nn.functional.dynamic_conv import dynamic_conv as dynamic_conv
from voxax.nn.functional.focal_conv import focal_conv as focal_conv
from voxax.nn.functional.gaussian_blur import gaussian_blur as gaussian_blur
from voxax.nn.functional.global_pooling import global_pool as global_pool
from voxax.nn.functional.kernel_point_conv import kernel_point_conv as kernel_point_conv
from voxax.nn.functional.kernel_point_conv import kernel_point_penalty as kernel_point_penalty
from voxax.nn.functional.kernel_point_positions import (
    kernel_point_positions as kernel_point_positions,
)
from voxax.nn.functional.local_conv import local_conv as local_conv
from voxax.nn.functional.mixture_conv import mixture_conv as mixture_conv
from voxax.nn.functional.norm import masked_moments as masked_moments
from voxax.nn.functional.norm import normalize as normalize
from voxax.nn.functional.norm_per_scene import group_norm as group_norm
from voxax.nn.functional.norm_per_scene import instance_norm as instance_norm
from voxax.nn.functional.norm_per_voxel import layer_norm as layer_norm
from voxax.nn.functional.norm_per_voxel import rms_norm as rms_norm
from voxax.nn.functional.pixel_adaptive_conv import pixel_adaptive_conv as pixel_adaptive_conv
from voxax.nn.functional.point_conv import point_conv as point_conv
from voxax.nn.functional.point_conv import point_density as point_density
from voxax.nn.functional.pooling import max_pool as max_pool
from voxax.nn.functional.pooling import mean_pool as mean_pool
from voxax.nn.functional.pooling import min_pool as min_pool
from voxax.nn.functional.pooling import sum_pool as sum_pool
from voxax.nn.functional.positional_stride_conv import (
    positional_stride_conv as positional_stride_conv,
)
from voxax.nn.functional.selected_stride_conv import (
    selected_stride_conv as selected_stride_conv,
)
from voxax.nn.functional.selective_conv import selective_conv as selective_conv
from voxax.nn.functional.space_to_channel import channel_to_space as channel_to_space
from voxax.nn.functional.space_to_channel import space_to_channel as space_to_channel
from voxax.nn.functional.sparse_conv import spatially_sparse_conv as spatially_sparse_conv
from voxax.nn.functional.sparse_conv_depth import depthwise_conv as depthwise_conv
from voxax.nn.functional.sparse_conv_depth import (
    spatially_sparse_depthwise_conv as spatially_sparse_depthwise_conv,
)
from voxax.nn.functional.sparse_dynamic_conv import sparse_dynamic_conv as sparse_dynamic_conv
from voxax.nn.functional.spectral_stride import spectral_stride as spectral_stride
from voxax.nn.functional.unpooling import unpool as unpool
