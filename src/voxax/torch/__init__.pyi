from . import spconv as spconv
from . import torchsparse as torchsparse
from .bridge import to_jax as to_jax
from .bridge import to_torch as to_torch
