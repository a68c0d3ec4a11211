"""Describe how another library (a "peer") stores the layers of a model in a state dict.

:class:`LayerWeights` has the arrays of one layer by role (weight, bias, mean, var). A :class:`Form`
has the name and the shape of one array in a peer, and functions that convert the array. A tap is a
kernel offset.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import KernelSpec
from voxax.nn.modules import (
    BatchNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LayerScale,
    Linear,
    RelativeTable,
    RMSNorm,
    SpatiallySparseConv,
    SpatiallySparseDepthwiseConv,
)

Role = Literal["weight", "bias", "mean", "var"]
Offsets = tuple[tuple[int, ...], ...]
"""Offsets of a kernel's taps, in the order in which a library stores the taps."""
Axes = Sequence[int] | Literal["reversed"] | None
"""The peer's spatial axis for each axis of the model; None is the same order."""

_NORMS = (BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm, nnx.BatchNorm)
# The attribute for each role, in the order of PyTorch's state dicts.
_CONV_ROLES: dict[Role, str] = {"weight": "weight", "bias": "bias"}
_LINEAR_ROLES: dict[Role, str] = {"weight": "kernel", "bias": "bias"}
_NORM_ROLES: dict[Role, str] = {"weight": "scale", "bias": "bias", "mean": "mean", "var": "var"}
_SCALE_ROLES: dict[Role, str] = {"weight": "scale"}
_MEMBERS: dict[Role, str] = {"mean": "running_mean", "var": "running_var"}  # others: the role


@dataclasses.dataclass(frozen=True)
class LayerWeights:
    """One layer of a model with its arrays.

    Attributes:
      path: path of attributes in the model, such as ``down_blocks.0.1.first.conv``.
      kind: kind of the layer. ``conv`` and ``depthwise`` are sparse convolutions; ``dense`` and
        ``dense_transposed`` are flax's convolutions on full grids. ``scale`` is a
        ``LayerScale`` and ``table`` a ``RelativeTable`` of :mod:`voxax.nn.modules`.
      arrays: the variables that the layer has, by role, such as ``weight``.
      spec: the kernel spec of a convolution; None for other layers.
      is_cross: whether the layer is a convolution with ``kernel_shape="cross"``.
      groups: number of groups of a convolution; 1 for other layers.
      in_order: whether the layer's attributes are in the order in which its constructor set them.
        If not, ``nnx`` or ``jax.tree`` rebuilt the model, and the order of its layers may differ.
    """

    path: str
    kind: Literal[
        "conv", "depthwise", "linear", "norm", "scale", "table", "dense", "dense_transposed"
    ]
    arrays: dict[Role, nnx.Variable]
    spec: KernelSpec | None
    is_cross: bool
    groups: int
    in_order: bool

    @property
    def is_product(self) -> bool:
        """Whether the layer multiplies each row by one matrix: one tap at offset 0, no stride."""
        spec = self.spec
        return self.kind == "linear" or (
            self.kind == "conv"
            and self.groups == 1
            and spec is not None
            and spec.offsets == ((0,) * spec.ndim,)
            and all(s == 1 for s in spec.stride)
        )

    @property
    def convolution(self) -> KernelSpec:
        """The kernel spec of this layer, which must be a convolution."""
        assert self.spec is not None
        return self.spec

    def shape(self, role: Role) -> tuple[int, ...]:
        return tuple(self.arrays[role][...].shape)

    def __str__(self) -> str:
        shapes = ", ".join(f"{role} {self.shape(role)}" for role in self.arrays)
        return f"{self.path!r} ({self.kind}: {shapes})"


