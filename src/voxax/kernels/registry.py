"""The registry of kernels: it finds every :class:`Kernel` in this package and orders them.

To add an algorithm, add a file to this package. The registry imports every module and collects
every :class:`Kernel` in it. It skips modules called ``*_kernel``, which need Pallas or an optional
package and are imported when a kernel runs.

Algorithms are ordered by the lowest :attr:`Kernel.rank` among their kernels, then by name. The
kernels of one algorithm are ordered by rank. Earlier algorithms are preferred.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from voxax.errors import AlgorithmError
from voxax.kernels.kernel import Kernel, WeightKind

# A grouped weight is a dense weight with zeros, so kernels of dense weights are considered for it.
_REGISTERED_AS: dict[WeightKind, WeightKind] = {"grouped": "dense"}


@functools.cache
def kernels() -> tuple[Kernel, ...]:
    """Return every kernel of the package, in order of preference."""
    package = importlib.import_module(__name__.rpartition(".")[0])
    found: dict[Kernel, None] = {}
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("_kernel"):
            values = vars(importlib.import_module(module.name)).values()
            found.update(dict.fromkeys(v for v in values if isinstance(v, Kernel)))
    return ordered(tuple(found))


def ordered(found: tuple[Kernel, ...]) -> tuple[Kernel, ...]:
    """Sort kernels by preference; the kernels of one algorithm stay next to each other."""
    first: dict[tuple[str, str], int] = {}
    for kernel in found:
        key = kernel.kind, kernel.name
        first[key] = min(kernel.rank, first.get(key, kernel.rank))
    return tuple(sorted(found, key=lambda k: (first[k.kind, k.name], k.name, k.rank, k.platform)))


def names(kind: WeightKind = "dense") -> tuple[str, ...]:
    """Return the names of all algorithms for weights of this kind, in order of preference."""
    return _names(kernels(), _REGISTERED_AS.get(kind, kind))


def lookup(name: str, kind: WeightKind = "dense") -> tuple[Kernel, ...]:
    """Return the kernels of the algorithm ``name`` for weights of this kind, on all platforms.

    Raises:
      AlgorithmError: no algorithm has this name; the message lists the known names.
    """
    found = _by_name(kernels()).get((_REGISTERED_AS.get(kind, kind), name), ())
    if not found:
        raise AlgorithmError(f"unknown algorithm {name!r}; known: {', '.join(names(kind))}")
    return found


@functools.lru_cache(maxsize=32)
def _names(found: tuple[Kernel, ...], kind: WeightKind) -> tuple[str, ...]:
    return tuple(name for of, name in _by_name(found) if of == kind)


@functools.lru_cache(maxsize=8)
def _by_name(found: tuple[Kernel, ...]) -> dict[tuple[WeightKind, str], tuple[Kernel, ...]]:
    """Return kernels by (kind of weight, algorithm name), in the order of ``found``.

    Several kernels, such as those of different platforms, can share a name. The result is cached,
    since each call of a layer needs it.
    """
    index: dict[tuple[WeightKind, str], tuple[Kernel, ...]] = {}
    for kernel in found:
        key = kernel.kind, kernel.name
        index[key] = (*index.get(key, ()), kernel)
    return index
