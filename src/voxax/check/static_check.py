"""The check of a function, of JAX or PyTorch."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from jax.tree_util import tree_leaves

from voxax.check import time_limit
from voxax.check.inputs import examples_of, forward_of
from voxax.check.jax_check import check, refuse
from voxax.check.programs import verify as _verify
from voxax.check.static_report import Report
from voxax.errors import InputError


def check_static(
    target: Any,
    *example_inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    also: Sequence[Sequence[Any] | Mapping[str, Any]] = (),
    verify: bool = False,
    seconds: float = time_limit.SECONDS,
) -> Report:
    """Check whether ``target`` compiles to one static program.

    For JAX that is under ``jax.jit``; for PyTorch, through ``torch.export`` to XLA.

    The function is traced as ``jit`` does. Where that fails, it runs again on tracers that know the
    example values: every place that asks for a value of a traced array is noted, and the run goes
    on with the example's value; then once more for the other side of each branch. So all findings
    come in one call. Nothing but ``target`` is run.

    Args:
      target: a function (also one made by ``jax.jit``, whose static arguments are honored), or a
        flax.nnx module or a ``torch.nn.Module``, whose parameters are traced. It is not changed.
      example_inputs: its positional arguments: arrays and pytrees of arrays; Python numbers, which
        ``jit`` traces unless told otherwise; anything else is static.
      kwargs: arguments by name, also keyword-only ones; what a value may be is as for
        ``example_inputs``.
      also: further examples, each a tuple in place of ``example_inputs``, or a dict of those
        arguments by name that differ. Shapes, dtypes and structures that vary between the examples
        are findings.
      verify: really compile, for five inputs of equal shape, and count the programs.
      seconds: time limit of the search for findings, which also ends endless loops.

    Returns:
      A report that prints itself: a verdict, one for each submodule, and findings with code, file,
      line, what depends on what, and what to write instead.

    Raises:
      InputError: the target cannot be called, an example is no value or has a name that the target
        has not, or ``seconds`` is not positive.

    Examples:
      >>> vx.check_static(lambda x: jnp.sum(x), jnp.ones(4)).verdict.value
      'static'
    """
    if not callable(target):
        raise InputError(f"a function or a module is needed, got {type(target).__name__}")
    if not seconds > 0:
        raise InputError(f"seconds is a positive number, got {seconds!r}")
    is_torch = of_torch(target, (example_inputs, kwargs))
    examples = examples_of(forward_of(target), example_inputs, kwargs or {}, also)
    if is_torch:
        # It imports PyTorch, which the caller has.
        from voxax.check import torch_check, torch_verify

        with time_limit.within(seconds):
            report = torch_check.check(target, examples)
        verified = torch_verify.verify if verify else None
    else:
        for inputs in examples:
            refuse(inputs)
        with time_limit.within(seconds):
            report = check(target, examples)
        verified = _verify if verify else None
    return (
        report if verified is None else dataclasses.replace(report, verification=verified(report))
    )


def of_torch(target: Any, inputs: Any) -> bool:
    """Return True for a module of PyTorch and for a function that is given its tensors.

    PyTorch is not imported for that: unless the caller imported it, nothing can be PyTorch's.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    if isinstance(target, torch.nn.Module):
        return True
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(inputs))
