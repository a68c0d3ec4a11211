"""A small voxel classifier whose convolutions have one kernel size, or one at every voxel."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax.geometry import KernelMap, Voxels, kernel_map
from voxax.geometry.dtypes import accumulator
from voxax.geometry.nested_sizes import reaching_size, soft_mask
from voxax.nn.modules import BatchNorm, Linear, SparseDynamicConv3d, SubMConv3d


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sized:
    """What :class:`SizedNetwork` returns.

    Attributes:
      logits: voxels with a channel for each class.
      sizes: ``float[depth, capacity]``, the kernel size of each layer at each voxel.
      pairs: ``float[depth]``, pairs of input and output that each layer multiplies; with learned
        sizes it has their gradient.
    """

    logits: Voxels
    sizes: jax.Array
    pairs: jax.Array


class SizedNetwork(nnx.Module):
    """Stem, ``depth`` residual 3-D convolutions on one level, head.

    Args:
      in_channels, out_channels: input features and classes.
      kernel_size: of every layer; with ``learn_size`` the largest.
      learn_size: each layer reads the size at each voxel from its features.
      channels, depth: of the residual layers.
      rngs: None means ``nnx.Rngs(0)``.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        learn_size: bool = False,
        channels: int = 16,
        depth: int = 2,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        rngs = nnx.Rngs(0) if rngs is None else rngs
        self.stem = Linear(in_channels, channels, rngs=rngs)
        self.stem_norm = BatchNorm(channels, rngs=rngs)

        def convolution() -> nnx.Module:
            if learn_size:
                return SparseDynamicConv3d(
                    channels, channels, kernel_size, learn_size=True, use_bias=False, rngs=rngs
                )
            return SubMConv3d(channels, channels, kernel_size, use_bias=False, rngs=rngs)

        self.convs = nnx.List([convolution() for _ in range(depth)])
        self.norms = nnx.List([BatchNorm(channels, rngs=rngs) for _ in range(depth)])
        self.head = Linear(channels, out_channels, rngs=rngs)
        self.kernel_size = kernel_size

    def __call__(self, voxels: Voxels) -> Sized:
        x = self.stem_norm(self.stem(voxels)).map(jax.nn.relu)
        kmap = kernel_map(voxels, self.kernel_size)
        sizes, pairs = [], []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            if isinstance(conv, SparseDynamicConv3d):
                size = conv.sizes(x)
                y = conv(x, size)
            else:
                size = jnp.full(x.capacity, float(self.kernel_size))
                y = conv(x)
            sizes.append(size)
            pairs.append(pairs_within(kmap, size))
            x = (norm(y) + x).map(jax.nn.relu)
        return Sized(self.head(x), jnp.stack(sizes), jnp.stack(pairs))


def pairs_within(kernel_map: KernelMap, size: jax.Array) -> jax.Array:
    """``float[]``, float32 or wider: the pairs that sizes leave of a map, at whole sizes.

    Between them a ramp, so that it has a gradient: half a shell more plus half a shell less.
    Exact at whole sizes up to what the dtype counts, 2**24 in float32.

    Args:
      kernel_map: the relation.
      size: ``float[out_capacity]``; read only where an output has pairs.
    """
    offsets = np.asarray(kernel_map.spec.offsets)
    reach = reaching_size(offsets)
    found = kernel_map.neighbors >= 0
    size = jnp.where(jnp.any(found, axis=1), size, jnp.zeros((), size.dtype))
    size = size.astype(accumulator(size.dtype))
    total = jnp.zeros((), size.dtype)
    for number in np.unique(reach).tolist():
        taps = np.flatnonzero(reach == number)
        shell = jnp.sum(found[:, taps], axis=1).astype(size.dtype)
        total = total + jnp.sum(shell * soft_mask(size, offsets[taps[:1]])[:, 0])
    return total
