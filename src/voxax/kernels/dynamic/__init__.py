"""Convolution on a regular grid whose kernel size depends on the output position.

All strategies read one view, ``sizes int32[M]``: the kernel size of each output position, in
row-major order. They differ in how many taps they multiply that a position does not have.
"""
