"""Apply layers one after the other, and fuse normalization with the layers around it.

A normalization and the activation after it run as one operator. Inference on GPUs also fuses the
convolution before them. Only unmodified classes of the library are fused. A subclass or a replaced
``__call__`` is called as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import Points, Voxels
from voxax.geometry.eager import known_on_cpu
from voxax.hardware import target_platform
from voxax.nn.arguments import by_product
from voxax.nn.functional.batch_norm import conv_norm
from voxax.nn.modules.constructor import Module
from voxax.nn.modules.norm import BatchNorm
from voxax.nn.modules.pointwise import RELU, ReLU
from voxax.nn.modules.sparse_convs import SpatiallySparseConv

_CONV_CALL = SpatiallySparseConv.__call__
_CALLS = {BatchNorm: BatchNorm.__call__, ReLU: ReLU.__call__}


def _fuses(norm: Any, act: Any) -> bool:
    own = all(
        type(layer) is kind and kind.__call__ is call
        for layer, (kind, call) in zip((norm, act), _CALLS.items(), strict=True)
    )
    return own and act.fn == RELU


def norm_act(norm: Any, act: Any, voxels: Any, shortcut: Voxels | None = None) -> Any:
    """Return ``act(norm(voxels) + shortcut)``, or ``act(norm(voxels))`` without ``shortcut``.

    Args:
      norm, act: a normalization and an activation layer.
      voxels: the input of ``norm``.
      shortcut: voxels on the same coordinates, or None.

    Raises:
      GeometryMismatchError: ``shortcut`` has other coordinates.
    """
    if _fuses(norm, act):
        if shortcut is None and isinstance(voxels, Voxels | Points):
            return norm(voxels, relu=True)
        if shortcut is not None and _adds_to(shortcut, voxels):
            return norm(voxels, residual=shortcut.features, relu=True)
    normed = norm(voxels)
    return act(normed if shortcut is None else normed + shortcut)


def conv_norm_act(
    conv: Any,
    norm: Any,
    act: Any,
    voxels: Any,
    *given: Any,
    shortcut: Callable[[], Voxels] | None = None,
    **options: Any,
) -> Any:
    """Return ``act(norm(conv(voxels)) + shortcut())``, fused in inference on GPUs.

    Args:
      conv, norm, act: a convolution, a normalization and an activation layer.
      voxels, given, options: arguments of ``conv``.
      shortcut: function that returns voxels on the coordinates of the result of ``conv``, or None.

    Raises:
      GeometryMismatchError: ``shortcut`` has other coordinates.
    """
    if _is_one_product(conv, norm, act, voxels):
        added = None if shortcut is None else shortcut()
        made = _in_one(conv, norm, added, *conv.call_arguments(voxels, *given, **options))
        if made is not None:
            return made
        shortcut = None if added is None else lambda: added
    made = conv(voxels, *given, **options)
    return norm_act(norm, act, made, None if shortcut is None else shortcut())


def _is_one_product(conv: Any, norm: Any, act: Any, voxels: Any) -> bool:
    return (
        target_platform() == "gpu"
        and _is_plain_conv(conv)
        and _fuses(norm, act)
        and norm.use_running_average
        and norm.num_features == conv.out_channels
        and isinstance(voxels, Voxels)
        and not known_on_cpu(voxels.features)
    )


def _is_plain_conv(conv: Any) -> bool:
    kind = type(conv)
    own = isinstance(conv, SpatiallySparseConv) and kind.__call__ is _CONV_CALL
    return own and kind.FUNCTION is SpatiallySparseConv.FUNCTION


def _in_one(
    conv: SpatiallySparseConv,
    norm: BatchNorm,
    residual: Voxels | None,
    voxels: Voxels,
    weight: jax.Array,
    given: dict[str, Any],
) -> Voxels | None:
    statistics = norm.mean[...], norm.var[...], norm.scale[...], norm.bias[...]
    options = dict(conv.options)
    own = {name: options.pop(name) for name in ("groups", "precision")}
    with jax.named_scope(type(conv).__name__):
        return conv_norm(
            voxels, weight, statistics, epsilon=norm.epsilon, relu=True, residual=residual,
            requests=by_product(**options), **own, **given,
        )  # fmt: skip


def _adds_to(shortcut: Voxels, voxels: Any) -> bool:
    """Return whether both arguments have the same coordinates, feature shape and dtype."""
    if not isinstance(voxels, Voxels) or shortcut.geometry is not voxels.geometry:
        return False
    a, b = shortcut.features, voxels.features
    return a.shape == b.shape and a.dtype == b.dtype


class Sequential(Module):
    """Apply modules (or any callables on Voxels) one after the other.

    Args:
      *layers: the layers, in the order in which they run.

    Examples:
      >>> conv = modules.SubMConv3d(4, 8, use_bias=False, rngs=nnx.Rngs(0))
      >>> block = modules.Sequential(conv, modules.BatchNorm(8), modules.ReLU())
      >>> block(voxels).num_channels
      8
    """

    def __init__(self, *layers: Callable[..., Any]) -> None:
        for place, layer in enumerate(layers):
            name = getattr(layer, "__name__", type(layer).__name__)
            if isinstance(layer, list | tuple | None):
                raise InputError(
                    f"layer {place} is a {name}: give layers one by one, Sequential(*layers)"
                )
            if isinstance(layer, type):
                raise InputError(f"layer {place} is the class {name}: give a layer, {name}(...)")
        self.layers = nnx.List(list(layers))

    def __call__(self, voxels: Any) -> Any:
        layers, place = list(self.layers), 0
        while place < len(layers):
            if hasattr(voxels, "features"):
                _refuse_array_layer(place, layers[place])
            pair, three = layers[place : place + 2], layers[place : place + 3]
            if len(three) == 3 and _is_plain_conv(three[0]) and _fuses(*three[1:]):
                voxels, place = conv_norm_act(*three, voxels), place + 3
            elif len(pair) == 2 and _fuses(*pair) and isinstance(voxels, Voxels | Points):
                voxels, place = pair[0](voxels, relu=True), place + 2
            else:
                voxels, place = layers[place](voxels), place + 1
        return voxels


def _refuse_array_layer(place: int, layer: Any) -> None:
    """Raise :class:`InputError` if ``layer`` is a flax layer or JAX function, which take arrays.

    ``place`` is the index of the layer, for the message.
    """
    module = isinstance(layer, nnx.Module) and type(layer).__module__.startswith("flax.")
    module = module and type(layer) is not nnx.Sequential  # it may have layers that take Voxels
    function = not isinstance(layer, nnx.Module) and _module_of(layer).startswith("jax.")
    if module or function:
        name = type(layer).__name__ if module else getattr(layer, "__name__", "fn")
        raise InputError(
            f"layer {place}, {'nnx.' if module else 'jax.'}{name}, takes arrays, not Voxels: give "
            f"a layer of voxax.nn.modules, or lambda v: v.map({name.lower()})"
        )


def _module_of(function: Any) -> str:
    """Return the module in which a function was defined, looking through ``functools.wraps``."""
    while not inspect.isfunction(function) and hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    if inspect.isfunction(function):
        return function.__globals__["__name__"]
    return str(getattr(function, "__module__", None))
