"""Tracers that outlive the trace."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

from voxax import _compat
from voxax.check.arguments import Arguments
from voxax.check.by_example import followed, run_by_example
from voxax.check.finding import Finding
from voxax.check.modules import Subject
from voxax.check.source import place


def leaked(
    subject: Subject, arguments: Arguments, held: frozenset[str], own: str | None
) -> tuple[list[Finding], str]:
    """Values of the trace that something still holds when the function has returned.

    Returns:
      ``(findings, why nothing was looked at)``; the reason is empty where all was.
    """
    try:
        alive = _alive(subject, arguments, held)
    except _compat.TraceLimit as limit:
        return [], f"leaks: {limit}"
    if not alive:
        return [], ""
    below = {
        id(_compat.base_tracer(value))
        for tracer in alive
        if tracer.node is not None
        for value in tracer.node.inputs
    }
    found = []
    for tracer in alive:
        if id(tracer) in below:
            continue
        where = tracer.node and place(_compat.frames_of(tracer.node), own)
        if where is None:
            continue
        found.append(
            Finding(
                "VX301",
                where.site,
                f"the value computed here is kept after the function has returned{_holder(tracer)}",
                fix="return it, and keep what the compiled function returned",
                callers=where.callers,
            )
        )
    del alive
    return found, ""


def _alive(subject: Subject, arguments: Arguments, held: frozenset[str]) -> list[Any]:
    born: list[weakref.ref[Any]] = []
    trace = _compat.ExampleTrace()
    trace.limit = 200_000
    trace.born = born
    values = followed(arguments, held, trace)
    inputs = {id(v) for v in values}
    try:
        run_by_example(subject, arguments.fill(values), trace)
    except Exception:
        return []
    del values
    gc.collect()
    return [t for ref in born if (t := ref()) is not None and id(t) not in inputs]


def _holder(tracer: Any) -> str:
    """Who holds it, where that can be said in a few words."""
    for holder in gc.get_referrers(tracer):
        if isinstance(holder, dict):
            for name, module in list(sys.modules.items()):
                if getattr(module, "__dict__", None) is holder:
                    keys = [k for k, v in holder.items() if v is tracer]
                    return f", by the global `{keys[0]}` of {name}" if keys else ""
            keys = [k for k, v in holder.items() if v is tracer and isinstance(k, str)]
            if keys:
                return f", under the name `{keys[0]}`"
    return ""
