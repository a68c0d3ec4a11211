"""From a request to one algorithm."""

from voxax.tuning.choose import choose as choose
from voxax.tuning.request import Request as Request
from voxax.tuning.request import Resolved as Resolved
from voxax.tuning.request import resolve as resolve
