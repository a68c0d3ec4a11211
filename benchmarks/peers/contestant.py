"""Entry of a library for one case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Contestant(NamedTuple):
    """One way of a library to run a case.

    Attributes:
      run: one call; returns when the result is there.
      arrays: of a result, by name: ``pairs`` of a map, ``out``, ``features_grad`` and
        ``weight_grad`` of a layer, ``logits`` or ``loss`` of a network; rows and taps in the order
        of the problem.
      exact: a context in which the result is exact, where it is not otherwise.
    """

    run: Callable[[], Any]
    arrays: Callable[[Any], dict[str, np.ndarray]]
    exact: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


# By name, what makes a contestant, or says why it cannot take part.
Makers = Mapping[str, Callable[[], Contestant | str]]

SGEMM_SHAPE = (4096, 512, 512)


def sgemm_operands() -> tuple[np.ndarray, np.ndarray]:
    """Return the operands of the dense product whose rate sets the lower bound."""
    m, k, n = SGEMM_SHAPE
    return np.ones((m, k), np.float32), np.ones((k, n), np.float32)
