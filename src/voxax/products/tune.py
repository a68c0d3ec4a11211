"""``vx.tune``: measure everything that a function needs, before the run."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from voxax.algorithms import Problem
from voxax.products.account import report_of
from voxax.products.dynamic import densities
from voxax.products.report import Report
from voxax.products.survey import is_concrete, survey
from voxax.tuning import tune as tune_problem
from voxax.tuning.environment import next_epoch
from voxax.tuning.key import density_bucket


def tune(fn: Callable[..., Any], *args: Any, anew: bool = False) -> Report:
    """Find every sparse convolution in ``fn(*args)``, and measure every candidate of each.

    Where ``args`` are concrete, each problem is measured on its own map, and the choice holds
    for this function when it is compiled, and for eager calls on maps as dense as these.
    Products whose map is computed inside ``scan`` and other loops, and those of abstract
    arguments, are measured on a recorded occupancy. There is no time budget. Choices go to the
    cache: later processes start with them.

    Args:
      fn: any traceable function; give the training step to tune the backward products as well.
      args: its arguments.
      anew: measure also what the cache knows.

    Returns:
      The choices, as :func:`voxax.explain` gives them.

    Raises:
      InputError: ``fn`` has no sparse convolution.
      AlgorithmError: no admitted algorithm can run one of its products.
    """
    begin = time.perf_counter()
    platform = jax.default_backend()
    calls = survey(fn, args, platform, maps=is_concrete(fn, args))
    next_epoch()
    done = set()
    for call in calls:
        if call.views is None or (call.problem, call.admitted) in done:
            continue
        done.add((call.problem, call.admitted))
        # What an eager call on the same map will ask for.
        dense = _as_met(call.problem, call.views)
        also = () if dense == call.problem else (dense,)
        tune_problem(call.problem, call.admitted, call.views, also=also, anew=anew)
    for call in calls:
        if (call.problem, call.admitted) not in done:
            done.add((call.problem, call.admitted))
            tune_problem(call.problem, call.admitted, anew=anew)
    return report_of(calls, platform, time.perf_counter() - begin)


def _as_met(problem: Problem, views: Mapping[str, jax.Array]) -> Problem:
    """The problem with what is counted on a concrete map."""
    if problem.kind == "dynamic":
        return dataclasses.replace(problem, **densities(problem, np.asarray(views["sizes"])))
    return dataclasses.replace(problem, density=_density(views))


def _density(views: Mapping[str, jax.Array]) -> float | None:
    """Bucketed pairs per output row that has any, from the map's arrays."""
    if "neighbors" not in views:
        return None
    found = np.asarray(views["neighbors"]) >= 0
    return density_bucket(int(found.sum()), int(found.any(axis=1).sum()))
