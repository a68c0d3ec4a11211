"""forward, dgrad, wgrad: one differentiation rule; algorithms plug in below it."""

from voxax.products.convolve import convolve as convolve
