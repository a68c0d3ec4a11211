"""Voxels of tensors, and plans: kernel maps built ahead of a model's call."""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from torch.utils import _pytree

import voxax as vx
from voxax.coords import PAD
from voxax.errors import GeometryMismatchError, InputError
from voxax.geometry.losses import Losses
from voxax.torch.bridge import check_tensor, to_jax, to_torch
from voxax.torch.geometry import KernelMap, Link, VoxelGeometry, recording
from voxax.torch.integers import whole, wholes


@dataclasses.dataclass(eq=False, repr=False)
class Voxels:
    """A sparse tensor: one feature row per voxel; :class:`voxax.Voxels` of tensors.

    Attributes:
      geometry: which voxels exist.
      features: ``[capacity, C]``; padding rows are zero, and never read.
      voxel_size, origin: as in :class:`voxax.Voxels`.
    """

    geometry: VoxelGeometry
    features: torch.Tensor
    voxel_size: tuple[float, ...] = ()
    origin: tuple[float, ...] = ()

    @staticmethod
    def from_coords(
        coords: torch.Tensor | np.ndarray,
        features: torch.Tensor,
        batch_size: int = 1,
        *,
        capacity: int | None = None,
        stride: int | Sequence[int] = 1,
    ) -> Voxels:
        """Make voxels from integer coordinates in any order; features of duplicates are averaged.

        Args:
          coords: ``int[N, 1 + D]``: batch index, then D coordinates, negative allowed.
          features: ``[N, C]``; gradients flow back to them.
          batch_size, capacity, stride: as in :meth:`voxax.Voxels.from_coords`.

        Raises:
          InputError, CapacityError: as there.
        """
        check_tensor(features, "features")
        batch_size, stride = whole("batch_size", batch_size), wholes("stride", stride)
        capacity = None if capacity is None else whole("capacity", capacity)
        rows = jnp.asarray(np.asarray(coords))
        empty = jnp.zeros((rows.shape[0], 1), jnp.float32)
        made, inverse = vx.Voxels.from_coords(
            rows, empty, batch_size, capacity=capacity, stride=stride, return_inverse=True
        )
        if features.shape[0] != rows.shape[0]:
            raise InputError(f"{features.shape[0]} rows of features, {rows.shape[0]} of coords")
        return _scattered(made, to_torch(inverse), features)

    @staticmethod
    def from_jax(voxels: vx.Voxels) -> Voxels:
        """Return tensors, features on the same memory, which take no part in JAX's derivatives."""
        voxels.raise_if_overflowed()
        geometry = voxels.geometry
        # A copy: coordinates of JAX never change, and maps of them are remembered.
        coords = to_torch(jnp.asarray(geometry.coords)).clone()
        made = VoxelGeometry(coords, geometry.stride, geometry.batch_size)
        features = to_torch(jnp.asarray(voxels.features))
        return Voxels(made, features, voxels.voxel_size, tuple(voxels.origin))

    def to_jax(self) -> vx.Voxels:
        """Return JAX arrays, features on the same memory, which take no part in autograd."""
        coords = to_jax(self.coords.clone())
        count = jnp.sum(coords[:, 0] != int(PAD), dtype=jnp.int32)
        drops = Losses.of({self.stride: jnp.zeros((), jnp.int32)})
        geometry = vx.VoxelGeometry(coords, count, drops, None, self.stride, self.batch_size)
        return vx.Voxels(geometry, to_jax(self.features), self.voxel_size, self.origin)

    @property
    def coords(self) -> torch.Tensor:
        """``int32[capacity, 1 + D]``: batch index, then lattice coordinates at this stride."""
        return self.geometry.coords

    @property
    def capacity(self) -> int:
        """Static number of rows."""
        return self.geometry.capacity

    @property
    def count(self) -> torch.Tensor:
        """``int64[]``: number of valid rows."""
        return self.geometry.count

    @property
    def stride(self) -> tuple[int, ...]:
        """Total stride relative to the original voxels."""
        return self.geometry.stride

    @property
    def batch_size(self) -> int:
        """Number of scenes."""
        return self.geometry.batch_size

    @property
    def num_channels(self) -> int:
        """Number of features of a voxel, C."""
        return self.features.shape[1]

    @property
    def valid(self) -> torch.Tensor:
        """``bool[capacity]``: True for rows that are voxels."""
        return self.geometry.valid

    def valid_coords(self) -> torch.Tensor:
        """``int32[count, 1 + D]``, padding removed."""
        return self.coords[self.valid]

    def valid_features(self) -> torch.Tensor:
        """``[count, C]``, padding removed."""
        return self.features[self.valid]

    def on(self, geometry: VoxelGeometry, features: torch.Tensor) -> Voxels:
        """Return other voxels and features with this voxel size and origin."""
        return Voxels(geometry, features, self.voxel_size, self.origin)

    def replace_features(self, features: torch.Tensor) -> Voxels:
        """Return the voxels with other features ``[capacity, C']``; padding rows are zeroed.

        Raises:
          InputError: ``features`` has another number of rows than the capacity.
        """
        if features.dim() != 2 or features.shape[0] != self.capacity:
            raise InputError(
                f"features of shape {tuple(features.shape)} for voxels of capacity "
                f"{self.capacity}: expected [{self.capacity}, C]"
            )
        return self.on(self.geometry, _cleared(features, self.valid))

    def map(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> Voxels:
        """Apply ``fn`` to the features ``[capacity, C]``; padding stays zero."""
        # Cleared before as well: a zero gradient times garbage would reach the weights in fn.
        valid = self.valid
        return self.on(self.geometry, _cleared(fn(_cleared(self.features, valid)), valid))

    def __add__(self, other: Voxels) -> Voxels:
        if not isinstance(other, Voxels):
            return NotImplemented
        require_same_geometry(self, other, "a + b")
        for operand in (self, other):
            check_tensor(operand.features, "features")
        return self.replace_features(self.features + other.features)

    def __repr__(self) -> str:
        return (
            f"Voxels({self.features.dtype}[{self.capacity}, {self.num_channels}], stride "
            f"{self.stride}, batch_size {self.batch_size})"
        )


def cat(voxels: Sequence[Voxels]) -> Voxels:
    """Concatenate channels of voxels on one geometry.

    Raises:
      InputError: an empty list.
      GeometryMismatchError: the coordinates differ.
    """
    if not voxels:
        raise InputError("cat needs at least one Voxels, got none")
    for other in voxels[1:]:
        require_same_geometry(voxels[0], other, "cat")
    features = torch.cat([v.features for v in voxels], dim=1)
    return voxels[0].on(voxels[0].geometry, features)


def voxelize(
    positions: torch.Tensor | np.ndarray, features: torch.Tensor, voxel_size: Any, **options: Any
) -> Voxels:
    """Turn points into voxels; features in one voxel are averaged, with gradients.

    Args:
      positions: ``float[N, D]``.
      features: ``[N, C]``.
      voxel_size: edge length, a number or one per axis.
      options: ``batch_index``, ``capacity`` and others of :func:`voxax.voxelize`, but
        ``reduction`` and ``return_inverse``.

    Raises:
      InputError, CapacityError: as there.
    """
    check_tensor(features, "features")
    if refused := {"reduction", "return_inverse"} & set(options):
        raise InputError(f"{refused.pop()}= is not supported by voxax.torch, which takes the mean")
    for name in {"capacity", "batch_size"} & options.keys():
        options[name] = None if options[name] is None else whole(name, options[name])
    points = np.asarray(positions)
    if features.shape[0] != points.shape[0]:
        raise InputError(f"{features.shape[0]} rows of features, {points.shape[0]} positions")
    empty = jnp.zeros((points.shape[0], 1), jnp.float32)
    made, inverse = vx.voxelize(points, empty, voxel_size, return_inverse=True, **options)
    return _scattered(made, to_torch(inverse), features)


def require_same_geometry(a: Voxels, b: Voxels, operation: str) -> None:
    """Raise :class:`GeometryMismatchError` unless both operands hold the same voxels."""
    if not a.geometry.same_as(b.geometry):
        raise GeometryMismatchError(
            f"{operation} needs voxels on the same coordinates, got {a!r} and {b!r}: pass the "
            "voxels of the one as out_voxels= where the other is made"
        )


def _cleared(features: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    return torch.where(valid[:, None], features, 0)


def _scattered(made: vx.Voxels, inverse: torch.Tensor, features: torch.Tensor) -> Voxels:
    """Return means of the rows that share a voxel, summed in at least float32."""
    wide = torch.promote_types(features.dtype, torch.float32)
    kept = inverse >= 0
    rows = inverse[kept].long()
    total = features.new_zeros((made.capacity, features.shape[1]), dtype=wide)
    total = total.index_add(0, rows, features[kept].to(wide))
    number = torch.bincount(rows, minlength=made.capacity).clamp(min=1)
    mean = (total / number[:, None].to(wide)).to(features.dtype)
    geometry = VoxelGeometry(to_torch(made.coords), made.stride, made.batch_size)
    return Voxels(geometry, mean, made.voxel_size, tuple(made.origin))


# torch.export and torch.func take voxels apart. The maps that lead to given voxels stay behind:
# they belong to two sets.


def _take_geometry(geometry: VoxelGeometry) -> tuple[list[Any], Any]:
    links = [link for link in geometry.links if not link.given and link.is_current]
    children: list[Any] = [geometry.coords]
    described = []
    for link in links:
        names = sorted(link.kernel_map.views)
        back = [] if link.adjoint is None else sorted(link.adjoint.views)
        children += [link.out, [link.kernel_map.views[name] for name in names]]
        children += [[] if link.adjoint is None else [link.adjoint.views[n] for n in back]]
        adjoint = None if link.adjoint is None else link.adjoint.spec
        described.append(
            [link.key, link.kernel_map.spec, link.kernel_map.same, names, adjoint, back]
        )
    return children, [list(geometry.stride), geometry.batch_size, described]


def _make_geometry(children: Any, context: Any) -> VoxelGeometry:
    coords, *rest = children
    stride, batch_size, described = context
    made = VoxelGeometry(coords, tuple(stride), batch_size)
    for index, (key, spec, same, names, adjoint, back) in enumerate(described):
        out, views, back_views = rest[3 * index : 3 * index + 3]
        by_name = dict(zip(names, views, strict=True))
        kernel_map = KernelMap(spec, same, coords.shape[0], by_name)
        reverse = None
        if adjoint is not None:
            rows = by_name["neighbors"].shape[0]
            reverse = KernelMap(adjoint, same, rows, dict(zip(back, back_views, strict=True)))
        ends = coords, coords if out is None else out.coords
        made.links.append(Link(key, out, ends, False, kernel_map, reverse, planned=True))
    return made


def _take_voxels(voxels: Voxels) -> tuple[list[Any], Any]:
    return [voxels.geometry, voxels.features], [list(voxels.voxel_size), list(voxels.origin)]


def _make_voxels(children: Any, context: Any) -> Voxels:
    geometry, features = children
    voxel_size, origin = context
    return Voxels(geometry, features, tuple(voxel_size), tuple(origin))


def _register(kind: type, take: Any, make: Any) -> None:
    def take_with_keys(value: Any) -> tuple[list[Any], Any]:
        children, context = take(value)
        return [(_pytree.SequenceKey(i), child) for i, child in enumerate(children)], context

    _pytree.register_pytree_node(
        kind,
        take,
        make,
        serialized_type_name=f"voxax.torch.{kind.__name__}",
        to_dumpable_context=json.dumps,
        from_dumpable_context=json.loads,
        flatten_with_keys_fn=take_with_keys,
    )


_register(VoxelGeometry, _take_geometry, _make_geometry)
_register(Voxels, _take_voxels, _make_voxels)
# torch.export.load reads example inputs with weights_only=True.
torch.serialization.add_safe_globals([Voxels, VoxelGeometry, Link, KernelMap])


def plan(model: Callable[[Voxels], Any], voxels: Voxels) -> Voxels:
    """Return the voxels with every kernel map that ``model(voxels)`` will ask for attached.

    Strided levels get capacities of their own, bucketed from the number of their voxels. The model
    runs once, without its products; neither its statistics nor the random state change.

    Args:
      model: a module, or any callable on Voxels.
      voxels: of the cloud to plan for.

    Raises:
      InputError, CapacityError: as the layers of the model.
    """
    fresh = VoxelGeometry(voxels.coords, voxels.stride, voxels.batch_size)
    planned = voxels.on(fresh, voxels.features)
    with torch.no_grad(), torch.random.fork_rng(devices=[]), recording():
        if isinstance(model, torch.nn.Module):
            buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
            torch.func.functional_call(model, buffers, (planned,))
        else:
            model(planned)
    return planned
