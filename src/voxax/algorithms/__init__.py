"""Ways to execute a product over a kernel map; see :mod:`voxax.algorithms.kernel`."""

from voxax.algorithms.kernel import Kernel as Kernel
from voxax.algorithms.kernel import Layer as Layer
from voxax.algorithms.kernel import Parameters as Parameters
from voxax.algorithms.kernel import Problem as Problem
from voxax.algorithms.kernel import Product as Product
from voxax.algorithms.kernel import WeightKind as WeightKind
from voxax.algorithms.registry import lookup as lookup
from voxax.algorithms.registry import names as names
