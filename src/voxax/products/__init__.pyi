from .convolution import convolve as convolve
from .convolution import convolve_modulated as convolve_modulated
from .convolution import convolve_with_epilogue as convolve_with_epilogue
from .inspect import explain as explain
from .inspect import tune as tune
from .report import Report as Report
from .size_strategies import strategies as strategies
