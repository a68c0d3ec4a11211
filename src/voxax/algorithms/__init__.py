"""Ways to execute a product over a kernel map; see :mod:`voxax.algorithms.base`."""

from voxax.algorithms.base import Algorithm as Algorithm
from voxax.algorithms.base import Parameters as Parameters
from voxax.algorithms.base import Problem as Problem
from voxax.algorithms.base import Product as Product
from voxax.algorithms.base import WeightKind as WeightKind
from voxax.algorithms.registry import ALGORITHMS as ALGORITHMS
from voxax.algorithms.registry import lookup as lookup
from voxax.algorithms.registry import names as names
