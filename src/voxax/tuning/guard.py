"""A candidate is admitted only if it computes what the reference computes: explicit_gemm mostly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from voxax.geometry.dtypes import product_dtype

# Largest admitted error of the mean and of the worst element, as parts of the reference's root
# mean square. float32 sums of some thousand products in another order differ by a few 1e-6 of
# it, half precision by its unit in the last place (2**-11, 2**-8); products at reduced precision
# (TF32, bfloat16 passes) by theirs.
_TOLERANCE: dict[str, tuple[float, float]] = {
    "float64": (1e-12, 1e-10),
    "float32": (1e-5, 1e-3),
    "float16": (2e-3, 3e-2),
    "bfloat16": (1e-2, 1e-1),
    "complex64": (1e-5, 1e-3),
    "complex128": (1e-12, 1e-10),
}
_REDUCED = (1e-2, 1e-1)


_BLOCK = 2**20


def _blocks(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """The arrays piece by piece in double precision: whole copies would not fit everywhere."""
    wide = np.complex128 if np.iscomplexobj(arrays[0]) else np.float64
    flat = [array.reshape(-1) for array in arrays]
    for begin in range(0, flat[0].size, _BLOCK):
        yield tuple(array[begin : begin + _BLOCK].astype(wide) for array in flat)


def objection(
    result: np.ndarray,
    reference: np.ndarray,
    dtype: str,
    precision: str,
    name: str = "explicit_gemm",
) -> str | None:
    """Why ``result`` cannot stand for ``reference``, or None.

    Args:
      result, reference: the outputs of the candidate and of the reference on the same data.
      dtype: of the operands.
      precision: name of the ``jax.lax.Precision`` that both were computed with.
      name: the reference's, for messages.
    """
    if result.shape != reference.shape:
        return f"returned shape {result.shape}, expected {reference.shape}"
    if result.dtype != reference.dtype:
        return f"returned {result.dtype}, expected {reference.dtype}"
    if not result.size:
        return None
    if np.issubdtype(np.dtype(product_dtype(np.dtype(dtype))), np.integer):
        wrong = int((result != reference).sum())
        return f"{wrong} of {result.size} integers differ" if wrong else None
    total = squares = worst = 0.0
    nonzero = False
    unfinished = 0
    for got, want in _blocks(result, reference):
        if not np.isfinite(want).all():
            return f"{name} itself returned values that are not finite"
        unfinished += int((~np.isfinite(got)).sum())
        error = np.abs(got - want)
        total, worst = total + float(error.sum()), max(worst, float(error.max(initial=0)))
        squares += float((np.abs(want) ** 2).sum())
        nonzero |= bool(got.any())
    if unfinished:
        return f"{unfinished} of {result.size} values are not finite"
    scale = float(np.sqrt(squares / result.size))
    if scale == 0:
        return None if not nonzero else f"returned values where {name} returns zeros"
    if not nonzero:
        return "returned zeros only"
    mean, worst = total / result.size / scale, worst / scale
    most_mean, most_worst = _TOLERANCE.get(dtype, _REDUCED)
    if dtype in ("float32", "complex64") and precision not in ("highest", "float32"):
        most_mean, most_worst = _REDUCED
    if mean > most_mean or worst > most_worst:
        return (
            f"differs from {name} by {mean:.1e} on average and {worst:.1e} at worst, "
            f"admitted are {most_mean:.0e} and {most_worst:.0e} of the root mean square"
        )
    return None
