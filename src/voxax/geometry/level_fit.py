"""Compute the capacities of a network's levels from the capacity of its input.

A level is a set of voxels at one stride. Capacities are fitted to samples (:class:`Fit`), or follow
from the strides (:func:`rows_by_stride`). In both cases, scans that have the same input capacity
share a compiled program, in any order and in every process.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from voxax.coords import bucket_capacity, ladder_capacity, round_up_rows
from voxax.errors import FileFormatError
from voxax.geometry.kernel_spec import KernelSpec

# The largest input capacity on the ladder is this factor times the largest sample.
_INPUT_MARGIN = 1.05
_STEP = 4
# Rows of a level of stride 2 as a share of the input's capacity. Scans fill 0.6 of it on average.
# LiDAR sweeps at 5 cm need up to 0.79 of their voxels, at 10 cm 0.55 to 0.67, rooms and surfaces
# 0.3 to 0.5. Each doubling of the stride at least halves the rows.
_SHARE = 0.6
# Limits of the fitted slope. Samples that all fill one cube have levels that do not grow with the
# input, which says nothing about other clouds.
_SLOPES = 0.5, 1.5


@dataclasses.dataclass(frozen=True)
class LevelFit:
    """A function from the capacity of a network's input to the capacity of one of its levels.

    If the input capacity occurred among the samples, the result is taken from ``seen``. Otherwise
    it is ``exp(intercept + slope * log(capacity))``, an upper bound that is fitted to all samples.
    Results are rounded up to a multiple of 8.

    Attributes:
      slope, intercept: coefficients of the formula. The slope depends on the scenes, because
        coarsening removes more voxels of surfaces than of lines.
      seen: ``((capacity, rows), ...)`` for each input capacity that occurred among the samples.
        ``rows`` is the largest number of rows that a sample of this or a smaller input capacity
        needs at the level, times a margin.
    """

    slope: float
    intercept: float
    seen: tuple[tuple[int, int], ...] = ()

    def __call__(self, capacity: int) -> int:
        rows = dict(self.seen).get(capacity)
        if rows is None:
            rows = math.exp(self.intercept + self.slope * math.log(max(capacity, 1)))
        return round_up_rows(math.ceil(rows))


@dataclasses.dataclass(frozen=True)
class Fit:
    """Capacities of inputs and levels, fitted to samples. Checkpoints store :meth:`to_json`.

    Attributes:
      levels: the fits of level 1, 2, ...; level 0 is the input.
      rungs: the few capacities that inputs may take, ascending. If it is empty, input capacities
        are rounded up by :func:`voxax.bucket_capacity` instead.
      least: numbers of voxels below it count as ``least`` when they are rounded up; only read if
        ``rungs`` is empty.
    """

    levels: tuple[LevelFit, ...]
    rungs: tuple[int, ...] = ()
    least: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the fit as a dictionary of lists and numbers, for :meth:`from_json`."""
        levels = [[fit.slope, fit.intercept, [list(s) for s in fit.seen]] for fit in self.levels]
        return {"levels": levels, "rungs": list(self.rungs), "least": self.least}

    @classmethod
    def from_json(cls, values: Any) -> Fit:
        """Return the fit that :meth:`to_json` converted to ``values``.

        Raises:
          FileFormatError: ``values`` is not a result of :meth:`to_json`.
        """
        try:
            if not isinstance(values, Mapping):
                raise TypeError("no table")
            levels = tuple(
                LevelFit(_number(slope), _number(intercept), tuple(map(_pair, seen)))
                for slope, intercept, seen in values["levels"]
            )
            return cls(levels, tuple(map(_rows, values["rungs"])), _rows(values["least"], 0))
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(f"no capacities of levels: {error}") from error


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e3:
        raise ValueError(f"{value!r:.40} is no slope or intercept")
    return float(value)


