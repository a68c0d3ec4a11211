"""Pictures of labeled point clouds: PNG, HTML page, live in a browser.

Importing this package loads NumPy only. Matplotlib and plotly are imported inside
the functions that draw; both come with ``pip install "voxax[plot]"``, and viser, for
``Viewer``, with ``pip install "voxax[view]"``.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
