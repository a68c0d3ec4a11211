"""``vx.explain`` and ``vx.tune``: find the sparse convolutions of a function, report or tune them.

A *product* is the forward pass of a convolution, or one of its gradients (dgrad, wgrad).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat, _limits, _native
from voxax.errors import InputError, check_known
from voxax.explanation.lower_bound import PairCounter, lower_bound_of, matrix_rate, table_like
from voxax.explanation.report import Explained, Report
from voxax.explanation.tpu_rows import chooses_rows, rows_moved
from voxax.geometry.call_checks import checked_operator
from voxax.geometry.planning import pure_call
from voxax.hardware import HardwareInfo, describe, hardware_of, shown
from voxax.kernels import Layer, Problem
from voxax.products.convolution import with_statistics
from voxax.products.primitives import PARTS
from voxax.tuning import Resolved, foresee, unmeasured
from voxax.tuning import tune as tune_problem
from voxax.tuning.concrete_maps import density
from voxax.tuning.request import next_epoch


@dataclasses.dataclass(frozen=True, eq=False)
class Call:
    """One product (forward, dgrad or wgrad of a sparse convolution) in a function.

    Attributes:
      scope: the ``jax.named_scope`` path in which the product was traced.
      problem: the product's description: its sizes, dtypes and layer.
      admitted: the algorithms that the user's request for the layer allows.
      layer: the layer that the product belongs to.
      views: the arrays of the kernel map, by name; None if they were not computed.
    """

    scope: str
    problem: Problem
    admitted: Resolved
    layer: Layer
    views: Mapping[str, jax.Array] | None = None


def _is_concrete(fn: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Return whether `args`, and the parameters of a module `fn`, have values.

    Tracers and ``jax.ShapeDtypeStruct`` have none.
    """
    leaves = jax.tree.leaves((args, pure_call(fn)[1]))
    shapes = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    return not shapes and not _compat.is_traced(leaves)


def find_products(
    fn: Callable[..., Any], arguments: tuple[Any, ...], platform: str, *, maps: bool = False
) -> list[Call]:
    """Return the forward, dgrad and wgrad products of convolutions in a function, in program order.

    Args:
      fn: any traceable function.
      arguments: its arguments, or ``jax.ShapeDtypeStruct``s in their place.
      platform: the platform that the products will run on, such as ``tpu``.
      maps: whether to compute the kernel maps of all convolutions outside of loops. The arguments
        must then be concrete, and only the part of the function that the maps need is computed.
        False computes nothing, and the result has no maps.

    Raises:
      InputError: the function has no sparse convolution.
    """
    call_fn, state = pure_call(fn)
    leaves, tree = jax.tree.flatten((state, *arguments))

    def flat(*values: Any) -> list[Any]:
        return jax.tree.leaves(call_fn(*jax.tree.unflatten(tree, values)))

    closed = jax.make_jaxpr(flat)(*leaves)
    found = _compat.applications(closed, tuple(PARTS))
    if not found:
        raise InputError(
            f"{getattr(fn, '__name__', fn)} computes no sparse convolution with these arguments: "
            "there is nothing to tune or to explain"
        )
    arrays = _map_arrays(closed, leaves) if maps else {}
    calls = []
    for equation, scope, place in found:
        layer: Layer = equation.params["layer"]
        own = arrays.get(place)
        views = None if own is None else dict(zip(layer.view_names, own, strict=True))
        for product, *operands in PARTS[equation.primitive]:
            a, b = (equation.invars[i].aval for i in operands)
            problem = Problem.of(product, platform, a, b, layer)
            calls.append(Call(scope, problem, dict(layer.requests)[product], layer, views))
    return calls


