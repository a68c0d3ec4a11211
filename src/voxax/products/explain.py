"""``vx.explain``: which algorithm each product of a function uses, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from voxax import _native
from voxax.products.report import Explained, Report
from voxax.products.survey import survey
from voxax.tuning import foresee


def explain(fn: Callable[..., Any], *args: Any, platform: str | None = None) -> Report:
    """Which algorithm and parameters each product of ``fn(*args)`` would use, and why.

    Nothing is computed or measured: choices come from the request, the user's cache, what was
    shipped with voxax, or the default. For the backward products give a function that computes
    gradients.

    Args:
      fn: any traceable function; a flax.nnx module too.
      args: its arguments, or ``jax.ShapeDtypeStruct``s in their place.
      platform: ``cpu``, ``gpu`` or ``tpu``; None is JAX's default backend.

    Returns:
      A report that prints as a table; ``.details()`` has every candidate with its time.

    Raises:
      InputError: ``fn`` has no sparse convolution.
      AlgorithmError: no admitted algorithm can run one of its products.
    """
    calls = survey(fn, args, platform or jax.default_backend())
    rows = tuple(Explained(c.scope, foresee(c.problem, c.admitted)) for c in calls)
    reason = _native.unavailable()
    on_cpu = any(c.problem.platform == "cpu" for c in calls)
    return Report(rows, notes=(f"on XLA alone: {reason}",) if on_cpu and reason else ())
