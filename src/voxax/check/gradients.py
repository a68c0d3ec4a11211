"""Do two functions have the same gradients, at a few inputs?

The gradient is that of ``sum(y + y * y / 2)`` over all outputs of floating point: zeros around an
output, as a mask gives them in place of a slice, add nothing to it. It is taken with respect to all
inputs of floating point and the parameters of a module, and compared where the old one is finite.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax.geometry.model_step import pure_call

# Of the largest entry: sums are in another order, and twice as many of them.
TOLERANCE = 1e-4

NO_REVERSE = "it has no gradient in reverse mode any more (jax.grad); forward mode (jax.jvp) agrees"


def compare(
    old: Callable[..., Any], new: Callable[..., Any], given: Sequence[Any]
) -> tuple[str, str]:
    """Compare the gradients of two functions.

    Args:
      old, new: the functions, or modules of PyTorch or nnx. They are not changed.
      given: the inputs.

    Returns:
      ``(why they are not the same, what else to know)``, each empty where there is nothing. Where
      ``old`` has no gradient there is nothing to compare.
    """
    leaves = jax.tree.leaves(list(given))
    if not all(np.isfinite(_plain(v)).all() for v in leaves if _is_float(v)):
        return "", ""
    if any(_is_tensor(leaf) for leaf in leaves):
        expected = _tried(_of_torch, old, given)
        if isinstance(expected, Exception):
            return "", ""
        found = _tried(_of_torch, new, given)
        if isinstance(found, Exception):
            return f"its gradient raises {_named(found)}", ""
        return _unequal(expected, found), ""
    expected, found = _tried(_reverse, old, given), None
    if not isinstance(expected, Exception):
        found = _tried(_reverse, new, given)
        if not isinstance(found, Exception):
            return _unequal(expected, found), "" if _compiles(new, given) else NO_REVERSE
    first, second = _tried(_forward, old, given), _tried(_forward, new, given)
    if isinstance(first, Exception):
        return "", ""
    if isinstance(second, Exception):
        return f"its gradient raises {_named(found or second)}", ""
    return _unequal(first, second), NO_REVERSE if found is not None else ""


def _tried(gradient: Callable[..., Any], function: Any, given: Sequence[Any]) -> Any:
    try:
        return gradient(function, given)
    except Exception as error:  # what the function does on these decides
        return error


def _named(error: Exception) -> str:
    text = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {text}"


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "detach") and hasattr(value, "requires_grad_")


def _is_float(value: Any) -> bool:
    if _is_tensor(value):
        return value.is_floating_point()
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating)


def _plain(value: Any) -> np.ndarray:
    if _is_tensor(value):
        return value.detach().cpu().double().numpy()
    return np.asarray(value, np.float64)


def _of_torch(function: Any, given: Sequence[Any]) -> list[np.ndarray]:
    torch: Any = sys.modules["torch"]
    function = copy.deepcopy(function) if isinstance(function, torch.nn.Module) else function
    roots: list[Any] = []

    def own(value: Any) -> Any:
        if not (_is_tensor(value) and value.is_floating_point()):
            return value.clone() if _is_tensor(value) else copy.deepcopy(value)
        roots.append(value.detach().clone().requires_grad_())
        return roots[-1].clone()  # into which the function may write

    torch.manual_seed(0)  # both draw the same
    with torch.enable_grad():
        out = function(*jax.tree.map(own, list(given)))
        of = [v for v in jax.tree.leaves(out) if _is_tensor(v) and v.requires_grad]
        loss = sum((v + v * v / 2).sum().double() for v in of if v.is_floating_point())
        if isinstance(function, torch.nn.Module):
            roots += [p for p in function.parameters() if p.requires_grad]
        if not (_is_tensor(loss) and roots):
            return [np.zeros(tuple(v.shape)) for v in roots]
        found = torch.autograd.grad(loss, roots, allow_unused=True)
    return [
        np.zeros(tuple(root.shape)) if part is None else _plain(part)
        for root, part in zip(roots, found, strict=True)
    ]


def _loss(function: Any, given: Sequence[Any]) -> tuple[Callable[..., Any], list[Any]]:
    """A number that depends on the parameters and inputs of floating point, and these."""
    call, state = pure_call(function)
    leaves, structure = jax.tree.flatten((state, list(given)))
    positions = [i for i, leaf in enumerate(leaves) if _is_float(leaf)]

    def loss(chosen: list[Any]) -> Any:
        values = list(leaves)
        for position, value in zip(positions, chosen, strict=True):
            values[position] = value
        own, inputs = jax.tree.unflatten(structure, values)
        out = [v for v in jax.tree.leaves(call(own, *inputs)) if _is_float(v)]
        total = jnp.zeros((), jnp.float32)
        for value in out:
            total += jnp.sum(value + value * value / 2).astype(jnp.float32)
        return total

    return loss, [jnp.asarray(leaves[i]) for i in positions]


def _reverse(function: Any, given: Sequence[Any]) -> list[np.ndarray]:
    loss, chosen = _loss(function, given)
    return [_plain(v) for v in jax.grad(loss)(chosen)]


def _compiles(function: Any, given: Sequence[Any]) -> bool:
    """Whether the gradient can be traced as well, where counts of loops are not known."""
    leaves, structure = jax.tree.flatten(list(given))
    free = [i for i, v in enumerate(leaves) if isinstance(v, int | float) or hasattr(v, "dtype")]

    def traced(*values: Any) -> Any:
        own = list(leaves)
        for i, value in zip(free, values, strict=True):
            own[i] = value
        loss, chosen = _loss(function, jax.tree.unflatten(structure, own))
        return jax.grad(loss)(chosen)

    try:
        jax.jit(traced).trace(*(leaves[i] for i in free))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        return True  # something else in it cannot be traced: nothing is known
    except Exception:
        return False
    return True


def _forward(function: Any, given: Sequence[Any]) -> list[np.ndarray]:
    loss, chosen = _loss(function, given)
    rng = np.random.default_rng(0)
    along = [jnp.asarray(rng.normal(size=v.shape), v.dtype) for v in chosen]
    return [_plain(jax.jvp(loss, (chosen,), (along,))[1])]


def _unequal(expected: list[np.ndarray], found: list[np.ndarray]) -> str:
    for a, b in zip(expected, found, strict=True):
        known = np.isfinite(a)
        scale = max(1.0, float(np.abs(a[known]).max(initial=0)))
        if not np.isfinite(b[known]).all():
            return "its gradient is NaN or infinite where that of the source is not"
        if not np.allclose(a[known], b[known], rtol=TOLERANCE, atol=TOLERANCE * scale):
            return "its gradients differ"
    return ""
