"""Does a function compile to one static program? If not, every place that keeps it from that."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from voxax.check.codes import CODES as CODES
from voxax.check.codes import Verdict as Verdict
from voxax.check.finding import Finding as Finding
from voxax.check.finding import Rewrite as Rewrite
from voxax.check.jax import check, refuse
from voxax.check.report import Report as Report
from voxax.check.verify import verify as _verify
from voxax.errors import InputError


def check_static(
    target: Any,
    *example_inputs: Any,
    also: Sequence[Sequence[Any]] = (),
    verify: bool = False,
) -> Report:
    """Check whether ``target`` compiles to one static program under ``jax.jit``.

    The function is traced as ``jit`` does. Where that fails, it is run again with the example
    values riding along: every place that asks for a value of a traced array is noted, and the run
    goes on with the example's value; then once more for the other side of each branch. So all
    findings come in one call. Nothing but ``target`` is run.

    Args:
      target: a function (also one made by ``jax.jit``, whose static arguments are honoured), or a
        flax.nnx module, whose parameters are traced. It is not changed.
      example_inputs: its positional arguments: arrays and pytrees of arrays; Python numbers, which
        ``jit`` traces unless told otherwise; anything else is static.
      also: further examples, each a tuple like ``example_inputs``. Shapes, dtypes and structures
        that vary between the examples are findings.
      verify: really compile, for five inputs of equal shape, and count the programs.

    Returns:
      A report that prints itself: a verdict, one for each submodule, and findings with code, file,
      line, what depends on what, and what to write instead.

    Raises:
      InputError: the target cannot be called, or an example is no value.
    """
    torch = sys.modules.get("torch.nn")
    if torch is not None and isinstance(target, torch.Module):
        raise InputError(
            "PyTorch modules are not checked in this version; got "
            f"{type(target).__name__}. Functions of JAX and flax.nnx modules are"
        )
    if not callable(target):
        raise InputError(f"a function or a module is needed, got {type(target).__name__}")
    for inputs in (example_inputs, *also):
        refuse(inputs)
    report = check(target, example_inputs, also)
    return dataclasses.replace(report, verification=_verify(report)) if verify else report
