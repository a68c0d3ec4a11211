"""Public functions with their annotations checked; run in a process of its own."""

import inspect

import beartype
import jax
import jaxtyping
import numpy as np

import voxax as vx
from public_calls import CALLS, MODULES, arrays, namespace
from voxax.models import training

NAMES = {"Array": jax.Array} | {
    kind: getattr(jaxtyping, kind)
    for kind in ["Bool", "Float", "Float32", "Float64", "Int", "Int32", "Num", "Real", "Shaped"]
}


def checked(function):
    """The function itself, without what is around it; its annotations hold, or it raises."""
    inner = inspect.unwrap(function)
    scope = {**inner.__globals__, **NAMES}
    inner.__annotations__ = {
        name: eval(text, scope) if isinstance(text, str) else text
        for name, text in inspect.get_annotations(inner).items()
    }
    return jaxtyping.jaxtyped(inner, typechecker=beartype.beartype)


def annotated(function):
    return any("[Array" in str(a) for a in inspect.get_annotations(function).values())


def check_functions():
    """Every call of the table as jit traces it, and some eagerly."""
    number = 0
    for module in (*MODULES.values(), training):
        for name, value in list(vars(module).items()):
            inner = inspect.unwrap(value) if callable(value) else None
            if inspect.isfunction(inner) and annotated(inner):
                setattr(module, name, checked(value))
                number += 1
    assert number > 30, number
    tree = arrays()
    for name, call in CALLS.items():
        if name != "on the host":
            jax.eval_shape(lambda t, call=call: call(namespace(t)), tree)
    for name in ("vx.voxelize", "vx.prune", "vx.splat", "F.spatially_sparse_conv", "D.corners"):
        CALLS[name](namespace(tree))


def check_refusals():
    """What annotations are for: swapped axes and dtypes are told."""
    a = namespace(arrays())
    wrong = {
        "a transposed mask": lambda: checked(vx.prune)(a.v, a.v.features > 0),
        "a weight without channels": lambda: checked(MODULES["F"].spatially_sparse_conv)(
            a.v, a.weight[0]
        ),
        "positions of integers": lambda: checked(vx.voxelize)(np.zeros((3, 3), int), None, 0.5),
    }
    for name, call in wrong.items():
        try:
            call()
        except jaxtyping.TypeCheckError:
            continue
        raise AssertionError(f"{name} passes")


def check_transformations():
    """Annotations hold for tracers of grad and vmap, and for NumPy where it is taken."""
    a, F = namespace(arrays()), MODULES["F"]
    conv, iou = checked(F.spatially_sparse_conv), checked(MODULES["D"].bev_iou)
    jax.grad(lambda w: conv(a.v, w).features.sum())(a.weight)
    jax.vmap(iou)(np.stack([a.boxes] * 2), np.stack([a.moved] * 2))
    positions = np.asarray(a.positions, np.float64)
    checked(vx.voxelize)(positions, np.asarray(a.features), 0.5)
