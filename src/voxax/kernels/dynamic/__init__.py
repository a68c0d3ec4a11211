"""Dynamic convolution: on a regular grid, each output position has its own kernel size.

All algorithms (strategies) read the array ``sizes int32[M]``, the kernel size of each output
position in row-major order. They differ in how many taps they multiply unnecessarily.
"""
