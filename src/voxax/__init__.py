"""voxax: sparse and dynamic spatial convolution for JAX, on TPU, GPU and CPU."""

import sys as _sys
from importlib.util import find_spec as _find_spec

import lazy_loader as _lazy

from voxax import _own_process as _own_process

if _sys.modules.get("jax"):
    # _compat adds to the key of jit's caches. Loaded later, it would make JAX trace programs again.
    from voxax import _compat as _compat

__getattr__, _names, __all__ = _lazy.attach_stub(__name__, __file__)

# A name raises if the package of its extra is missing, so `import *` and `dir` leave it out.
_EXTRAS = {"interop": "flax", "models": "flax", "torch": "torch"}
__all__ = [n for n in __all__ if n not in _EXTRAS]  # pyright: ignore[reportUnsupportedDunderAll]


def __dir__() -> list[str]:
    return [name for name in _names() if _find_spec(_EXTRAS.get(name, __name__))]
