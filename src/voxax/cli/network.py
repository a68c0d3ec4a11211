"""The network of the command line, as a checkpoint describes it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import optax
from flax import nnx

from voxax import models
from voxax.errors import FileFormatError
from voxax.hardware import HardwareInfo
from voxax.io.examples import Preparation
from voxax.models.checkpoint import load_arrays, load_description
from voxax.models.training import Trainer

# Narrow: a step over 10k voxels takes a third of a second on two CPU cores.
PLANES, STEM = (24, 32, 48, 64, 48, 48, 32, 32), 16
# ``small`` is MinkUNet14 with these channels, the others have those of the paper.
NETWORKS = ("small", "MinkUNet14", "MinkUNet18", "MinkUNet34")

# The width is chosen between these, in quarters.
NARROWEST, WIDEST = 0.5, 4.0
# On two cores the network of width 1 is trained in about two minutes.
CORES_AT_WIDTH_1 = 2
# At width 1 the demo peaks at 1.4 GB (AMD EPYC, JAX 0.10.2); the rest is left to others.
BYTES_PER_WIDTH = 2 << 30


def width_for(info: HardwareInfo) -> float:
    """The network's width for a machine: as wide as its cores and memory carry.

    | machine | width |
    |---|---|
    | CPU | ``sqrt(cores / 2)``: a step's arithmetic grows with the square of the width |
    | accelerator | 2 |
    | any | at most 1 for each 2 GiB of free memory; from 0.5 to 4, in steps of 0.25 |
    """
    width = math.sqrt(info.cpu_cores / CORES_AT_WIDTH_1) if info.platform == "cpu" else 2.0
    if info.memory_free is not None:
        width = min(width, info.memory_free / BYTES_PER_WIDTH)
    return min(max(math.floor(4 * width) / 4, NARROWEST), WIDEST)


@dataclasses.dataclass(frozen=True)
class NetworkConfig:
    """What rebuilds the network; JSON in the checkpoint.

    Attributes:
      network: of ``NETWORKS``.
      attributes: of points, that it reads beside their positions.
    """

    class_names: tuple[str, ...]
    voxel_size: float
    width: float
    learning_rate: float
    steps: int
    class_weights: tuple[float, ...] | None = None
    network: str = "small"
    attributes: tuple[str, ...] = ()
    weight_decay: float = 0.01

    def preparation(self) -> Preparation:
        """How clouds become this network's input."""
        return Preparation(self.voxel_size, self.attributes)

    def model(self) -> nnx.Module:
        """A freshly initialised network."""
        small = self.network == "small"
        channels = {"planes": PLANES, "stem": STEM} if small else {}
        build = models.MinkUNet14 if small else getattr(models, self.network)
        inputs, classes = self.preparation().num_channels, len(self.class_names)
        return build(inputs, classes, width=self.width, **channels)

    def trainer(self, devices: int = 1) -> Trainer:
        """A freshly initialised network with its optimiser, on the first so many devices."""
        schedule = optax.cosine_onecycle_schedule(
            max(self.steps, 2), self.learning_rate, pct_start=0.2
        )
        # Flattened, the update is a few kernels instead of several per parameter: less to compile.
        optimizer = optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.flatten(optax.adamw(schedule, weight_decay=self.weight_decay)),
        )
        weights = None if self.class_weights is None else np.asarray(self.class_weights)
        if devices == 1:
            return Trainer(self.model(), optimizer, weights)
        import jax

        from voxax.parallel import DataParallelTrainer

        mesh = jax.make_mesh((devices,), ("data",), devices=jax.devices()[:devices])
        return DataParallelTrainer(self.model(), optimizer, mesh, class_weights=weights)

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> NetworkConfig:
        try:
            names = tuple(values["class_names"])
            weights = values.get("class_weights")
            network = values.get("network", "small")
            if network not in NETWORKS:
                raise ValueError(f"network {network!r} is none of {', '.join(NETWORKS)}")
            return cls(
                names,
                float(values["voxel_size"]),
                float(values["width"]),
                float(values["learning_rate"]),
                int(values["steps"]),
                None if weights is None else tuple(weights),
                network,
                tuple(values.get("attributes", ())),
                float(values.get("weight_decay", 0.01)),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FileFormatError(
                f"the checkpoint's description lacks a field: {error!r}"
            ) from error


def restore(folder: Path, trainer: Trainer) -> Trainer:
    """Load the newest step of ``folder`` into ``trainer``."""
    trainer.load_tree(load_arrays(folder, trainer.tree()))
    return trainer


def config_of(folder: Path) -> NetworkConfig:
    """The configuration stored in a checkpoint."""
    return NetworkConfig.from_json(load_description(folder)["network"])
