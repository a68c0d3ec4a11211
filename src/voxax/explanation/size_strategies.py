"""Compare algorithms of a dynamic convolution, in which each position has its own kernel size."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from voxax.errors import InputError
from voxax.explanation.inspect import find_products
from voxax.explanation.lower_bound import matrix_rate
from voxax.explanation.report import milliseconds
from voxax.hardware import hardware_of
from voxax.kernels import Problem, names
from voxax.kernels.dynamic.grid import grid_of, tile_maximum
from voxax.kernels.dynamic.grouped import BLOCK
from voxax.tuning.measure import compiled
from voxax.tuning.sample import sample_of
from voxax.tuning.space import Candidate, space_of

_TILE = 256


@dataclasses.dataclass(frozen=True)
class Strategy:
    """Cost of one algorithm for a dynamic convolution, given the kernel size of each position.

    Attributes:
      name: name of the algorithm, as in ``algorithm=``.
      operations: number of multiplications and additions, for these kernel sizes.
      expected: ``operations`` over the device's matrix rate, in seconds; None if the rate is
        unknown (``voxax hardware --probe`` measures it).
      seconds: measured seconds of one call; None if it was not measured, or cannot run.
      compile_seconds: measured seconds of compiling the program, or None.
      reason: why the algorithm cannot run, or None.
    """

    name: str
    operations: int
    expected: float | None
    seconds: float | None = None
    compile_seconds: float | None = None
    reason: str | None = None


@dataclasses.dataclass(frozen=True)
class Strategies:
    """Comparison of the algorithms for one dynamic convolution; prints as a table.

    Attributes:
      rows: one row for each algorithm.
      histogram: number of output positions with kernel size 0, 1, 2, ...
      exact: number of operations if each position computes only the kernel offsets in its own
        kernel; no algorithm needs fewer.
    """

    rows: tuple[Strategy, ...]
    histogram: tuple[int, ...]
    exact: int

    def __getitem__(self, name: str) -> Strategy:
        return next(row for row in self.rows if row.name == name)

    @property
    def break_even(self) -> float | None:
        """Number of calls after which ``specialized`` has saved the time of its compilation.

        The algorithm ``specialized`` is compiled for one histogram of kernel sizes. The saving is
        relative to the fastest other algorithm. None if nothing is saved or times are missing.
        """
        own, best = self["specialized"], self._best_other
        if own.seconds is None or own.compile_seconds is None or best is None:
            return None
        gain = best - own.seconds
        return own.compile_seconds / gain if gain > 0 else None

    @property
    def _best_other(self) -> float | None:
        """Least measured seconds of all algorithms except ``specialized``, or None."""
        times = [r.seconds for r in self.rows if r.name != "specialized" and r.seconds is not None]
        return min(times, default=None)

    def __str__(self) -> str:
        sizes = ", ".join(f"{n} of size {s}" for s, n in enumerate(self.histogram) if n)
        lines = [
            f"positions: {sizes}; exact {self.exact / 1e9:.3g} GFLOP",
            f"{'strategy':<12}{'GFLOP':>9}{'expected':>12}{'measured':>12}{'compiled':>10}",
        ]
        for row in self.rows:
            work = f"{row.name:<12}{row.operations / 1e9:>9.3g}"
            times = f"{milliseconds(row.expected):>12}{milliseconds(row.seconds):>12}"
            made = "-" if row.compile_seconds is None else f"{row.compile_seconds:.1f} s"
            lines.append(f"{work}{times}{made:>10}" + (f"  {row.reason}" if row.reason else ""))
        own, best = self["specialized"].seconds, self._best_other
        if self.break_even is not None:
            lines.append(f"specialized breaks even after {self.break_even:.0f} calls")
        elif own is not None and best is not None:
            lines.append(
                f"specialized gains nothing here: it takes {own / best:.2f} of the fastest"
            )
        return "\n".join(lines)


def strategies(fn: Callable[..., Any], *args: Any, measure: bool = False) -> Strategies:
    """Compare the costs of all algorithms for the first dynamic convolution in ``fn(*args)``.

    The kernel sizes are those of this call. :func:`voxax.explain` names the chosen algorithm.

    Args:
      fn: any traceable function.
      args: concrete arguments.
      measure: whether to also compile and time each algorithm, on random operands and these kernel
        sizes.

    Raises:
      InputError: there is no dynamic convolution with concrete sizes.
    """
    calls = find_products(fn, args, jax.default_backend(), maps=True)
    found = [call for call in calls if call.problem.layer.kind == "dynamic"]
    if not found or found[0].views is None:
        raise InputError("there is no dynamic convolution with concrete sizes in this call")
    problem, given = found[0].problem, found[0].views["sizes"]
    grid = grid_of(problem)
    sizes = np.clip(np.asarray(given), 0, grid.largest)
    counts = np.asarray(grid.counts)
    histogram = np.bincount(sizes, minlength=grid.largest + 1)
    at_least = [int((sizes >= size).sum()) for size in range(grid.largest + 1)]
    problem = problem.with_sizes(
        prefix=tuple(min(-(-n // BLOCK) * BLOCK, sizes.size) for n in at_least)
    )
    exact = int(counts[sizes].sum())
    each = 2 * problem.in_channels * problem.out_channels
    scenes = sizes.reshape(grid.outputs[0], -1)
    uniform = scenes.min(1) == scenes.max(1)
    side = max(1, round(_TILE ** (1 / (len(grid.outputs) - 1))))
    blocks = _blocks(counts, np.sort(sizes)[::-1], BLOCK)
    hardware, device = hardware_of(problem.platform)
    spaces = {name: space_of(problem, (name,), hardware) for name in names("dynamic")}
    grouped = spaces["grouped"].heuristics
    multiplied = {
        "masked": sizes.size * counts[-1],
        # The native kernels multiply only the taps that positions have.
        "grouped": exact if grouped and grouped[0].kernel.platform == "cpu" else blocks,
        "tiled": counts[tile_maximum(sizes.reshape(grid.outputs), side)].sum(),
        "selected": int(np.where(uniform, counts[scenes.max(1)], counts[-1]).sum())
        * scenes.shape[1],
        "specialized": blocks,
    }
    rate = matrix_rate(problem.dtype, problem.layer.precision, hardware)
    rows = []
    for name, space in spaces.items():
        operations = int(multiplied[name]) * each
        reason = dict(space.refused).get(name)
        seconds = made = None
        if measure and reason is None and device is not None:
            seconds, made = _timed(problem, space.heuristics[0], given)
        expected = operations / rate if rate else None
        rows.append(Strategy(name, operations, expected, seconds, made, reason))
    return Strategies(tuple(rows), tuple(int(n) for n in histogram), exact * each)


def _blocks(counts: np.ndarray, ordered: np.ndarray, block: int) -> int:
    """Return how many kernel offsets are computed in total if positions are computed in blocks.

    At each position of a block, all offsets of the block's largest kernel are computed. `ordered`
    are the kernel sizes of all positions, largest first. Every `block` positions in this order form
    a block. ``counts[s]`` is the number of offsets in a kernel of size s.
    """
    starts = np.arange(0, len(ordered), block)
    lengths = np.minimum(block, len(ordered) - starts)
    return int((counts[ordered[starts]] * lengths).sum()) if len(ordered) else 0


def _timed(problem: Problem, candidate: Candidate, sizes: jax.Array) -> tuple[float, float]:
    """Return the seconds of one call of the candidate, and of compiling its program.

    The time of a call is the least of three. ``sizes`` are the kernel sizes of the output
    positions.
    """
    sample = sample_of(problem, {"sizes": sizes}, {"sizes": None})
    begin = time.perf_counter()
    program = compiled(problem, candidate, sample)
    made = time.perf_counter() - begin

    def once() -> float:
        begin = time.perf_counter()
        jax.block_until_ready(program())
        return time.perf_counter() - begin

    once()
    return min(once() for _ in range(3)), made
