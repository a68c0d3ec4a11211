"""Common base of the packages that have the APIs of spconv, TorchSparse and MinkowskiEngine.

Each package adds the names, defaults, layouts and row orders of its library. The modules here
import none of the packages, nor JAX, nor PyTorch's compiler. ``sites`` stores the voxels of a
tensor with their kernel maps. ``products`` computes convolutions along a kernel map, and
``pooling`` computes poolings.

Coordinates of up to 4 axes use the native library; more axes use NumPy.
"""
