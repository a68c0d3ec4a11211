"""Convolutions whose kernel depends on the position or the input, on grids, voxels and points.

The functions are public in ``voxax.nn.functional``, and the modules that call them in
``voxax.nn.modules``. ``docs/dynamic_operators.md`` shows how to write other published operators.
"""
