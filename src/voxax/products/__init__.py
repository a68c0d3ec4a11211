"""forward, dgrad, wgrad: one differentiation rule; algorithms plug in below it."""

from voxax.products.convolve import convolve as convolve
from voxax.products.explain import explain as explain
from voxax.products.modulated import convolve_modulated as convolve_modulated
from voxax.products.report import Report as Report
from voxax.products.strategies import strategies as strategies
from voxax.products.tune import tune as tune
