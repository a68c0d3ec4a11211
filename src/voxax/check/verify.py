"""Really compile, over several inputs of equal shape, and count the programs."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import jax
import numpy as np

from voxax import _compat
from voxax.check.arguments import Arguments
from voxax.check.codes import Verdict
from voxax.check.report import Report

INPUTS = 5


@dataclasses.dataclass(frozen=True)
class Verification:
    """What compiling showed.

    Attributes:
      inputs: how many different inputs of equal shape the function was called with.
      programs: how many programs that compiled.
      error: what compiling or running raised, or None.
      holds: whether this is what the verdict says.
      differs: it compiles, and computes something else than Python does.
    """

    inputs: int
    programs: int
    error: str | None
    holds: bool
    differs: bool = False

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        state = "verified" if self.holds else "NOT verified"
        if self.error is not None:
            return f"{state}: compiling raises {self.error}"
        if self.differs:
            return f"{state}: the program computes something else than Python does"
        plural = "s" if self.programs != 1 else ""
        return (
            f"{state}: {self.programs} program{plural} for {self.inputs} inputs of equal shape, "
            "static arguments held"
        )


def verify(report: Report) -> Verification:
    """Compile and run the function with five inputs; traces of a static function: one."""
    from voxax.check.jax import WARNINGS, staged

    arguments: Arguments = report.arguments
    held = frozenset(report.static_arguments) & arguments.numbers()
    function, values = staged(report.subject, arguments, held)
    compiled = 0

    def counted(*leaves: Any) -> Any:
        nonlocal compiled
        compiled += 1  # Python runs only when a program is made
        return function(*leaves)

    jitted = jax.jit(counted)
    may = report.verdict in (Verdict.STATIC, Verdict.PER_VALUE)
    try:
        # Whoever turns warnings into errors asks about the programs.
        with WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [
                jax.block_until_ready(jitted(*(vary(v, seed) for v in values)))
                for seed in range(INPUTS)
            ]
            if not may:  # an error that the function catches
                plain = [function(*(vary(v, seed) for v in values)) for seed in range(INPUTS)]
                differs = not all(map(_same, plain, found))
                return Verification(INPUTS, compiled, None, differs, differs)
    except Exception as error:
        text = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
        return Verification(INPUTS, compiled, text, not may)
    return Verification(INPUTS, compiled, None, may and compiled == 1)


def _same(one: Any, two: Any) -> bool:
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(two)
    return len(leaves) == len(others) and all(
        np.shape(a) == np.shape(b)
        and np.allclose(np.asarray(a, np.complex128), np.asarray(b), 1e-3, 1e-4, equal_nan=True)
        for a, b in zip(leaves, others, strict=True)
        if not _compat.is_key(a)
    )


def vary(value: Any, seed: int) -> Any:
    """Another input of the same type: the example's own values, in another order and scaled.

    Arrays of integers and booleans stay as they are: coordinates must stay sorted, and a kernel
    map's rows belong together.
    """
    if seed == 0 or _compat.is_key(value):
        return value
    if isinstance(value, bool):
        return bool(seed % 2)
    if isinstance(value, int | float | complex) and not isinstance(value, np.generic):
        return value + seed
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
        return value
    array = np.asarray(value)
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(array.reshape(-1)).reshape(array.shape)
    return jax.numpy.asarray(mixed * array.dtype.type(1 + seed / 16))
