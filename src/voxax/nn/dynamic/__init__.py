"""Operators whose kernel depends on the place and the input, on grids, voxels and points.

Functions are public in ``voxax.nn.functional``, their modules in ``voxax.nn.modules``. Operators
that are a few lines over these are recipes: see ``docs/dynamic_operators.md``.
"""
