"""``voxax check`` reports whether a function or module compiles to one static program."""

from __future__ import annotations

import ast
import contextlib
import math
import re
import sys
import traceback
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from voxax.cli.python_target import as_input_error, attribute, load_module
from voxax.errors import InputError

_ARRAY = re.compile(r"(?P<dtype>[a-z]+[0-9]*)\[(?P<shape>[0-9, ]*)\]")
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<input>.*)", re.DOTALL)
_DTYPES = {"f": "float", "i": "int", "u": "uint", "bf": "bfloat", "c": "complex"}


def check(
    target: Annotated[str, tyro.conf.Positional],
    inputs: tuple[str, ...] = (),
    also: tyro.conf.UseAppendAction[tuple[tuple[str, ...], ...]] = (),
    verify: bool = False,
    format: Literal["text", "json", "sarif", "github"] = "text",
    fail_on: Literal["error", "warning", "note"] = "error",
    seconds: float = 60.0,
) -> int:
    """Check that a function or a module compiles to one static program.

    The target is a JAX function, a flax.nnx module or a PyTorch module.

    Exit status: 1 if there are findings of the severity --fail-on or worse, or --verify
    contradicts the verdict; 2 if the file, its import or an input fails; 3 if the checker fails;
    otherwise 0.

    Args:
      target: what to check, as FILE.py:NAME or package.module:NAME. The file is imported.
      inputs: one example for each argument: an array such as f32[4,8], i32[] or bool[3]; a Python
          value such as 0.5, True or '"mean"'; or @NAME for an object of the file: a value, or a
          function that returns the tuple of all inputs. NAME=INPUT gives an argument by name.
          Arrays are tensors if the target is a PyTorch module, or a function in a file that
          imports torch and not jax.
      also: inputs of a further example, by position or with names; may be given several times.
      verify: compile for five inputs of equal shape, and count the programs.
      format: text, json, SARIF 2.1.0, or workflow commands of GitHub.
      fail_on: the lowest severity for which the exit status is 1.
      seconds: time limit of the search for findings; it also ends endless loops.
    """
    from voxax.check import check_static, static_report

    # What the file prints must not stand in the middle of a report for machines.
    machine = format != "text"
    with contextlib.redirect_stdout(sys.stderr) if machine else contextlib.nullcontext():
        module, name = load_module(target, "what to check")
        found = _target(attribute(module, name, "what to check"))
        torch = _of_torch(found, module)
        (given, named), *rest = [_inputs(tokens, module, torch) for tokens in (inputs, *also)]
        examples = [_example(found, *other) for other in rest]
        try:
            report = check_static(
                found, *given, kwargs=named, also=examples, verify=verify, seconds=seconds
            )
        except (InputError, MemoryError):
            raise
        except Exception as error:
            traceback.print_exception(error)
            print("voxax: this is a mistake of the checker; please report it", file=sys.stderr)
            return 3
    if format == "text":
        _show(report)
    else:
        print(getattr(static_report, f"as_{format}")([report]))
    return int(report.fails(fail_on))


def _target(found: Any) -> Any:
    """Return the object to check: ``found()`` for a class of PyTorch modules, otherwise `found`.

    `found` is the object that the user named on the command line.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(found, type) or not issubclass(found, torch.nn.Module):
        return found
    with as_input_error(f"{found.__name__}()"):
        return found()


def _of_torch(found: Any, module: Any) -> bool:
    """Return True if the array inputs of `found` should be PyTorch tensors, False for JAX arrays.

    `found` is the object to check, and `module` is the Python module that contains it. The result
    is True for a PyTorch module, and if `module` imports torch but neither jax nor flax.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "nn"):
        return False
    if isinstance(found, torch.nn.Module):
        return True
    names = [v.__name__ for v in vars(module).values() if isinstance(v, type(sys))]
    roots = {name.split(".")[0] for name in names}
    return "torch" in roots and not roots & {"jax", "flax"}


def _show(report: Any) -> None:
    from rich.console import Console
    from rich.text import Text

    from voxax.check.static_report import styled

    console = Console(highlight=False, soft_wrap=True)
    for text, style in styled(report):
        console.print(Text(text, style=style))


def _inputs(
    tokens: tuple[str, ...], module: Any, torch: bool
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return ``(positional, by name)``, the inputs that tokens such as ``f32[4,8]`` describe.

    A token ``@NAME`` stands for an object of `module`, or for the result of calling it if it is a
    function. A token ``NAME=INPUT`` gives an input by name. Arrays are PyTorch tensors if `torch`
    is True.
    """
    values: list[Any] = []
    named: dict[str, Any] = {}
    for token in tokens:
        if match := _NAMED.fullmatch(token):
            if match["name"] in named:
                raise InputError(f"the input {match['name']!r} is given twice")
            named[match["name"]] = _value(match["input"], module, torch)
        elif token.startswith("@"):
            found = _value(token, module, torch)
            values += found if isinstance(found, tuple) else [found]
        else:
            values.append(_value(token, module, torch))
    return tuple(values), named


def _example(target: Any, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the inputs of one example for ``check_static``: a tuple, or a dict by argument name.

    If `named` is empty, the result is the tuple `values`. Otherwise it is a dict of all inputs, in
    which the `values` have the names of the first parameters of `target`.
    """
    from voxax.check.inputs import forward_of, parameters

    if not named:
        return values
    names = parameters(forward_of(target))
    if len(values) > len(names):
        raise InputError("--also: an example with names cannot give the arguments of `*args`")
    return {**dict(zip(names, values, strict=False)), **named}


def _value(token: str, module: Any, torch: bool) -> Any:
    if token.startswith("@"):
        found = attribute(module, token[1:], token)
        with as_input_error(f"calling {token}"):
            return found() if callable(found) else found
    if match := _ARRAY.fullmatch(token):
        return _array(token, match["dtype"], match["shape"], torch)
    try:
        return ast.literal_eval(token)
    except (ValueError, SyntaxError):
        raise InputError(
            f"an input is an array such as f32[4,8], a Python value, or @NAME; got {token!r}"
        ) from None


def _array(token: str, name: str, shape: str, torch: bool) -> Any:
    import jax.numpy as jnp

    from voxax.hardware.cpu import check_host_memory

    try:
        dtype = jnp.dtype(_long_name(name))
    except TypeError:
        raise InputError(f"{token!r}: {name} is no dtype; f32, bf16, i32, bool are") from None
    sizes = tuple(int(size) for size in shape.split(",") if size.strip())
    # NumPy draws 64-bit numbers, which are converted to the dtype.
    size = math.prod(sizes) * (8 + dtype.itemsize)
    check_host_memory(f"the input {token}", size, "a smaller shape checks the same program")
    rng = np.random.default_rng(0)
    drawn = (
        rng.normal(size=sizes) if jnp.issubdtype(dtype, jnp.inexact) else rng.integers(0, 2, sizes)
    )
    return _tensor(drawn, name) if torch else jnp.asarray(drawn, dtype)


def _long_name(name: str) -> str:
    """Return the full name of a dtype, such as ``float32`` for ``f32``; ``bool`` is unchanged."""
    letters = name.rstrip("0123456789")
    return _DTYPES.get(letters, letters) + name[len(letters) :]


def _tensor(drawn: Any, name: str) -> Any:
    """Return the NumPy array `drawn` as a PyTorch tensor of the dtype `name`, such as ``f32``."""
    import torch  # pyright: ignore[reportMissingImports]  (the checked file imported it)

    dtype: Any = getattr(torch, _long_name(name), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"{name} is no dtype of PyTorch; f32, bf16, i64, bool are")
    return torch.tensor(drawn).to(dtype)
