"""A model as a pure function of its state and its arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def functional(model: Callable[..., Any]) -> tuple[Callable[..., Any], Any]:
    """``(call(state, *args), state)``.

    A flax.nnx module is split, so that tracing it cannot write tracers into its variables. flax is
    used only where the caller has imported it.
    """
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(model, nnx.Module):
        graph, state = nnx.split(model)
        return lambda state, *args: nnx.merge(graph, state, copy=True)(*args), state
    return lambda _, *args: model(*args), ()
