from .kernel import Kernel as Kernel
from .kernel import Layer as Layer
from .kernel import Parameters as Parameters
from .kernel import Problem as Problem
from .kernel import Product as Product
from .kernel import WeightKind as WeightKind
from .registry import lookup as lookup
from .registry import names as names
