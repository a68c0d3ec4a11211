"""Calls of public functions whose annotations jaxtyping and beartype check.

``test_array_types`` runs them where jaxtyping stands in place of ``voxax._array_types``.
"""

import inspect
import sys
import typing

import beartype
import jax
import jaxtyping
import numpy as np

import voxax as vx
from public_calls import CALLS, MODULES, arrays, namespace
from voxax.models import training
from voxax.nn.functional import normalization

# beartype looks into the protocol that bounds the type of its voxels.
typing.runtime_checkable(normalization.FeatureRows)


def checked(function):
    """The function, without what is around it, and an error where an annotation does not hold."""
    return jaxtyping.jaxtyped(inspect.unwrap(function), typechecker=beartype.beartype)


def has_shapes(function):
    hints = inspect.get_annotations(inspect.unwrap(function))
    return any("Array" in str(hint) for hint in hints.values())


def check_functions():
    """Every call of the table as jit traces it, and some eagerly."""
    number = 0
    for module in (*MODULES.values(), training):
        for name in getattr(module, "__all__", list(vars(module))):
            value = getattr(module, name)
            if inspect.isfunction(inspect.unwrap(value)) and has_shapes(value):
                setattr(module, name, checked(value))
                number += 1
    assert number > 50, number
    make, from_coords, from_dense = (
        checked(f.__func__) for f in (vx.Points.make, vx.Voxels.from_coords, vx.Voxels.from_dense)
    )
    vx.Points.make, vx.Voxels.from_coords = classmethod(make), classmethod(from_coords)
    vx.Voxels.from_dense = classmethod(from_dense)
    tree = arrays()
    wrong = {}
    for name, call in CALLS.items():
        if name == "on the host":
            continue
        try:
            jax.eval_shape(lambda t, call=call: call(namespace(t)), tree)
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {str(error)[:800]}"
    assert not wrong, "\n".join(f"{name}: {why}" for name, why in wrong.items())
    for name in ("vx.voxelize", "vx.prune", "vx.splat", "F.spatially_sparse_conv", "D.corners"):
        CALLS[name](namespace(tree))


def check_refusals():
    """A swapped axis and another dtype are errors."""
    a, F = namespace(arrays()), MODULES["F"]
    wrong = {
        "a mask with channels": lambda: checked(vx.prune)(a.v, a.v.features > 0),
        "a weight without channels": lambda: checked(F.spatially_sparse_conv)(a.v, a.weight[0]),
        "positions of integers": lambda: checked(vx.voxelize)(np.zeros((3, 3), int), None, 0.5),
        "features of other rows": lambda: checked(vx.splat)(a.positions, a.features[1:], a.v),
    }
    for name, call in wrong.items():
        try:
            call()
        except jaxtyping.TypeCheckError:
            continue
        raise AssertionError(f"{name} passes")


def check_results():
    """Fields, properties and methods without arguments of what functions return."""
    a = namespace(arrays())
    found, order = vx.radius_search(a.p, radius=1.0, capacity=32), vx.curve_order(a.v)
    selected = MODULES["D"].nms(a.boxes, a.box_scores, iou_threshold=0.3, max_selected=4)
    number = 0
    for value in (a.v, a.v.geometry, a.p, found, order, selected):
        scope = vars(sys.modules[type(value).__module__])
        for name, text in inspect.get_annotations(type(value)).items():
            text = getattr(text, "__forward_arg__", text)  # a named tuple's
            if "[Array" in text:
                assert isinstance(getattr(value, name), eval(text, scope)), (name, text)
                number += 1
        for member in vars(type(value)).values():
            method = getattr(member, "fget", member)
            if inspect.isfunction(method) and has_shapes(method):
                given = list(inspect.signature(method).parameters.values())[1:]
                if all(p.default is not p.empty for p in given):
                    checked(method)(value)
                    number += 1
    assert number > 20, number


def check_transformations():
    """Annotations hold for tracers of grad and vmap, and for NumPy where it is taken."""
    a, F = namespace(arrays()), MODULES["F"]
    conv, iou = checked(F.spatially_sparse_conv), checked(MODULES["D"].bev_iou)
    jax.grad(lambda w: conv(a.v, w).features.sum())(a.weight)
    jax.vmap(iou)(np.stack([a.boxes] * 2), np.stack([a.moved] * 2))
    positions = np.asarray(a.positions, np.float64)
    checked(vx.voxelize)(positions, np.asarray(a.features), 0.5)
    checked(vx.voxelize_on_host)(positions, np.asarray(a.features), 0.5)
