"""A class for each scene: an encoder of voxels, or any network of voxels, and a mean over them.

Source of the mean over places: Lin, Chen and Yan, "Network In Network", ICLR 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.models.minkunet import ConvNormAct, ResidualBlock
from voxax.models.minkunet_stages import BLOCKS, PLANES
from voxax.models.training import StepTrainer, check_labels, count_outside, masked_cross_entropy
from voxax.models.voxel_backbone import run_stages
from voxax.nn.functional import global_pool
from voxax.nn.modules import Linear
from voxax.nn.modules.constructor import Module, own_rngs
from voxax.nn.modules.sparse_convs import NetworkOptions


class VoxelEncoder(Module):
    """The way down of MinkUNet, and logits at the voxels of its last level.

    Args:
      in_channels, out_channels: input features and classes.
      blocks: residual blocks of each level.
      channels: of each level.
      stem: channels of the stem.
      rngs: None takes a key that no other layer has.
      **options: of every convolution, as of :class:`voxax.models.MinkUNet`.

    Raises:
      InputError: other numbers of blocks than of channels.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        blocks: Sequence[int] = BLOCKS[34][:4],
        channels: Sequence[int] = PLANES[:4],
        stem: int = 32,
        rngs: nnx.Rngs | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        if len(blocks) != len(channels) or not blocks:
            raise InputError(f"{len(blocks)} blocks and {len(channels)} channels: give as many")
        common: dict[str, Any] = {"rngs": own_rngs(rngs), **options}
        self.stem = ConvNormAct(in_channels, stem, 3, **common)
        levels, width = [], stem
        for number, out in zip(blocks, channels, strict=True):
            layers: list[nnx.Module] = [ConvNormAct(width, width, 2, 2, **common)]
            for _ in range(number):
                layers.append(ResidualBlock(width, out, **common))
                width = out
            levels.append(nnx.List(layers))
        self.levels = nnx.List(levels)
        self.head = Linear(width, out_channels, rngs=common["rngs"])

    def __call__(self, voxels: Voxels) -> Voxels:
        """Return logits at the voxels of the last level."""
        return self.head(run_stages(self.levels, self.stem(voxels), "level")[-1])


class SceneTrainer(StepTrainer):
    """Training of a network that gives each scene a class: the mean of its voxels' logits.

    A step takes ``int32[B]`` as labels, negative for scenes without one. Its prediction is
    ``int32[B]``.

    Args:
      model: a module from Voxels to Voxels of logits, on any level.
      optimizer: an optax transformation.
      class_weights: ``float[classes]`` or None.
      axis_name, keep_programs: as of :class:`voxax.models.training.Trainer`.

    Attributes:
      outside: ``int32[]``, scenes of the last step whose label no class has. They did not count.
    """

    def __init__(
        self,
        model: nnx.Module,
        optimizer: optax.GradientTransformation,
        class_weights: Any = None,
        *,
        axis_name: str | tuple[str, ...] | None = None,
        keep_programs: bool = True,
    ) -> None:
        weights = None if class_weights is None else jnp.array(class_weights, jnp.float32)
        self._class_weights, self._classes = weights, 0  # known once a step was traced
        self.outside, self._axis_name = jax.device_put(np.int32(0)), axis_name
        super().__init__(model, optimizer, keep_programs=keep_programs)

    def _objective(self, module: Any, voxels: Voxels, labels: Any) -> tuple[Any, Any, Any]:
        out = module(voxels)
        logits = global_pool(out)
        self._classes = logits.shape[1]
        loss = masked_cross_entropy(logits, labels, self._class_weights, self._axis_name)
        counts = out.num_dropped, count_outside(labels, logits.shape[1])
        if self._axis_name is not None:
            counts = jax.lax.psum(counts, self._axis_name)
        return loss, jnp.argmax(logits, axis=-1).astype(jnp.int32), counts

    def _evaluation(self, module: Any, voxels: Voxels) -> tuple[Any, Any]:
        out = module(voxels)
        drops = out.geometry.drops
        if self._axis_name is not None:
            drops = drops.summed_over(self._axis_name)
        return global_pool(out), drops

    def _counted(self, counts: Any) -> jax.Array:
        dropped, self.outside = counts
        return dropped

    def _check(self, labels: Any) -> None:
        check_labels(labels, self._classes)
