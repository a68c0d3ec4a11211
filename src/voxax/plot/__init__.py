"""Pictures: labelled point clouds (PNG, HTML page, live), and what an operator does to a few sites.

Importing this package loads NumPy only. Matplotlib and plotly are imported inside
the functions that draw; both come with ``pip install "voxax[plot]"``, and viser, for
``Viewer``, with ``pip install "voxax[view]"``.
"""

from .coloring import Coloring as Coloring
from .figure import segmentation_png as segmentation_png
from .page import segmentation_html as segmentation_html
from .palette import CORRECT as CORRECT
from .palette import IGNORED as IGNORED
from .palette import WRONG as WRONG
from .palette import class_colors as class_colors
from .palette import rgb as rgb
from .panel import Panel as Panel
from .sites import draw_sites as draw_sites
from .sites import reads as reads
from .tradeoff import tradeoff_svg as tradeoff_svg
from .viewer import Stepped as Stepped
from .viewer import Viewer as Viewer
