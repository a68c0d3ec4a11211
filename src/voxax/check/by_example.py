"""Runs a function on the values of its examples, each followed by a tracer."""

from __future__ import annotations

import contextlib
from typing import Any

import jax

from voxax import _compat
from voxax.check.arguments import Arguments
from voxax.check.modules import Subject


def followed(arguments: Arguments, held: frozenset[str], trace: _compat.ExampleTrace) -> list[Any]:
    """Values of the arguments, those that are not in ``held`` as tracers of ``trace``."""
    traced = set(arguments.traced(held))
    return [
        trace.argument(leaf.value, leaf.name) if i in traced else leaf.value
        for i, leaf in enumerate(arguments.leaves)
    ]


def run_by_example(
    subject: Subject,
    given: Any,
    trace: _compat.ExampleTrace,
    *contexts: contextlib.AbstractContextManager[Any],
) -> None:
    """Calls ``subject(*given)``; Python code that asks for a tracer's value gets the example's.

    Args:
      subject: the function.
      given: its arguments, of values that ``trace`` follows.
      trace: records the operations.
      contexts: entered around the call.

    Raises:
      TraceLimit: the trace's limit was reached. Whatever the function raises is raised, too.
    """

    def handler(kind: str, tracer: Any, context: str) -> Any:
        del kind, context
        return _compat.example_of(tracer)

    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.disable_jit())
        stack.enter_context(_compat.fresh_trace())
        stack.enter_context(_compat.answering(handler))
        for context in contexts:
            stack.enter_context(context)
        stack.enter_context(trace.active())
        try:
            subject.function(*given)
        finally:
            subject.paths = {}