def _rows(value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
        raise ValueError(f"{value!r:.40} is no capacity")
    return value


def _pair(values: Any) -> tuple[int, int]:
    capacity, rows = values
    return _rows(capacity), _rows(rows)


def fitted_to(counts: np.ndarray, margin: float, on_ladder: bool) -> Fit:
    """Fit the capacities of a network's levels to samples, whose order does not matter.

    Args:
      counts: ``int[S, L]``, number of rows of each sample at each level, level 0 first.
      margin: factor on the rows that the samples need at levels 1, 2, ...
      on_ladder: how the capacity of an input is chosen. True chooses from few capacities. The
        largest is 5 % above the largest sample, and each smaller one is a fourth of the next
        larger. Capacities that no sample takes are left out. False rounds the number of voxels up
        by :func:`voxax.bucket_capacity`.
    """
    inputs = [int(n) for n in counts[:, 0]]
    rungs = _rungs(inputs) if on_ladder else ()
    given = [next(r for r in rungs if r >= n) if on_ladder else bucket_capacity(n) for n in inputs]
    capacity = np.asarray(given)
    size = np.log(np.maximum(counts[:, 0], 1))
    fits = []
    for level in range(1, counts.shape[1]):
        needed = np.maximum(counts[:, level], 1)
        rows = np.log(needed)
        slope = 1.0
        if np.ptp(size) > math.log(1.2):
            order = np.lexsort((rows, size))  # sums of floats depend on it
            slope = float(np.clip(np.polyfit(size[order], rows[order], 1)[0], *_SLOPES))
        intercept = float(np.max(rows - slope * size)) + math.log(margin)
        # A larger capacity never has fewer rows than a smaller one.
        seen = tuple(
            (int(b), math.ceil(margin * needed[capacity <= b].max())) for b in np.unique(capacity)
        )
        fits.append(LevelFit(slope, intercept, seen))
    return Fit(tuple(fits), rungs)


def _rungs(inputs: Sequence[int]) -> tuple[int, ...]:
    """Return a few capacities, ascending, for samples with ``inputs[i]`` voxels.

    Each sample takes the smallest capacity that holds it. Capacities that no sample takes are left
    out.
    """
    top = round_up_rows(math.ceil(_INPUT_MARGIN * max(inputs)))
    rungs = [top]
    while rungs[-1] > _STEP * round_up_rows(1):
        rungs.append(round_up_rows(rungs[-1] // _STEP))
    taken = {min(rung for rung in rungs if rung >= n) for n in inputs}
    return tuple(sorted(taken))


def rows_by_stride(
    capacity: int,
    counts: Sequence[int],
    parents: Sequence[tuple[int, KernelSpec]],
    fixed: Sequence[int | None],
) -> tuple[int, ...]:
    """Return the capacity of every level, computed from the input's capacity and the strides.

    The capacity of a level depends on the layer that makes it. If ``fixed`` gives a capacity, that
    is taken. Levels of generative and transposed layers take
    :func:`voxax.coords.ladder_capacity` of their count. Each of these levels, and the input, is the
    root of the strided levels computed from it. A strided level takes ``1.2 / s`` times the
    capacity of its root, and at most all of it. Here s is the product of the strides from the root
    to the level, with the geometric mean over the axes. If a level needs more rows, the factor 1.2
    is doubled until the capacity of every level suffices.

    Args:
      capacity: number of rows of the input.
      counts: number of rows that each level needs, level 0 first.
      parents: for level 1, 2, ...: the level it is computed from, and the spec of this step.
      fixed: for level 1, 2, ...: the capacity that the network itself gives, or None.
    """
    factor = 1.0
    while True:
        rows, base, strides = [capacity], [0], [1.0]
        for level, ((parent, spec), own) in enumerate(zip(parents, fixed, strict=True), 1):
            strided = not spec.generative and not spec.transposed
            root = base[parent] if strided and own is None else level
            stride = strides[parent] * math.prod(spec.stride) ** (1 / len(spec.stride))
            if own is None and strided:
                share = min(1.0, factor * 2 * _SHARE / stride)
                own = min(rows[root], round_up_rows(math.ceil(share * rows[root])))
            rows.append(own or ladder_capacity(counts[level]))
            base.append(root)
            strides.append(1.0 if root == level else stride)
        if all(n <= c for n, c in zip(counts, rows, strict=True)):
            return tuple(rows)
        factor *= 2
