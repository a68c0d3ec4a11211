"""Voxels, kernel maps, products and pooling for the packages with other libraries' names.

Each of these packages is names, defaults, layouts and orders over these modules, which know of
none of them. They import neither JAX nor PyTorch's compiler. ``sites`` has the voxels of a tensor,
with each ``kernel_map`` that was built from them; ``products`` and ``pooling`` compute along one.

Row sets of up to 4 axes use the native library; more axes use NumPy.
"""
