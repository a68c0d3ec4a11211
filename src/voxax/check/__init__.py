"""Does a function compile to one static program? If not, every place that keeps it from that."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from jax.tree_util import tree_leaves

from voxax.check.findings import CODES as CODES
from voxax.check.findings import Finding as Finding
from voxax.check.findings import Verdict as Verdict
from voxax.check.jax_check import check, refuse
from voxax.check.programs import verify as _verify
from voxax.check.static_report import Report as Report
from voxax.errors import InputError


def check_static(
    target: Any,
    *example_inputs: Any,
    also: Sequence[Sequence[Any]] = (),
    verify: bool = False,
) -> Report:
    """Check whether ``target`` compiles to one static program.

    For JAX that is under ``jax.jit``; for PyTorch, through ``torch.export`` to XLA.

    The function is traced as ``jit`` does. Where that fails, it is run again with the example
    values riding along: every place that asks for a value of a traced array is noted, and the run
    goes on with the example's value; then once more for the other side of each branch. So all
    findings come in one call. Nothing but ``target`` is run.

    Args:
      target: a function (also one made by ``jax.jit``, whose static arguments are honoured), or a
        flax.nnx module or a ``torch.nn.Module``, whose parameters are traced. It is not changed.
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
    if not callable(target):
        raise InputError(f"a function or a module is needed, got {type(target).__name__}")
    if of_torch(target, example_inputs):
        # Only here, as nobody without PyTorch can import these.
        from voxax.check import torch_check

        report = torch_check.check(target, example_inputs, also)
        verified = torch_check.verify if verify else None
    else:
        for inputs in (example_inputs, *also):
            refuse(inputs)
        report = check(target, example_inputs, also)
        verified = _verify if verify else None
    return (
        report if verified is None else dataclasses.replace(report, verification=verified(report))
    )


def of_torch(target: Any, inputs: Sequence[Any]) -> bool:
    """Whether a target is PyTorch's: a module of it, or a function that is given its tensors.

    PyTorch is not imported for that: where nobody has, there is nothing of it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    if isinstance(target, torch.nn.Module):
        return True
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(tuple(inputs)))
