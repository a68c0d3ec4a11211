"""How another library (a "peer") stores the layers of a model.

:class:`LayerWeights` are the arrays of one layer here by role. A :class:`Form` says under which
name, in which shape and in which order of taps a peer stores one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.nn.modules import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    Linear,
    RMSNorm,
    SpatiallySparseConv,
    SpatiallySparseDepthwiseConv,
)

Role = Literal["weight", "bias", "mean", "var"]

_NORMS = (BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm)
# Roles by the attributes that hold them, in the order of PyTorch's state dicts.
_CONV_ROLES: dict[Role, str] = {"weight": "weight", "bias": "bias"}
_LINEAR_ROLES: dict[Role, str] = {"weight": "kernel", "bias": "bias"}
_NORM_ROLES: dict[Role, str] = {"weight": "scale", "bias": "bias", "mean": "mean", "var": "var"}


@dataclasses.dataclass(frozen=True)
class LayerWeights:
    """One layer of a model.

    Attributes:
      path: its attribute path in the model, ``down_blocks.0.1.first.conv``.
      kind: what it computes.
      arrays: its variables by role, those that it has.
      spec: the relation of a convolution; None for others.
      is_cross: a convolution with ``kernel_shape="cross"``.
      groups: of a convolution; 1 for others.
      in_order: its attributes are in the order in which its constructor made them.
    """

    path: str
    kind: Literal["conv", "depthwise", "linear", "norm"]
    arrays: dict[Role, nnx.Variable]
    spec: KernelSpec | None
    is_cross: bool
    groups: int
    in_order: bool

    @property
    def is_product(self) -> bool:
        """One tap at offset 0 and no stride: the product of each row with a matrix."""
        spec = self.spec
        return self.kind == "linear" or (
            self.kind == "conv"
            and self.groups == 1
            and spec is not None
            and spec.offsets == ((0,) * spec.ndim,)
            and all(s == 1 for s in spec.stride)
        )

    def shape(self, role: Role) -> tuple[int, ...]:
        return tuple(self.arrays[role][...].shape)

    def __str__(self) -> str:
        shapes = ", ".join(f"{role} {self.shape(role)}" for role in self.arrays)
        return f"{self.path!r} ({self.kind}: {shapes})"


def find_layers(model: nnx.Module) -> list[LayerWeights]:
    """Every convolution, linear layer and normalisation of ``model``, in order of definition.

    A layer that is shared comes once, at the first path that leads to it.

    Raises:
      InputError: a parameter or statistic that belongs to none of these.
    """
    return list(_walk(model, (), set()))


def _walk(node: Any, path: tuple[str, ...], seen: set[int]) -> Iterator[LayerWeights]:
    if id(node) in seen:
        return
    seen.add(id(node))
    layer = _layer(node, ".".join(path))
    if layer is not None:
        yield layer
        return
    for name, child in vars(node).items():
        if isinstance(child, nnx.Param | nnx.BatchStat):
            raise InputError(
                f"{'.'.join((*path, name))!r} is a {type(child).__name__} of "
                f"{type(node).__name__}, which has no counterpart to convert to: only "
                "convolutions, Linear and normalisations do. Convert those parts of the model "
                "one by one, and this by hand"
            )
        if isinstance(child, nnx.Pytree):
            yield from _walk(child, (*path, name), seen)


def _layer(node: Any, path: str) -> LayerWeights | None:
    spec, is_cross, groups = None, False, 1
    if isinstance(node, SpatiallySparseConv | SpatiallySparseDepthwiseConv):
        kind = "depthwise" if isinstance(node, SpatiallySparseDepthwiseConv) else "conv"
        spec = KernelSpec.make(node.ndim, **node.relation)
        is_cross = node.relation["kernel_shape"] == "cross"
        roles, holder = _CONV_ROLES, node
        groups = node.options.get("groups", 1)
    elif isinstance(node, Linear | nnx.Linear):
        kind, roles = "linear", _LINEAR_ROLES
        holder = node.linear if isinstance(node, Linear) else node
    elif isinstance(node, _NORMS):
        kind, roles, holder = "norm", _NORM_ROLES, node
    else:
        return None
    arrays: dict[Role, nnx.Variable] = {}
    for role, name in roles.items():
        if (value := getattr(holder, name, None)) is not None:
            arrays[role] = value
    return LayerWeights(path, kind, arrays, spec, is_cross, groups, _is_as_constructed(holder))


def _is_as_constructed(holder: nnx.Module) -> bool:
    """nnx and jax.tree rebuild a module, and all below it, with its attributes sorted by name;
    jax.tree puts arrays first. No layer's constructor makes those that are no arrays in that order.
    """
    names = [
        name
        for name, value in vars(holder).items()
        if not (name.startswith("_") or isinstance(value, nnx.Variable))
    ]
    return names != sorted(names)


@dataclasses.dataclass(frozen=True)
class Form:
    """One way to store an array.

    Attributes:
      member: the last part of the tensor's name.
      shape: of the peer's tensor.
      read: from the peer's tensor to this library's array.
      write: the inverse.
    """

    member: str
    shape: tuple[int, ...]
    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


class Peer(Protocol):
    """What a library's state dicts look like."""

    @property
    def name(self) -> str: ...

    @property
    def wrappers(self) -> tuple[str, ...]:
        """Names of inner modules in which this library keeps PyTorch's own layers."""
        ...

    @property
    def grouped(self) -> bool:
        """Whether this library has grouped convolutions."""
        ...

    def wrapper_of(self, layer: LayerWeights) -> str:
        """The inner module that holds this layer's tensors, or the empty string."""
        ...

    def forms(self, layer: LayerWeights) -> dict[Role, list[Form]]:
        """The ways to store each array of a layer; the first is the one to write unless told.

        Raises:
          InputError: the peer has no such layer.
        """
        ...


