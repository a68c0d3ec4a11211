"""Cases that run alike on MinkowskiEngine and on ``voxax.torch.minkowski``.

A module's ``cases()`` returns functions by name. Each takes the library and a dtype, and returns
a nested result, which ``inputs.flat`` turns into arrays by name. Python 3.8 reads these files.
"""
