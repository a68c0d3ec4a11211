"""Read point clouds from files and write them; :func:`voxax.io.read` is the main function.

Importing this package loads NumPy only. The libraries that decode files are imported when a file
needs them. ``pip install "voxax[io]"`` installs the libraries for `.las`, `.ply` and `.pcd`.
``"voxax[formats]"`` also installs the libraries for `.h5`, `.feather`, `.parquet` and `.e57`.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
