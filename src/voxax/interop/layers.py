"""The layers of a module that have a counterpart in other libraries, with their arrays by role."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

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
class Layer:
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


def find_layers(model: nnx.Module) -> list[Layer]:
    """Every convolution, linear layer and normalisation of ``model``, in order of definition.

    A layer that is shared comes once, at the first path that leads to it.

    Raises:
      InputError: a parameter or statistic that belongs to none of these.
    """
    return list(_walk(model, (), set()))


def _walk(node: Any, path: tuple[str, ...], seen: set[int]) -> Iterator[Layer]:
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


def _layer(node: Any, path: str) -> Layer | None:
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
    return Layer(path, kind, arrays, spec, is_cross, groups, _is_as_constructed(holder))


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
