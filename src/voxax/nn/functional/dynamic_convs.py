"""Import the functions of :mod:`voxax.nn.dynamic`, so that ``__init__.pyi`` here can list them."""

from voxax.nn.dynamic.deform_conv import deform_conv as deform_conv
from voxax.nn.dynamic.deform_conv import local_conv as local_conv
from voxax.nn.dynamic.dynamic_conv import DYNAMIC_CONV_ALGO_MODE as DYNAMIC_CONV_ALGO_MODE
from voxax.nn.dynamic.dynamic_conv import BankError as BankError
from voxax.nn.dynamic.dynamic_conv import bank_error as bank_error
from voxax.nn.dynamic.dynamic_conv import choose_size as choose_size
from voxax.nn.dynamic.dynamic_conv import dynamic_conv as dynamic_conv
from voxax.nn.dynamic.dynamic_conv import selected_stride_conv as selected_stride_conv
from voxax.nn.dynamic.focal_conv import focal_conv as focal_conv
from voxax.nn.dynamic.neighbor_conv import continuous_conv as continuous_conv
from voxax.nn.dynamic.neighbor_conv import kernel_point_conv as kernel_point_conv
from voxax.nn.dynamic.neighbor_conv import kernel_point_penalty as kernel_point_penalty
from voxax.nn.dynamic.neighbor_conv import kernel_point_positions as kernel_point_positions
from voxax.nn.dynamic.neighbor_conv import poly6 as poly6
from voxax.nn.dynamic.sparse_dynamic_conv import sparse_dynamic_conv as sparse_dynamic_conv
