"""Classification of whole scenes by the mean of a network's voxel logits over each scene.

Source of the averaging: Lin, Chen and Yan, "Network In Network", ICLR 2014.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import jax
import optax
from flax import nnx

from voxax.errors import InputError
from voxax.geometry import Voxels
from voxax.geometry.lost_rows import LostRows
from voxax.models.minkunet import BLOCKS, PLANES, ConvNormAct, ResidualBlock
from voxax.models.training import Trainer, check_labels
from voxax.models.voxel_backbone import run_stages
from voxax.nn.functional import global_pool
from voxax.nn.modules import Linear
from voxax.nn.modules.constructor import Module, own_rngs
from voxax.nn.modules.sparse_convs import NetworkOptions


class VoxelEncoder(Module):
    """Encoder half of MinkUNet and a linear head: logits at the voxels of the coarsest level.

    Args:
      in_channels, out_channels: number of input features and of classes.
      blocks: number of residual blocks of each level; each level halves the resolution.
      channels: channels of each level.
      stem: channels of the first convolution.
      rngs: streams for the initial weights; None uses a default stream with a fixed seed.
      **options: arguments of every convolution, as in :class:`voxax.models.MinkUNet`.

    Raises:
      InputError: ``blocks`` and ``channels`` differ in length or are empty.
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
        """Return Voxels of logits ``[capacity, out_channels]`` on the last, coarsest level."""
        return self.head(run_stages(self.levels, self.stem(voxels), "level")[-1])


class SceneTrainer(Trainer):
    """Trainer of a network that classifies scenes by the mean of their voxels' logits.

    A step takes the class of each of B scenes as labels, ``int32[B]``. A negative label marks an
    unlabeled scene. A step returns the predicted class of each scene, ``int32[B]``.

    Args:
      model: a module from Voxels to Voxels of logits, which may have any stride.
      optimizer: an optax transformation.
      class_weights: weight of each class in the loss, ``float[classes]``; None is 1 for all.
      axis_name, keep_programs: as in :class:`voxax.models.training.Trainer`.

    Attributes:
      outside: ``int32[]``, number of scenes of the last step whose label is not a class. They do
        not count in the loss.
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
        options: dict[str, Any] = {"axis_name": axis_name, "keep_programs": keep_programs}
        super().__init__(model, optimizer, class_weights, **options)

    def _logits(self, out: Voxels, voxels: Voxels) -> tuple[jax.Array, LostRows]:
        return global_pool(out), out.geometry.drops

    def _check(self, labels: Any) -> None:
        check_labels(labels, self._classes)