def _map_arrays(closed: Any, leaves: list[Any]) -> dict[_compat.Place, list[jax.Array]]:
    """Compute the kernel maps in the jaxpr `closed`; return the arrays of each convolution's map.

    `leaves` are the arguments of the jaxpr. The keys of the result are the positions of the
    convolutions in the program. The arrays of a map are in the order of the ``view_names`` of the
    convolution's layer.
    """
    indices: dict[_compat.Place, list[int]] = {}

    def maps(*values: Any) -> list[Any]:
        indices.clear()
        # Each map once: jit would return a copy for every product that reads it.
        places: dict[int, int] = {}
        distinct: list[Any] = []
        for equation, operands, place in _compat.watch(closed, values, *PARTS):
            views = operands[len(operands) - len(equation.params["layer"].view_names) :]
            for view in views:
                if id(view) not in places:
                    places[id(view)] = len(distinct)
                    distinct.append(view)
            indices[place] = [places[id(view)] for view in views]
        return distinct

    # A convolution that a map depends on may use any algorithm; nothing is to be measured.
    with unmeasured():
        arrays = _compat.only_results(maps)(*leaves)
    return {place: [arrays[i] for i in own] for place, own in indices.items()}


PLATFORMS = "cpu", "gpu", "tpu"


@functools.partial(checked_operator, on_whole_arrays=False)
def explain(fn: Callable[..., Any], *args: Any, platform: str | None = None) -> Report:
    """Report the algorithm and parameters that each sparse convolution in ``fn(*args)`` would use.

    The report also has the reason for each choice, its time, and a lower bound of the time. Nothing
    is measured: choices and times come from the user's request, the user's tuning cache, the
    measurements shipped with voxax, or voxax's defaults. If ``args`` are concrete, only the kernel
    maps are computed, to count their pairs of input and output rows. To include the gradients, pass
    a function that computes them.

    Args:
      fn: any traceable function, such as a flax.nnx module.
      args: its arguments, or ``jax.ShapeDtypeStruct``s in their place. With these shapes, the pairs
        are counted in the map of a recorded scene.
      platform: ``cpu``, ``gpu`` or ``tpu``; None takes JAX's default backend.

    Returns:
      A report that prints as a table; ``.details()`` has every candidate with its time.

    Raises:
      InputError: ``fn`` has no sparse convolution, or the platform is unknown.
      AlgorithmError: no algorithm that is admitted for a convolution in ``fn`` can run.

    Examples:
      >>> layer = modules.SubMConv3d(4, 8, rngs=nnx.Rngs(0))
      >>> report = vx.explain(layer, voxels)  # str(report) is a table
      >>> len(report)
      1
    """
    if platform is None:
        platform = jax.default_backend()
    else:
        check_known("platform", platform, PLATFORMS)
    return report_of(find_products(fn, args, platform, maps=_is_concrete(fn, args)), platform)


@functools.partial(checked_operator, on_whole_arrays=False)
def tune(
    fn: Callable[..., Any], *args: Any, anew: bool = False, budget: float | None = None
) -> Report:
    """Measure every algorithm for every sparse convolution in ``fn(*args)``, and keep the fastest.

    If ``args`` are concrete, each convolution is measured on its own kernel map. The choice then
    applies to this function when it is compiled, and to eager calls on maps of the same density.
    Convolutions with abstract arguments, or with a map that is computed inside ``scan`` or another
    loop, are measured on a recorded scene. Choices are written to the tuning cache, and later
    processes read them.

    Args:
      fn: any traceable function; pass the training step to tune the gradients as well.
      args: its arguments.
      anew: whether to measure again what the cache contains already.
      budget: seconds for all measurements, including compilation; None is no limit. Each distinct
        convolution gets an equal share of the remaining time, and the last ones may get none. For
        each convolution that is measured, at least two algorithms are compared, even if that
        exceeds the budget.

    Returns:
      The choices, in the same form as the report of :func:`voxax.explain`.

    Raises:
      InputError: ``fn`` has no sparse convolution, or the budget is no number of at least 0.
      AlgorithmError: no algorithm that is admitted for a convolution in ``fn`` can run.

    Examples:
      >>> layer = modules.SubMConv3d(4, 8, rngs=nnx.Rngs(0))
      >>> report = vx.tune(layer, voxels, budget=0.1)
    """
    if budget is not None:
        _limits.SECONDS.check("budget", budget, 0)
    begin = time.perf_counter()
    platform = jax.default_backend()
    calls = find_products(fn, args, platform, maps=_is_concrete(fn, args))
    next_epoch()
    # A problem that has a concrete and a recorded map is measured on the concrete one.
    ordered = sorted(calls, key=lambda call: call.views is None)
    distinct = list({(call.problem, call.admitted): call for call in ordered[::-1]}.values())[::-1]
    traced = time.perf_counter()
    for number, call in enumerate(distinct):
        problem, views = call.problem, call.views
        share = None
        if budget is not None:
            share = (budget - (time.perf_counter() - traced)) / (len(distinct) - number)
            if share <= 0:
                break
        # The problem of an eager call on the same map.
        dense = problem if views is None else _as_met(problem, views)
        also = () if dense == problem else (dense,)
        tune_problem(problem, call.admitted, views, also=also, anew=anew, budget=share)
    return report_of(calls, platform, time.perf_counter() - begin)


