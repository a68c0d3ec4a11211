"""Convolution on a regular grid whose kernel size depends on the output position.

All strategies read one view, ``sizes int32[M]``: for each output position, in row-major order, the
size of its kernel. They differ in how few of the taps that a position does not have they multiply.
"""