def reshaped(member: str, shape: tuple[int, ...], own: tuple[int, ...]) -> Form:
    """The same numbers in the same order."""
    return Form(member, shape, lambda x: x.reshape(own), lambda x: x.reshape(shape))


def linear_form(own: tuple[int, ...]) -> Form:
    """PyTorch's linear layer: ``[out, in]`` for our ``[in, out]`` or ``[1, in, out]``."""
    matrix = own[-2:]
    return Form(
        "weight",
        matrix[::-1],
        lambda x: x.transpose().reshape(own),
        lambda x: x.reshape(matrix).transpose(),
    )


def vector_forms(layer: LayerWeights, role: Role, *, as_row: bool = False) -> list[Form]:
    """One number for each channel: ``[C]`` or ``[1, C]``; ``as_row`` puts the latter first."""
    own = layer.shape(role)
    shapes = [own, (1, *own)]
    return [reshaped(_MEMBERS[role], shape, own) for shape in shapes[:: -1 if as_row else 1]]


_MEMBERS: dict[Role, str] = {
    "weight": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def check_axes(axes: Sequence[int] | None, ndim: int) -> tuple[int, ...]:
    """The peer's axis for each of our axes; None is the same order.

    Raises:
      InputError: not a permutation of ``0`` to ``ndim - 1``.
    """
    given = tuple(range(ndim)) if axes is None else tuple(axes)
    if sorted(given) != list(range(ndim)):
        raise InputError(
            f"axes={given} must name each of the {ndim} spatial axes once: the peer's axis for "
            f"each axis of the model, {tuple(reversed(range(ndim)))} where one has x, y, z and "
            "the other z, y, x"
        )
    return given


def peer_offsets(spec: KernelSpec, axes: tuple[int, ...]) -> np.ndarray:
    """``int[K, D]``: our offsets, in our tap order, with the axes in the peer's order."""
    return np.asarray(spec.offsets)[:, np.argsort(axes)]


def grid_size(offsets: np.ndarray) -> tuple[int, ...] | None:
    """Distinct offsets along each axis, where they are all of a grid's; None where some lack."""
    size = [len(set(column)) for column in offsets.T.tolist()]
    return tuple(size) if np.prod(size) == len(offsets) else None


def grid_steps(offsets: np.ndarray) -> tuple[int, ...] | None:
    """Distance of neighbouring offsets along each axis, 1 along an axis with one offset only;
    None where distances along an axis differ."""
    steps = [set(np.diff(np.unique(column)).tolist()) for column in offsets.T]
    return tuple(next(iter(s), 1) for s in steps) if all(len(s) < 2 for s in steps) else None


def last_axis_fastest(offsets: np.ndarray) -> np.ndarray:
    """``int[K]``: at place i, the number of the tap that is i-th in lexicographic order."""
    return np.lexsort(offsets.T[::-1])


def places_of(offsets: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """``int[K]``: at place i, the number of the tap with offset ``wanted[i]``; None unless both
    are the same set."""
    number = {tuple(row): i for i, row in enumerate(offsets.tolist())}
    rows = [tuple(row) for row in wanted.tolist()]
    return np.asarray([number[r] for r in rows]) if set(rows) == set(number) else None


def named_ranges(offsets: np.ndarray) -> str:
    """``-1..1 x 0..1``, for messages."""
    ends = zip(offsets.min(0), offsets.max(0), strict=True)
    return " x ".join(f"{low}..{high}" for low, high in ends)