def find_layers(model: nnx.Module) -> list[LayerWeights]:
    """Return the convolutions, linear layers and norms of ``model``, in the order of definition.

    Also included are ``RelativeTable`` and ``LayerScale`` of :mod:`voxax.nn.modules`, and flax's
    linear layers, batch norms and convolutions on full grids. A layer with several paths in
    ``model`` is listed once, with the first path.

    Raises:
      InputError: a parameter or statistic of ``model`` belongs to none of these layers.
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
                "convolutions, Linear and normalizations do. Convert those parts of the model "
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
    elif isinstance(node, LayerScale):
        kind, roles, holder = "scale", _SCALE_ROLES, node
    elif isinstance(node, RelativeTable):
        kind, roles, holder = "table", _CONV_ROLES, node
    elif isinstance(node, nnx.Conv | nnx.ConvTranspose):
        kind = "dense" if isinstance(node, nnx.Conv) else "dense_transposed"
        roles, holder = _LINEAR_ROLES, node
    else:
        return None
    arrays: dict[Role, nnx.Variable] = {}
    for role, name in roles.items():
        if (value := getattr(holder, name, None)) is not None:
            arrays[role] = value
    return LayerWeights(path, kind, arrays, spec, is_cross, groups, _is_as_constructed(holder))


def _is_as_constructed(holder: nnx.Module) -> bool:
    """Return whether the module's attributes are in the order in which its constructor set them.

    Otherwise ``nnx`` or ``jax.tree`` rebuilt the module, with attributes sorted by name. The result
    is True unless the names of the public attributes that are not arrays are sorted: no layer's
    constructor sets these attributes in sorted order.
    """
    names = [
        name
        for name, value in vars(holder).items()
        if not (name.startswith("_") or isinstance(value, nnx.Variable))
    ]
    return names != sorted(names)


@dataclasses.dataclass(frozen=True)
class Form:
    """One way in which a peer stores an array of a layer.

    Attributes:
      member: the last part of the tensor's name in the peer, such as ``weight``.
      shape: shape of the peer's tensor.
      read: function from the peer's tensor to the array in the layout of voxax.
      write: inverse of ``read``, from the array in voxax to the peer's tensor.
    """

    member: str
    shape: tuple[int, ...]
    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Peer:
    """Base class of descriptions of how another library (the peer) stores layers in state dicts.

    Attributes:
      axes: the peer's spatial axis for each axis of the model; None is the same order,
        ``"reversed"`` the opposite order for layers of any number of axes.
      pointwise: regular expression of the paths of linear layers that are written as convolutions
        of kernel size 1; None matches no layer. Reading accepts tensors of either form in any case.
    """

    axes: Axes = None
    pointwise: str | None = None

    name: ClassVar[str]
    wrappers: ClassVar[Mapping[str, str]] = {}
    """Names of inner modules in which the library keeps PyTorch's own layers, by kind."""
    grouped: ClassVar[bool] = False
    """Whether the library has grouped convolutions."""
    depthwise: ClassVar[bool] = True
    """Whether the library has depthwise convolutions."""

    def others(self) -> tuple[Peer, ...]:
        """Return one description for each version of the library with another layout of weights."""
        return ()

    def is_pointwise(self, layer: LayerWeights) -> bool:
        """Return whether ``layer`` is a linear layer whose path matches ``pointwise``.

        The peer writes such a layer as a convolution of kernel size 1.
        """
        paths = self.pointwise
        return paths is not None and layer.kind == "linear" and bool(re.search(paths, layer.path))

    def wrapper_of(self, layer: LayerWeights) -> str:
        """Return the name of the peer's inner module that has the tensors of ``layer``.

        Return the empty string if the peer has no inner module for such a layer.
        """
        return self.wrappers.get(layer.kind, "")

    def forms(self, layer: LayerWeights) -> dict[Role, list[Form]]:
        """Return, by role, the ways in which the peer may store each array of ``layer``.

        A tensor in any of these ways can be read. By default, the first way is used to write.

        Raises:
          InputError: the peer does not have such a layer.
        """
        found: dict[Role, list[Form]] = {}
        for role in layer.arrays:  # shape [C] or [1, C]
            member, own = _MEMBERS.get(role, role), layer.shape(role)
            found[role] = [reshaped(member, shape, own) for shape in (own, (1, *own))]
        if layer.kind == "depthwise" and not self.depthwise:
            raise InputError(
                f"{layer}: {self.name} has no depthwise convolution; use SpatiallySparseConv, or "
                "leave the layer out"
            )
        if layer.kind in ("dense", "dense_transposed"):
            found["weight"] = [self._dense_form(layer)]
        elif layer.kind == "scale":  # PyTorch has no such layer; the name is that of Sonata
            found["weight"] = [reshaped("gamma", layer.shape("weight"), layer.shape("weight"))]
        elif layer.kind == "table":  # the name and the shape are those of Pointcept
            axes, offsets, heads = own = layer.shape("weight")
            found["weight"] = [reshaped("rpe_table", (axes * offsets, heads), own)]
        elif layer.kind != "norm":
            found["weight"] = self.weight_forms(layer)
        if self.is_pointwise(layer):
            matrix, *kernels = found["weight"]
            found["weight"] = [*kernels, matrix]
        return found

    def weight_forms(self, layer: LayerWeights) -> list[Form]:
        """Return the ways in which the peer may store the weight of a convolution or linear layer.

        The first way is the default for writing. For a linear layer, it must be PyTorch's matrix
        ``[out, in]``.
        """
        raise NotImplementedError

    def peer_offsets(self, layer: LayerWeights) -> np.ndarray:
        """Return the offsets ``int[K, D]`` of a layer's taps, with the axes in the peer's order.

        Raises:
          InputError: ``axes`` is not a permutation of ``0`` to ``ndim - 1``.
        """
        spec = layer.convolution
        return np.asarray(spec.offsets)[:, np.argsort(self._peer_axes(spec.ndim))]

    def _peer_axes(self, ndim: int) -> tuple[int, ...]:
        """Return for each of the model's ``ndim`` spatial axes its index in the other library."""
        if self.axes == "reversed":
            return tuple(reversed(range(ndim)))
        given = tuple(range(ndim)) if self.axes is None else tuple(self.axes)
        if sorted(given) != list(range(ndim)):
            raise InputError(
                f"axes={given} must name each of the {ndim} spatial axes once: the peer's "
                f"axis for each axis of the model, {tuple(reversed(range(ndim)))} where one "
                "has x, y, z and the other z, y, x"
            )
        return given

    def _dense_form(self, layer: LayerWeights) -> Form:
        """Return how PyTorch stores the weight ``[*k, in, out]`` of a flax convolution on a grid.

        PyTorch's shape is ``[out, in, *k]``. For a transposed convolution it is ``[in, out, *k]``,
        with the kernel offsets in the opposite order along each axis.
        """
        own = layer.shape("weight")
        ndim = len(own) - 2
        taps = [int(axis) for axis in np.argsort(self._peer_axes(ndim))]  # in the peer's order
        mirrored = layer.kind == "dense_transposed"
        order = [ndim, ndim + 1, *taps] if mirrored else [ndim + 1, ndim, *taps]

        def flipped(x: np.ndarray) -> np.ndarray:
            return np.flip(x, tuple(range(ndim))) if mirrored else x

        return Form(
            "weight",
            tuple(own[axis] for axis in order),
            lambda x: flipped(x.transpose(np.argsort(order))),
            lambda x: flipped(x).transpose(order),
        )

    def other_reach(
        self,
        layer: LayerWeights,
        offsets: np.ndarray,
        make: Callable[..., Offsets],
        note: str = "",
    ) -> InputError:
        """Return the error to raise for a layer whose kernel offsets no kernel of the peer has.

        Args:
          layer: the convolution.
          offsets: ``int[K, D]``, offsets of the layer's taps, with the axes in the peer's order.
          make: function from a kernel size and ``ndim`` to the offsets of the peer's taps. The
            message tells the user to call it.
          note: further text on the peer's kernels, for the message.
        """
        size = (np.ptp(offsets, axis=0) + 1).tolist()
        theirs = np.asarray(make(size, ndim=len(size)))
        # The layer's kernel size is in the model's order of axes.
        ours = (np.ptp(layer.convolution.offsets, axis=0) + 1).tolist()
        arguments = f"{ours}" if len(ours) == 3 else f"{ours}, ndim={len(ours)}"
        return InputError(
            f"{layer} has {len(offsets)} taps at {named_ranges(offsets)}: a box of size {size} in "
            f"{self.name} has {len(theirs)} at {named_ranges(theirs)}{note}. Build the layer with "
            f"kernel_shape={make.__name__}({arguments})"
        )


