"""Find operations that a traced program should not contain, and tracers that outlive the trace."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from voxax import _compat_tracing
from voxax._compat import programs_in, scope_in
from voxax.check.advice import ADVICE
from voxax.check.findings import Finding
from voxax.check.source import Place, Site, place, place_of
from voxax.check.subject import module_of_scope

LARGE_CONSTANT = 1 << 20  # bytes

_CALLBACKS = ("pure_callback", "io_callback")
_DEBUG_CALLBACKS = ("debug_callback", "debug_print")


def equations(
    jaxpr: Any, own: str | None, scope: str = "", call: Place | None = None
) -> Iterator[tuple[Any, str, Any, Place | None]]:
    """Yield ``(equation, name scope, jaxpr, place)`` for each equation, also of nested jaxprs.

    The yielded jaxpr directly contains the equation. The place is the user's line that traced the
    equation. If the argument `jaxpr` is the body of a call, `scope` and `call` are the name scope
    and the place of that call. The library `own`, if any, counts as the user's code.
    """
    for equation in jaxpr.eqns:
        inner = scope_in(equation, scope)
        where = place_of(equation, call, own)
        yield equation, inner, jaxpr, where
        for body in programs_in(equation):
            yield from equations(getattr(body, "jaxpr", body), own, inner, where)


def hazards(closed: Any, definition: Site, own: str | None) -> list[Finding]:
    """Find callbacks, transfers, large constants and dtype promotions in a closed jaxpr.

    `definition` is the site of the checked function. A finding is there if its place in the user's
    code is unknown. `own` is as in :func:`equations`.
    """
    found = _constants(closed, definition, own)
    for equation, scope, jaxpr, where in equations(closed.jaxpr, own):
        made = _hazard(equation)
        if made is None:
            continue
        if made[0] == "VX306" and (where is None or not _implicit(equation, where, jaxpr, own)):
            continue
        found.append(Finding.at(where or definition, *made, module_of_scope(scope)))
    return found


def _hazard(equation: Any) -> tuple[str, str, str] | None:
    name = equation.primitive.name
    if name in _CALLBACKS:
        return "VX302", f"`{name}` calls Python in every step", ADVICE["VX302"]
    if name in _DEBUG_CALLBACKS:
        return "VX308", "prints or calls Python in every step", ADVICE["VX308"]
    if name == "device_put" and any(d is not None for d in equation.params.get("devices", ())):
        text = "an array is moved to another device or memory in every step"
        return "VX303", text, ADVICE["VX303"]
    if name == "convert_element_type":
        return _promotion(equation)
    return None


def _promotion(equation: Any) -> tuple[str, str, str] | None:
    old, new = equation.invars[0].aval, equation.outvars[0].aval
    floats = jnp.issubdtype(old.dtype, jnp.floating) and jnp.issubdtype(new.dtype, jnp.floating)
    if not floats or new.dtype.itemsize <= old.dtype.itemsize or not old.shape:
        return None
    return (
        "VX306",
        f"{old.dtype.name}{list(old.shape)} becomes {new.dtype.name} because the other operand is",
        ADVICE["VX306"].format(narrow=old.dtype.name),
    )


_EXPLICIT = {"astype", "_astype", "asarray", "array", "_convert_element_type_from_dlpack"}


def _implicit(equation: Any, where: Place, jaxpr: Any, own: str | None) -> bool:
    """Return True if an array was converted only because another operand has a wider dtype.

    `equation` is the conversion, `jaxpr` contains it, and `where` is its place in the user's code.
    An explicit conversion such as ``astype`` gives False. The result is False too if the other
    operand is computed at the same place: a mean of half-precision values computes a float32 sum,
    for example. Code of the library `own`, if any, counts as the user's.
    """
    if _EXPLICIT & set(where.inside):
        return False
    made = equation.outvars[0]
    producers = {v: e for e in jaxpr.eqns for v in e.outvars}
    for consumer in jaxpr.eqns:
        if not any(v is made for v in consumer.invars):
            continue
        for other in consumer.invars:
            if other is made or hasattr(other, "val") or other.aval.dtype != made.aval.dtype:
                continue
            producer = producers.get(other)
            origin = producer and place(_compat_tracing.frames_of(producer), own)
            if origin is None or origin.site != where.site:
                return True
    return False


def _constants(closed: Any, definition: Site, own: str | None) -> list[Finding]:
    large = {
        variable: value
        for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True)
        if _bytes(value) > LARGE_CONSTANT
    }
    found, seen = [], set()
    for equation, scope, _, where in equations(closed.jaxpr, own):
        for operand in equation.invars:
            value = operand.val if hasattr(operand, "val") else large.get(operand)
            if value is None or _bytes(value) <= LARGE_CONSTANT or id(value) in seen:
                continue
            seen.add(id(value))
            text = (
                f"a captured array of {_bytes(value) / 2**20:.1f} MiB, "
                f"{value.dtype.name}{list(value.shape)}, is a constant of the program"
            )
            module, at = module_of_scope(scope), where or definition
            found.append(Finding.at(at, "VX304", text, ADVICE["VX304"], module))
    return found


def _bytes(value: Any) -> int:
    return int(getattr(value, "nbytes", 0) or 0) if np.ndim(value) else 0


def leaked(
    function: Callable[..., Any], values: Sequence[Any], definition: Site, own: str | None
) -> list[Finding]:
    """Find tracers that something still refers to after `function` is traced with `values`.

    A finding is at `definition` if the place that made the tracer is unknown. Code of the library
    `own`, if any, counts as the user's.
    """
    found = []
    for tracer, text in _compat_tracing.leaked_tracers(function, values):
        where = place(_compat_tracing.frames_of(tracer), own)
        name = re.search(r"is referred to by (\w[\w.]*)\.(\w+)$", text.rstrip())
        holder = f", by the global `{name[2]}` of {name[1]}" if name else ""
        what = "an argument" if where is None else "the value computed here"
        text = f"{what} is kept after the function has returned{holder}"
        found.append(Finding.at(where or definition, "VX301", text, ADVICE["VX301"]))
    return found
