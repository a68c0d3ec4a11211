"""Pictures of labeled point clouds: PNG files, HTML pages, and a live view in a browser.

Importing this package loads only NumPy. Matplotlib and plotly are imported inside the functions
that draw; ``pip install "voxax[plot]"`` installs both. ``Viewer`` needs viser:
``pip install "voxax[view]"``.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
