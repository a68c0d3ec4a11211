"""Do two functions compute the same, as far as a few inputs show?"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from voxax.check import gradients

TRIALS = 8
# Of which gradients are compared: the example and zeros.
_DIFFERENTIATED = (0, 6)
# As far as two orders of the same sum differ in single precision.
TOLERANCE = 1e-5
# Of this thread's computing in one call: a loop of the target may never end for inputs of ours.
SECONDS = 20.0


class _TooLong(BaseException):
    """A call takes longer than it may."""


def compare(
    old: Callable[..., Any],
    new: Callable[..., Any],
    inputs: Sequence[Any],
    file: str,
    pads: bool = False,
    differentiated: Sequence[int] = _DIFFERENTIATED,
) -> tuple[int, str, str]:
    """Call both on inputs in the shapes and near the values of an example.

    Outputs have to have the same structure, shapes and dtypes, and equal values to 1e-5 of the
    largest; tensors of PyTorch that are written into have to be equal afterwards too, and so has
    the state of its modules. Gradients have to be equal on some of the inputs, where ``old`` has
    any that are finite.

    Args:
      old, new: the functions; modules of PyTorch should be copies, as their state changes.
      inputs: the example.
      file: the source that both come from: a loop in it that does not end is cut short.
      pads: of a slice, ``new`` returns the whole, with zeros for what is not in the slice.
      differentiated: on which of the inputs gradients are compared: 0 is the example, 6 zeros.

    Returns:
      ``(how many inputs both were called on, why they are not the same, what to know about the
      gradients)``; the reason is empty where they are.
    """
    compared, seconds, note = 0, SECONDS, ""
    for trial in range(TRIALS):
        given = _varied(inputs, trial)
        begin = time.thread_time()
        try:
            expected = _called(old, given, seconds, file)
        except (_TooLong, Exception) as error:  # these inputs are not for it
            if trial == 0 and isinstance(error, _TooLong):
                return 0, f"the target takes longer than {SECONDS:g} s", ""
            with_state(new, old)  # of which the call may have changed some
            continue
        # Of which the first call compiled.
        seconds = min(seconds, max(2.0, 4 * (time.thread_time() - begin)))
        try:
            found = _called(new, given, SECONDS, file)
        except _TooLong:
            return compared, f"it takes longer than {SECONDS:g} s", ""
        except Exception as error:
            return compared, f"it raises {type(error).__name__}: {error}", ""
        reason = _unequal(expected[0], found[0], pads)
        if not reason and _unequal(expected[1:], found[1:], False):
            reason = "it leaves other values in an argument or in the module"
        if not reason and trial in differentiated:
            try:
                with _repeatable(), _limited(SECONDS, file):
                    reason, told = gradients.compare(old, new, given)
            except _TooLong:
                told = "its gradients were not compared: that takes too long"
            note = note or told
        if reason:
            return compared, reason, ""
        compared += 1
    return compared, "" if compared else "the target accepts none of the random inputs", note


def with_state(new: Any, old: Any) -> Any:
    """``new`` with the parameters of ``old``: a module is made with random ones."""
    if isinstance(new, type) and not isinstance(old, type):
        new = new()
    if hasattr(old, "state_dict") and hasattr(new, "load_state_dict"):
        new.load_state_dict(old.state_dict())
        new.train(old.training)
    elif type(old).__module__ != "builtins" and hasattr(type(old), "__nnx_repr__"):
        from flax import nnx

        nnx.update(new, nnx.state(old))
    return new


def _called(
    function: Callable[..., Any], given: Sequence[Any], seconds: float, file: str
) -> tuple[Any, Any, Any]:
    """What a function returns for copies of inputs, what it left in them, and in itself."""
    with _repeatable(), _limited(seconds, file):
        own = copy.deepcopy(list(given))
        try:
            result = function(*own)
        except TypeError:
            # It assigns into arrays: those of JAX refuse.
            own = jax.tree.map(lambda v: np.array(v) if isinstance(v, jax.Array) else v, own)
            result = function(*own)
    written = [v for v in jax.tree.leaves(own) if _is_tensor(v)]
    state = function.state_dict() if hasattr(function, "state_dict") else {}  # type: ignore[attr-defined]
    return result, written, {k: v.clone() for k, v in state.items() if _is_tensor(v)}


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """The same random numbers of PyTorch in every call, and no warnings about our inputs."""
    torch = sys.modules.get("torch")
    with contextlib.ExitStack() as stack:
        stack.enter_context(np.errstate(all="ignore"))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if torch is not None and hasattr(torch, "random"):
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(0)
        yield


@contextlib.contextmanager
def _limited(seconds: float, file: str) -> Iterator[None]:
    """Raise :class:`_TooLong` in Python code that computes longer.

    Looked at in every call, and in ``file`` at every line. What is compiled is not cut short.
    """
    name, end, before = os.path.basename(file), time.thread_time() + seconds, sys.gettrace()

    def watch(frame: Any, event: str, argument: Any) -> Any:
        del event, argument
        if time.thread_time() > end:
            raise _TooLong
        return watch if os.path.basename(frame.f_code.co_filename) == name else None

    sys.settrace(watch)
    try:
        yield
    finally:
        sys.settrace(before)


def _varied(inputs: Sequence[Any], trial: int) -> list[Any]:
    rng = np.random.default_rng(trial)
    return jax.tree.map(lambda value: _vary(value, trial, rng), list(inputs))


def _vary(value: Any, trial: int, rng: np.random.Generator) -> Any:
    """Near the example: other values in arrays, zeros, not a number; small and negative numbers."""
    if trial == 0 or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) + (0, 1, 2, -1, -value, -value - 1, -2, 0)[trial % 8]
    if isinstance(value, float):
        return float(value) * (1.0, 0.5, 1.3, 0.1, 0.0, -0.5, -1.0, 1.0)[trial % 8]
    if _is_tensor(value):
        plain = value.detach().cpu()
        plain = plain.float() if plain.is_floating_point() and plain.itemsize < 4 else plain
        other = _vary(plain.numpy(), trial, rng)
        return value.detach().new_tensor(other).requires_grad_(value.requires_grad)
    if not hasattr(value, "dtype") or not hasattr(value, "shape"):
        return value
    if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.extended):
        return value  # a random key
    kind = np.dtype(value.dtype).kind if value.dtype != jax.dtypes.bfloat16 else "f"
    if value.shape == () and kind in "iuf":
        number = _vary(float(value) if kind == "f" else int(value), trial, rng)
        drawn = abs(number) if kind == "u" else number
    elif kind == "f":
        drawn = _floats(np.asarray(value, np.float64), trial, rng)
    elif kind in "iu" and value.size:
        # Of its own range: they may be indices.
        own = np.asarray(value)
        drawn = rng.integers(own.min(), own.max(), own.shape, own.dtype, endpoint=True)
    elif kind == "b":
        drawn = rng.random(value.shape) < (0.5, 0.5, 0.2, 0.8, 0.5, 0.5, 0.0, 1.0)[trial % 8]
    else:
        return value
    if isinstance(value, jax.Array):
        return jax.numpy.asarray(drawn, value.dtype)
    return np.asarray(drawn, value.dtype)


def _floats(value: np.ndarray, trial: int, rng: np.random.Generator) -> np.ndarray:
    if trial == 6:
        return np.zeros(value.shape)
    scale = float(np.abs(value).max(initial=0)) or 1.0
    drawn = rng.normal(size=value.shape) * scale + (trial % 3 - 1) * scale
    if trial == 7 and drawn.size > 1:
        drawn.reshape(-1)[drawn.size // 2] = np.nan
    return drawn


def _unequal(expected: Any, found: Any, pads: bool) -> str:
    one, structure = jax.tree.flatten(expected)
    two, other = jax.tree.flatten(found)
    if structure != other:
        return "it returns something of another structure"
    for a, b in zip(one, two, strict=True):
        # Python's numbers and NumPy's arrays are arrays of the library afterwards.
        exact = (_is_tensor(a) or isinstance(a, jax.Array)) and hasattr(b, "dtype")
        if exact and a.dtype != b.dtype:
            return f"it returns {b.dtype} in place of {a.dtype}"
        a, b = _as_numpy(a), _as_numpy(b)
        if a.dtype.kind != b.dtype.kind:
            return f"it returns {b.dtype} in place of {a.dtype}"
        if a.shape != b.shape:
            cut = _cut(a, b) if pads else None
            if cut is None:
                zeros = ", and not the same with zeros around it" if pads else ""
                return f"it returns shape {b.shape} in place of {a.shape}{zeros}"
            b = cut
        scale = max(1.0, float(np.abs(a[np.isfinite(a)]).max(initial=0))) if a.size else 1.0
        if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True):
            return "its outputs differ"
    return ""


def _cut(slice: np.ndarray, padded: np.ndarray) -> np.ndarray | None:
    """The part of an array of which the slice is one; None if the rest of it is not zero."""
    if slice.ndim != padded.ndim or slice.shape[1:] != padded.shape[1:]:
        return None
    for start in range(len(padded) - len(slice) + 1):
        part = padded[start : start + len(slice)]
        rest = np.delete(padded, np.s_[start : start + len(slice)], axis=0)
        same = np.allclose(part, slice, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
        if same and not rest.any():
            return part
    return None


def _is_tensor(value: Any) -> bool:
    """Whether it is a tensor of PyTorch, which may not be imported."""
    return hasattr(value, "detach") and hasattr(value, "requires_grad_")


def _as_numpy(value: Any) -> np.ndarray:
    if _is_tensor(value):
        value = value.detach().cpu()
        narrow = value.is_floating_point() and value.itemsize < 4  # of which NumPy lacks some
        return (value.float() if narrow else value).numpy()
    array = np.asarray(value)
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)
