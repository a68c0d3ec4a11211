"""Ways to execute a product over a kernel map; see :mod:`voxax.kernels.kernel`."""

from voxax.kernels.kernel import Kernel as Kernel
from voxax.kernels.kernel import Layer as Layer
from voxax.kernels.kernel import Parameters as Parameters
from voxax.kernels.kernel import Problem as Problem
from voxax.kernels.kernel import Product as Product
from voxax.kernels.kernel import WeightKind as WeightKind
from voxax.kernels.registry import lookup as lookup
from voxax.kernels.registry import names as names
