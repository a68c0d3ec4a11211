"""Voxels, kernel maps, products and pooling for the packages with other libraries' APIs.

Each of these packages adds names, defaults, layouts and orders to the modules here, which depend on
none of the packages and import neither JAX nor PyTorch's compiler. ``sites`` has the voxels of a
tensor, with each ``kernel_map`` that was built from them. ``products`` and ``pooling`` compute
along a kernel map.

Row sets of up to 4 axes use the native library; more axes use NumPy.
"""
