"""Point clouds in and out of files; see :func:`voxax.io.read`.

Importing this package loads NumPy only. The libraries that decode files are imported when a file
needs them. Those for `.las`, `.ply` and `.pcd` come with ``pip install "voxax[io]"``, and
with ``"voxax[formats]"`` also those for `.h5`, `.feather`, `.parquet` and `.e57`.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
