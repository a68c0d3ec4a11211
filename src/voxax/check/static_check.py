"""``check_static``: check whether a function or module of JAX or PyTorch is one static program."""

from __future__ import annotations

import dataclasses
import numbers
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
    """Check whether ``target`` compiles to one static program, and find what prevents it.

    "Compiles" means ``jax.jit`` for a function of JAX or a flax module, and ``torch.export`` and
    then XLA for a module or function of PyTorch.

    ``target`` is traced as by ``jit``. If that fails, ``target`` runs again on tracers that know
    the example values. Every place that needs the value of a traced array is recorded, and the run
    continues with the example's value. Further runs take the other side of each branch. So one call
    returns all findings. The check runs no code of yours except ``target``.

    Args:
      target: a function (also one made by ``jax.jit``, whose static arguments are honored), or a
        flax.nnx module or a ``torch.nn.Module``, whose parameters are traced. It is not changed.
      example_inputs: the positional arguments of ``target``: arrays, pytrees of arrays, and Python
        numbers, which ``jit`` traces unless they are declared static. Any other value is static.
      kwargs: the named arguments of ``target``, with the same kinds of values as
        ``example_inputs``. Default: none.
      also: further examples. An example is a tuple that replaces ``example_inputs``, or a dict of
        the arguments by name that differ from the first example. Shapes, dtypes and structures that
        vary between the examples are findings.
      verify: whether to also compile for five inputs of equal shape and count the programs.
      seconds: time limit of the search for findings, in seconds. It also ends endless loops.

    Returns:
      A report, which you can print. It has a verdict on the target, a verdict on each submodule,
      and the findings: code, file, line, what the value depends on, and what to write instead.

    Raises:
      InputError: the target cannot be called, an example is no tuple or dict, is a shape without a
        value or names an argument that the target does not have, or ``seconds`` is not positive.

    Examples:
      >>> vx.check_static(lambda x: jnp.sum(x), jnp.ones(4)).verdict.value
      'static'
    """
    if not callable(target):
        raise InputError(f"a function or a module is needed, got {type(target).__name__}")
    if not isinstance(seconds, numbers.Real) or not seconds > 0:
        raise InputError(f"seconds is a positive number, got {seconds!r}")
    if not isinstance(also, list | tuple):
        raise InputError(f"also is a list of examples, got {type(also).__name__}: write [example]")
    is_torch = of_torch(target, (example_inputs, kwargs))
    examples = examples_of(forward_of(target), example_inputs, kwargs or {}, also)
    if is_torch:
        # It imports PyTorch, which the caller has.
        from voxax.check import torch_check, torch_verify

        with time_limit.within(seconds):
            report = torch_check.check(target, examples)
        verified = torch_verify.verify
    else:
        for inputs in examples:
            refuse(inputs)
        with time_limit.within(seconds):
            report = check(target, examples)
        verified = _verify
    return dataclasses.replace(report, verification=verified(report)) if verify else report


def of_torch(target: Any, inputs: Any) -> bool:
    """Return True for a PyTorch module, and for a function if its inputs contain tensors.

    Return False if the process has not imported PyTorch. This function does not import it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    if isinstance(target, torch.nn.Module):
        return True
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(inputs))
