"""Convert weights from and to other libraries, such as spconv. Needs ``pip install "voxax[nn]"``.

State dicts are dictionaries from names to NumPy arrays or PyTorch tensors; PyTorch itself is needed
only to read and write files in its format.
"""

import lazy_loader as _lazy

__getattr__, __dir__, __all__ = _lazy.attach_stub(__name__, __file__)
