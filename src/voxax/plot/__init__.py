"""Pictures of labeled point clouds: PNG, HTML page, live in a browser.

Importing this package loads NumPy only. Matplotlib and plotly are imported inside
the functions that draw; both come with ``pip install "voxax[plot]"``, and viser, for
``Viewer``, with ``pip install "voxax[view]"``.
"""

from voxax.plot.box_figure import detection_png as detection_png
from voxax.plot.coloring import Coloring as Coloring
from voxax.plot.figure import segmentation_png as segmentation_png
from voxax.plot.page import detection_html as detection_html
from voxax.plot.page import segmentation_html as segmentation_html
from voxax.plot.palette import CORRECT as CORRECT
from voxax.plot.palette import IGNORED as IGNORED
from voxax.plot.palette import WRONG as WRONG
from voxax.plot.palette import class_colors as class_colors
from voxax.plot.palette import rgb as rgb
from voxax.plot.viewer import Stepped as Stepped
from voxax.plot.viewer import Viewer as Viewer
