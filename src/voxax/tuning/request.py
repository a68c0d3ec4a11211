"""What a user asks for, read as a filter on the registered algorithms.

The first of these that is there decides:

1. the argument of the call or of the layer (``fwd_algo``, ``bwd_algo``, ``dgrad_algo``,
   ``wgrad_algo``; of dynamic convolutions ``method``), unless it is None;
2. the overlay around the call (:func:`voxax.algorithms`), the innermost first;
3. the environment (:mod:`voxax.tuning.environment`);
4. otherwise every algorithm is admitted, and the tuner chooses.
"""

from __future__ import annotations

import dataclasses

from voxax.algorithms import names
from voxax.algorithms.base import Product, WeightKind
from voxax.tuning import environment, overlay
from voxax.tuning.grammar import Request as Request
from voxax.tuning.grammar import Resolved as Resolved
from voxax.tuning.grammar import parse

_ARGUMENTS: dict[Product, str] = {
    "forward": "fwd_algo",
    "dgrad": "dgrad_algo (or bwd_algo)",
    "wgrad": "wgrad_algo (or bwd_algo)",
}


@dataclasses.dataclass(frozen=True)
class Admitted:
    """The algorithms that a request admits.

    Attributes:
      names: canonical, in the user's order.
      origin: who asked, in words, e.g. ``fwd_algo`` or ``VOXAX_FWD_ALGO_MODE=implicit_gemm``.
    """

    names: Resolved
    origin: str


def admitted(request: Request, *, kind: WeightKind, product: Product) -> Admitted:
    """What a product may be executed with, and who said so; see the module's order.

    Args:
      request: the call's own, None if it makes none.
      kind: weight kind: says which names are known.
      product: forward, dgrad or wgrad.

    Raises:
      AlgorithmError: an unknown name (lists the known ones), an empty list, or a value
        that is no request; the message opens with where it was written.
    """
    if request is not None:
        argument = "method" if kind == "dynamic" else _ARGUMENTS[product]
        return Admitted(parse(request, kind, argument), argument)
    found = overlay.requested(kind, product) or environment.requested(kind, product)
    return Admitted(names(kind), "auto") if found is None else Admitted(*found)


def resolve(request: Request, *, kind: WeightKind, product: Product) -> Resolved:
    """The names that :func:`admitted` gives: hashable, a filter on the search space."""
    return admitted(request, kind=kind, product=product).names
