"""Predict the cost of a model before it runs: memory, roofline and cycles on TPUs.

>>> from voxax.predict import count, render
>>> program = count("v5e", "voxax.predict.cycles:matrix_product", size=4096)  # doctest: +SKIP
>>> print(render(program))  # doctest: +SKIP

Cycles are counted in the compiler's own schedules. You need no TPU, but libtpu must be installed.
The docstring of the module ``listing`` explains what is counted and how.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
