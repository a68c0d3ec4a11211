"""Convolutions whose kernel depends on the position or the input, on grids, voxels and points.

The functions are public in ``voxax.nn.functional``. Modules that call them are in
``voxax.nn.modules``. ``docs/dynamic_operators.md`` has recipes for operators that need a few more
lines.
"""
