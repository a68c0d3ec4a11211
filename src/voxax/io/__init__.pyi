from .formats import read as read
from .formats import read_labels as read_labels
from .formats import readable_extensions as readable_extensions
from .ply import write_ply as write_ply
from .point_cloud import PointCloud as PointCloud
