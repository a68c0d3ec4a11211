"""Pure functions on integer coordinates ``int32[N, 1 + D]``: batch index, then D axes."""

from voxax.coords.capacity import bucket_capacity as bucket_capacity
from voxax.coords.capacity import ladder_capacity as ladder_capacity
from voxax.coords.capacity import round_up_rows as round_up_rows
from voxax.coords.coarse import coarsen as coarsen
from voxax.coords.coarse import floor_divide as floor_divide
from voxax.coords.coarse import in_range as in_range
from voxax.coords.curves import CURVES as CURVES
from voxax.coords.curves import Curve as Curve
from voxax.coords.curves import hilbert_keys as hilbert_keys
from voxax.coords.curves import morton_keys as morton_keys
from voxax.coords.curves import sort_by_curve as sort_by_curve
from voxax.coords.lattice import COORD_LIMIT as COORD_LIMIT
from voxax.coords.lattice import PAD as PAD
from voxax.coords.lattice import box_offsets as box_offsets
from voxax.coords.lattice import cross_offsets as cross_offsets
from voxax.coords.lattice import is_point_symmetric as is_point_symmetric
from voxax.coords.lookup import find_neighbors as find_neighbors
from voxax.coords.lookup import find_rows as find_rows
from voxax.coords.lookup import lower_bound as lower_bound
from voxax.coords.ordering import is_valid as is_valid
from voxax.coords.ordering import rows_less as rows_less
from voxax.coords.ordering import sort_rows as sort_rows
from voxax.coords.unique import CompactRows as CompactRows
from voxax.coords.unique import UniqueRows as UniqueRows
from voxax.coords.unique import compact_rows as compact_rows
from voxax.coords.unique import unique_rows as unique_rows
