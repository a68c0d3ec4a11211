"""Layers: :mod:`voxax.nn.functional` on arrays and Voxels, :mod:`voxax.nn.modules` in flax.nnx."""
