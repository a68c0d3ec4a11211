from .convolution import convolve as convolve
from .convolution import convolve_modulated as convolve_modulated
from .convolution import convolve_with_epilogue as convolve_with_epilogue
