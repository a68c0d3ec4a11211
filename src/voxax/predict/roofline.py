"""Compare the measured time of each layer of a model with its lower bound on the hardware.

:mod:`voxax.explanation.lower_bound` computes the bounds; this module measures the times.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

from voxax import _compat
from voxax.explanation.lower_bound import PairCounter, lower_bound_of
from voxax.geometry import Voxels
from voxax.hardware import HardwareInfo
from voxax.kernels import Problem
from voxax.nn.model_step import step_of
from voxax.products.primitives import epilogue_p, forward_p

_REPEATS = 5


@dataclasses.dataclass(frozen=True)
class LayerRoofline:
    """Measured time and lower bound of one convolution's forward pass.

    Attributes:
      name: the layer's index among the convolutions, and its scope (``jax.named_scope``).
      shape: numbers of rows, taps (kernel offsets) and channels, as text.
      flops: number of useful floating-point operations.
      bytes: bytes of features, weights, results and the kernel map, each counted once.
      lower_bound: least seconds; None unless the hardware's matrix rate and bandwidth are known.
      bound: ``compute`` or ``memory``, whichever gives the lower bound, or ``unknown``.
      seconds: measured seconds, the fastest of five runs.
    """

    name: str
    shape: str
    flops: int
    bytes: int
    lower_bound: float | None
    bound: str
    seconds: float

    @property
    def ratio(self) -> float | None:
        """Measured time divided by the lower bound; 1 is the best possible. None if unknown."""
        return None if not self.lower_bound else self.seconds / self.lower_bound


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Measurements of all convolutions of a model, in order, and of the whole model.

    Attributes:
      layers: one measurement for each convolution.
      seconds: measured seconds of the whole jitted model, the fastest of five runs.
    """

    layers: tuple[LayerRoofline, ...]
    seconds: float


def roofline(model: Callable[[Voxels], Any], voxels: Voxels, info: HardwareInfo) -> Roofline:
    """Run ``model(voxels)`` in evaluation mode and time each of its convolutions.

    Args:
      model: any callable on Voxels; a flax.nnx module is not changed.
      voxels: concrete voxels, best with their kernel maps attached (``vx.plan``).
      info: facts about the present device, with the rates for the lower bounds.
    """
    step = step_of(model, None, False, None, None)
    arguments = step.arguments(jax.tree.map(jax.numpy.asarray, voxels))
    leaves, tree = jax.tree.flatten(arguments)

    def flat(*values: Any) -> list[Any]:
        return jax.tree.leaves(step.call(*jax.tree.unflatten(tree, values)))

    jaxpr = jax.make_jaxpr(flat)(*leaves)
    equations: list[Any] = []

    def watched(*values: Any) -> list[Any]:
        equations.clear()
        found: list[Any] = []
        for equation, operands, _ in _compat.watch(jaxpr, values, forward_p, epilogue_p):
            equations.append(equation)
            found.append(operands)
        return found

    operands = jax.jit(watched)(*leaves)
    layers = tuple(
        _layer(index, equation, values, info)
        for index, (equation, values) in enumerate(zip(equations, operands, strict=True))
    )
    return Roofline(layers, _seconds(jax.jit(flat), leaves))


def _layer(index: int, equation: Any, operands: Any, info: HardwareInfo) -> LayerRoofline:
    layer = equation.params["layer"]
    features, weight, *rest = operands
    views = rest[len(rest) - len(layer.view_names) :]
    out = equation.outvars[0].aval
    taps, (c_in, c_out) = layer.num_offsets, (features.shape[1], out.shape[1])
    problem = Problem.of("forward", info.platform, features, weight, layer)
    pairs = PairCounter().count(dict(zip(layer.view_names, views, strict=True)), problem)
    bound = lower_bound_of(problem, pairs, info)
    run = jax.jit(functools.partial(equation.primitive.bind, **equation.params))
    return LayerRoofline(
        f"{index} {_compat.scope_in(equation)}".strip(),
        f"{layer.in_capacity} -> {layer.out_capacity} rows, {taps} taps, {c_in} -> {c_out}",
        bound.operations,
        bound.bytes,
        bound.seconds,
        bound.bound or "unknown",
        _seconds(run, operands),
    )


def _seconds(run: Callable[..., Any], operands: Any) -> float:
    def once() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(run(*operands))
        return time.perf_counter() - begin

    once()
    return min(once() for _ in range(_REPEATS))


def rows(result: Roofline) -> Iterator[tuple[str, ...]]:
    """Yield text rows of a table: layer, shape, GFLOP, MB, lower bound in ms, time in ms, ratio."""
    for layer in result.layers:
        bound = (
            "-" if layer.lower_bound is None else f"{1e3 * layer.lower_bound:.2f} ({layer.bound})"
        )
        ratio = "-" if layer.ratio is None else f"{layer.ratio:.1f}"
        work = (f"{layer.flops / 1e9:.3f}", f"{layer.bytes / 1e6:.2f}")
        yield layer.name, layer.shape, *work, bound, f"{1e3 * layer.seconds:.2f}", ratio
