"""References for the tests: plain loops, dictionaries, float64, dense grids; no voxax inside.

``rows`` works on NumPy coordinate rows, ``dense`` on densified grids. The reference
implementation of every operator works on *sites*: a dictionary from ``(batch, *coordinate)``
to a float64 feature vector.
"""

from oracle.compare import check_sites as check_sites
from oracle.compare import relative_error as relative_error
from oracle.dense import dense_conv as dense_conv
from oracle.dense import dense_conv_adjoint as dense_conv_adjoint
from oracle.rows import PAD as PAD
from oracle.rows import box_offsets as box_offsets
from oracle.rows import coarse_rows as coarse_rows
from oracle.rows import lowest_offset as lowest_offset
from oracle.rows import merge_rows as merge_rows
from oracle.rows import neighbor_dictionary as neighbor_dictionary
from oracle.rows import per_axis as per_axis
from oracle.rows import reached_rows as reached_rows
from oracle.rows import sorted_rows as sorted_rows
from oracle.sites import make_sites as make_sites
from oracle.sites import rows_of as rows_of
