"""forward, dgrad, wgrad: one differentiation rule; algorithms plug in below it."""

from voxax.products.convolution import convolve as convolve
from voxax.products.convolution import convolve_modulated as convolve_modulated
from voxax.products.inspect import explain as explain
from voxax.products.inspect import tune as tune
from voxax.products.report import Report as Report
from voxax.products.size_strategies import strategies as strategies
