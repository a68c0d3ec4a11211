"""Convolutions whose kernel depends on the position or the input, on grids, voxels and points.

Functions are public in ``voxax.nn.functional``, their modules in ``voxax.nn.modules``.
``docs/dynamic_operators.md`` has recipes for operators that need a few more lines.
"""