def reshaped(member: str, shape: tuple[int, ...], own: tuple[int, ...]) -> Form:
    """Return the :class:`Form` of an array of shape ``own`` in voxax and ``shape`` in the peer.

    Both arrays have the same elements in the same (row-major) order. ``member`` is the last part of
    the name of the peer's tensor.
    """
    return Form(member, shape, lambda x: x.reshape(own), lambda x: x.reshape(shape))


def linear_form(own: tuple[int, ...]) -> Form:
    """Return the :class:`Form` of a linear layer's weight as in PyTorch, a matrix ``[out, in]``.

    ``own`` is the weight's shape in voxax: ``[in, out]``, or ``[1, in, out]`` for a convolution
    with one tap.
    """
    matrix = own[-2:]
    return Form(
        "weight",
        matrix[::-1],
        lambda x: x.transpose().reshape(own),
        lambda x: x.reshape(matrix).transpose(),
    )


def reordered(member: str, layer: LayerWeights, order: np.ndarray) -> Form:
    """Return the :class:`Form` of a convolution weight whose taps the peer has in another order.

    Args:
      member: the last part of the tensor's name in the peer.
      layer: the convolution; the peer's weight has the same shape.
      order: ``int[K]``, index of the layer's tap for each tap of the peer.
    """
    back = np.argsort(order)
    return Form(member, layer.shape("weight"), lambda x: x[back], lambda x: x[order])


