"""forward, dgrad, wgrad: one differentiation rule; algorithms plug in below it."""

from voxax._shared_names import share_names as _share_names
from voxax.products.convolve import convolve as convolve
from voxax.products.convolve import convolve_modulated as convolve_modulated
from voxax.products.inspect import explain as explain
from voxax.products.inspect import tune as tune
from voxax.products.report import Report as Report
from voxax.products.strategies import strategies as strategies

_share_names(__name__)