def _as_met(problem: Problem, views: Mapping[str, jax.Array]) -> Problem:
    """Return `problem` with statistics of a kernel map, as an eager call on this map has them.

    `views` are the arrays of the map by name. The statistic is the density of the map, or None if
    `views` has no table of neighbors. In a dynamic convolution, the statistics are those of the
    kernel sizes.
    """
    if problem.layer.kind == "dynamic":
        layer = with_statistics(problem.layer, np.asarray(views["sizes"]))
        return dataclasses.replace(problem, layer=layer)
    neighbors = views.get("neighbors")
    return problem.with_layer(density=None if neighbors is None else density(neighbors))


def report_of(calls: Sequence[Call], platform: str, seconds: float = 0.0) -> Report:
    """Return the report on products of a function: their algorithms, times and lower bounds.

    Args:
      calls: the products, as :func:`find_products` returns them.
      platform: platform that the products run on, such as ``tpu``.
      seconds: time that was spent on measuring, which the report states.
    """
    own, device = hardware_of(platform)
    hardware = None if device is None else describe(device)
    counter = PairCounter()
    rows = []
    for call in calls:
        counted, problem = call.views is not None, call.problem
        pairs = (
            counter.estimate(problem) if call.views is None else counter.count(call.views, problem)
        )
        stated = problem.product in call.layer.stated
        choice = foresee(problem, call.admitted, stated=stated)
        bound = lower_bound_of(problem, pairs, hardware)
        moved = None
        if chooses_rows(choice):
            moved = rows_moved(choice, table_like(problem, call.views), counted, own)
        rows.append(Explained(call.scope, choice, pairs, counted, bound, moved))
    notes = list(_rates(rows, platform, hardware))
    reason = _native.unavailable()
    if reason and any(c.problem.platform == "cpu" for c in calls):
        notes.append(f"on XLA alone: {reason}")
    return Report(tuple(rows), seconds, tuple(notes))


def _rates(rows: Sequence[Explained], platform: str, hardware: HardwareInfo | None) -> list[str]:
    """Return notes on the device rates used for lower bounds, and how to measure unknown rates."""
    if hardware is None:
        return [f"no lower bound: there is no {platform} here, its rates are unknown"]
    bandwidth, rates = hardware.fact("memory_bandwidth"), hardware.fact("peak_rates")
    problems = [row.choice.problem for row in rows]
    kinds = {_rate_kind(p): (p.dtype, p.layer.precision) for p in problems}
    known = {kind: rate for kind, key in kinds.items() if (rate := matrix_rate(*key, hardware))}
    notes = []
    if known and bandwidth.known:
        notes.append(
            f"lower bounds at {shown('peak_rates', tuple(known.items()))} (source: {rates.source}) "
            f"and {shown('memory_bandwidth', bandwidth.value)} (source: {bandwidth.source})"
        )
    missing = [f"the matrix rate of {kind}" for kind in kinds if kind not in known]
    if not bandwidth.known:
        missing.append("the memory bandwidth")
    if missing:
        notes.append(
            f"no lower bound: unknown is {', '.join(missing)}; `voxax hardware --probe` measures"
        )
    return notes


def _rate_kind(problem: Problem) -> str:
    """Return the dtype that determines a problem's rate of matrix products, as a text.

    For float32 below the highest precision, the text also has the precision.
    """
    p = problem
    reduced = p.dtype == "float32" and p.layer.precision != "highest"
    return f"{p.dtype} at precision {p.layer.precision}" if reduced else p.dtype
