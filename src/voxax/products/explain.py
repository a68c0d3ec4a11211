"""``vx.explain``: which algorithm each product of a function uses, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from voxax import _compat, _native
from voxax.geometry.functional import functional
from voxax.hardware import HardwareInfo, describe, shown
from voxax.products.floor import floor_of, matrix_rate
from voxax.products.pairs import PairCounter
from voxax.products.report import Explained, Report
from voxax.products.survey import Call, survey
from voxax.tuning import foresee, hardware_of


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


def is_concrete(fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether all arguments, and the parameters of a module, have values."""
    leaves = jax.tree.leaves((args, functional(fn)[1]))
    shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    return not shapes and not _compat.is_traced(leaves)


def report_of(calls: Sequence[Call], platform: str, seconds: float = 0.0) -> Report:
    """What is known about ``calls`` now, after ``seconds`` of measuring."""
    _, device = hardware_of(platform)
    hardware = None if device is None else describe(device)
    counter = PairCounter()
    rows = tuple(_explained(call, hardware, counter) for call in calls)
    notes = list(_rates(rows, platform, hardware))
    reason = _native.unavailable()
    if reason and any(c.problem.platform == "cpu" for c in calls):
        notes.append(f"on XLA alone: {reason}")
    return Report(rows, seconds, tuple(notes))


def _explained(call: Call, hardware: HardwareInfo | None, counter: PairCounter) -> Explained:
    counted = call.views is not None
    pairs = counter.estimate(call.problem) if call.views is None else counter.count(call.views)
    floor = floor_of(call.problem, pairs, hardware)
    return Explained(call.scope, foresee(call.problem, call.admitted), pairs, counted, floor)


def _rates(rows: Sequence[Explained], platform: str, hardware: HardwareInfo | None) -> list[str]:
    """What the floors stand on, a line each; how to measure what is unknown."""
    if hardware is None:
        return [f"no floor: there is no {platform} here, its rates are unknown"]
    bandwidth, rates = hardware.fact("memory_bandwidth"), hardware.fact("peak_rates")
    dtypes = dict.fromkeys(row.choice.problem.dtype for row in rows)
    known = {d: rate for d in dtypes if (rate := matrix_rate(d, hardware))}
    notes = []
    if known and bandwidth.known:
        notes.append(
            f"floors at {shown('peak_rates', tuple(known.items()))} (source: {rates.source}) and "
            f"{shown('memory_bandwidth', bandwidth.value)} (source: {bandwidth.source})"
        )
    missing = [f"the matrix rate of {d}" for d in dtypes if d not in known]
    if not bandwidth.known:
        missing.append("the memory bandwidth")
    if missing:
        notes.append(
            f"no floor: unknown is {', '.join(missing)}; `voxax hardware --probe` measures"
        )
    return notes
