"""Point clouds in and out of files; see :func:`voxax.io.read`.

Importing this package loads NumPy only. The libraries that decode files are imported when a file
needs them. Those for `.las`, `.ply` and `.pcd` come with ``pip install "voxax[io]"``, and
with ``"voxax[formats]"`` also those for `.h5`, `.feather`, `.parquet` and `.e57`.
"""

from voxax.io.formats import read as read
from voxax.io.formats import read_labels as read_labels
from voxax.io.formats import readable_extensions as readable_extensions
from voxax.io.ply import write_ply as write_ply
from voxax.io.point_cloud import PointCloud as PointCloud
