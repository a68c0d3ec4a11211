"""Requests for a part of a program: ``with vx.algorithms(forward=...)``.

The value of the overlay is part of the key of ``jax.jit``'s caches: a jitted function that
is called inside is traced anew for a new overlay and found again for an old one, also when it
was compiled outside before.
"""

from __future__ import annotations

import contextlib
import threading

from voxax import _compat
from voxax.algorithms.base import Product, WeightKind
from voxax.tuning.grammar import Request, Resolved, frozen, parse

_FIELDS: dict[tuple[WeightKind, Product], str] = {
    ("dense", "forward"): "forward",
    ("dense", "dgrad"): "dgrad",
    ("dense", "wgrad"): "wgrad",
    ("depthwise", "forward"): "depthwise_forward",
    ("depthwise", "dgrad"): "depthwise_backward",
    ("depthwise", "wgrad"): "depthwise_backward",
    ("dynamic", "forward"): "dynamic_forward",
    ("dynamic", "dgrad"): "dynamic_backward",
    ("dynamic", "wgrad"): "dynamic_backward",
}


class Overlay(contextlib.ContextDecorator):
    """Requests by field, for the calls inside ``with``; made by :func:`algorithms`.

    May be entered many times, inside itself and in several threads. Also a decorator.
    """

    def __init__(self, fields: tuple[tuple[str, Resolved], ...]) -> None:
        self._fields = fields
        self._entered = threading.local()

    def __enter__(self) -> Overlay:
        merged = dict(_compat.overlay.value) | dict(self._fields)
        # Sorted, so that the same requests give the same key however they were nested.
        context = _compat.overlay(tuple(sorted(merged.items())))
        context.__enter__()
        self._entered.__dict__.setdefault("contexts", []).append(context)
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.contexts.pop().__exit__(*error)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={list(names)}" for name, names in self._fields)
        return f"voxax.algorithms({fields})"


def algorithms(
    forward: Request = None,
    backward: Request = None,
    dgrad: Request = None,
    wgrad: Request = None,
    depthwise_forward: Request = None,
    depthwise_backward: Request = None,
    dynamic_forward: Request = None,
    dynamic_backward: Request = None,
) -> Overlay:
    """Requests for every convolution inside ``with``, where the call itself makes none.

    An overlay beats the environment; a ``fwd_algo=`` or ``bwd_algo=`` of the layer beats the
    overlay. An inner overlay beats an outer one, request by request; ``"auto"`` takes an
    outer one back. Threads that are started inside do not inherit it.

    Args:
      forward, dgrad, wgrad: requests for the three products of dense and grouped
        convolutions; None leaves what holds outside.
      backward: for dgrad and wgrad, where they are not given themselves.
      depthwise_forward, depthwise_backward: the same for depthwise convolutions.
      dynamic_forward, dynamic_backward: the same for ``dynamic_conv``, whose argument is
        ``method``.

    Returns:
      A context manager, which may be entered again; also a decorator.

    Raises:
      AlgorithmError: a request that is not understood; at once, not when a layer runs.
    """
    requests = {
        "forward": forward,
        "dgrad": backward if dgrad is None else dgrad,
        "wgrad": backward if wgrad is None else wgrad,
        "depthwise_forward": depthwise_forward,
        "depthwise_backward": depthwise_backward,
        "dynamic_forward": dynamic_forward,
        "dynamic_backward": dynamic_backward,
    }
    from_backward = {
        name
        for name, given in (("dgrad", dgrad), ("wgrad", wgrad))
        if given is None and backward is not None
    }
    fields = []
    for name, request in requests.items():
        kind: WeightKind = next(kind for (kind, _), field in _FIELDS.items() if field == name)
        argument = "backward" if name in from_backward else name
        names = frozen(request, kind, f"vx.algorithms({argument}=)")
        if names is not None:
            fields.append((name, names))
    return Overlay(tuple(fields))


def requested(kind: WeightKind, product: Product) -> tuple[Resolved, str] | None:
    """What the overlays around this call admit for a product, and which field says so."""
    field = _FIELDS["dense" if kind == "grouped" else kind, product]
    request = dict(_compat.overlay.value).get(field)
    if request is None:
        return None
    origin = f"vx.algorithms({field}=)"
    return parse(request, kind, origin), origin
