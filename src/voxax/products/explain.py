"""``vx.explain``: which algorithm each product of a function uses, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from voxax.products.account import report_of
from voxax.products.report import Report
from voxax.products.survey import is_concrete, survey


def explain(fn: Callable[..., Any], *args: Any, platform: str | None = None) -> Report:
    """Which algorithm and parameters each product of ``fn(*args)`` would use, and why; how long
    it takes, and how long it would take at best.

    Nothing is measured: choices and times come from the request, the user's cache, what was
    shipped with voxax, or the default. Nothing is computed but kernel maps, where ``args`` are
    concrete, to count their pairs. For the backward products give a function that computes
    gradients.

    Args:
      fn: any traceable function; a flax.nnx module too.
      args: its arguments, or ``jax.ShapeDtypeStruct``s in their place: pairs are then those of
        a recorded scene.
      platform: ``cpu``, ``gpu`` or ``tpu``; None is JAX's default backend.

    Returns:
      A report that prints as a table; ``.details()`` has every candidate with its time.

    Raises:
      InputError: ``fn`` has no sparse convolution.
      AlgorithmError: no admitted algorithm can run one of its products.
    """
    platform = platform or jax.default_backend()
    return report_of(survey(fn, args, platform, maps=is_concrete(fn, args)), platform)