def paddings(padding: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    """Return a padding, one integer or one per axis, as a tuple with one integer for each axis.

    Raises:
      InputError: the number of paddings is wrong, or a padding is negative.
    """
    low = (padding,) * ndim if isinstance(padding, int) else tuple(padding)
    if len(low) != ndim or min(low) < 0:
        raise InputError(f"padding={padding} must be at least 0 along each of the {ndim} axes")
    return low


def ranges_by_parity(size: Sequence[int]) -> list[range]:
    """Return the range of kernel offsets on each axis, for the kernel sizes in ``size``.

    An odd size k has the range ``-(k // 2)`` to ``k // 2``, and an even size has 0 to ``k - 1``.
    """
    return [range(k) if k % 2 == 0 else range(-(k // 2), k // 2 + 1) for k in size]


def first_axis_fastest(ranges: Sequence[Sequence[int]]) -> Offsets:
    """Return all kernel offsets of a box, sorted so that the first axis varies fastest.

    ``ranges`` has the offsets along each axis.
    """
    # product() has its last factor fastest.
    return tuple(taps[::-1] for taps in itertools.product(*ranges[::-1]))


def grid_size(offsets: np.ndarray) -> tuple[int, ...] | None:
    """Return the number of distinct values on each axis of offsets ``int[K, D]``.

    Return None unless the offsets are all combinations of these values.
    """
    size = [len(set(column)) for column in offsets.T.tolist()]
    return tuple(size) if np.prod(size) == len(offsets) else None


def grid_steps(offsets: np.ndarray) -> tuple[int, ...] | None:
    """Return the spacing on each axis of the distinct values in offsets ``int[K, D]``.

    The spacing is 1 on an axis with a single value. Return None if it differs within an axis.
    """
    steps = [set(np.diff(np.unique(column)).tolist()) for column in offsets.T]
    return tuple(next(iter(s), 1) for s in steps) if all(len(s) < 2 for s in steps) else None


def places_of(offsets: np.ndarray, wanted: np.ndarray) -> np.ndarray | None:
    """Return ``int[K]``: for each row of ``wanted``, the index of the equal row of ``offsets``.

    Both arguments are kernel offsets ``int[K, D]``. Return None if their sets of rows differ.
    """
    number = {tuple(row): i for i, row in enumerate(offsets.tolist())}
    rows = [tuple(row) for row in wanted.tolist()]
    return np.asarray([number[r] for r in rows]) if set(rows) == set(number) else None


def named_ranges(offsets: np.ndarray) -> str:
    """Return the ranges of offsets ``int[K, D]`` on each axis as text, such as ``-1..1 x 0..1``."""
    ends = zip(offsets.min(0), offsets.max(0), strict=True)
    return " x ".join(f"{low}..{high}" for low, high in ends)
