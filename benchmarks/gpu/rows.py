"""Rows that are measured on a GPU: one library on one operation each."""

from __future__ import annotations

import dataclasses
import itertools

LIBRARIES = ("voxax", "torch", "spconv", "spconv_triton")
DTYPES = ("float16", "bfloat16", "float32")
CHANNELS = (16, 32, 64, 128, 256)
CLOUDS = ("lidar", "indoor")
REAL = ("lidar120k", "lidar91k", "indoor148k")
SMALL = (1_000, 5_000, 20_000)
MODES = ("forward", "forward+backward")
NETWORKS = ("SpUNet34C", "MinkUNet34")
TUNED = "tuned "
"""Before the name of a network that voxax tunes first; else its first candidates run."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      library: who runs it.
      operation: ``layer`` (3x3x3 submanifold, map built before), ``map`` (3x3x3 from sorted
        coordinates), ``rates``, ``launch``, or a network with its maps, see :data:`NETWORKS`.
      cloud: its name, with the number of voxels behind a colon where it is cut to that.
      dtype: of features and weights; empty where there are none.
      channels: in and out; 0 where there are none.
      mode: of layers and networks.
    """

    library: str
    operation: str
    cloud: str = ""
    dtype: str = ""
    channels: int = 0
    mode: str = ""

    def __str__(self) -> str:
        channels = f"C{self.channels}" if self.channels else ""
        parts = (self.library, self.operation, self.cloud, self.dtype, channels, self.mode)
        return " ".join(part for part in parts if part)

    @property
    def trains(self) -> bool:
        return self.mode == "forward+backward"


def every_row(rehearsal: bool = False) -> list[Row]:
    """All rows, the telling ones first; for a rehearsal each kind once, on a small cloud."""
    chip = [Row("voxax", "rates"), Row("voxax", "launch")]
    if rehearsal:
        small = (f"{CLOUDS[0]}:300",)
        layers, maps = _layers(small, ("float32",), (8,)), _maps(small)
        return [*chip, *layers, *maps, *_networks(small, ("float16",))]
    small = tuple(f"{cloud}:{n}" for cloud, n in itertools.product(CLOUDS, SMALL))
    return [
        *chip,
        *_networks(REAL[:1], ("float16",)),
        *_networks(REAL, ("float16", "bfloat16")),
        *_layers(CLOUDS, ("float16",), (64, 128)),
        *_layers(CLOUDS, DTYPES, CHANNELS),
        *_layers(small, ("float16",), (64,)),
        *_maps((*CLOUDS, *small)),
        *_networks(small[:3], ("float16",)),
        *(
            Row("voxax", TUNED + name, cloud, "float16", 0, mode)
            for cloud, name, mode in itertools.product(REAL, NETWORKS, MODES)
        ),
    ]


def _layers(clouds: tuple[str, ...], dtypes: tuple[str, ...], channels: tuple[int, ...]):
    grid = itertools.product(clouds, dtypes, channels, MODES, LIBRARIES)
    return [Row(lib, "layer", cloud, dtype, c, mode) for cloud, dtype, c, mode, lib in grid]


def _maps(clouds: tuple[str, ...]):
    return [Row(lib, "map", cloud) for cloud, lib in itertools.product(clouds, LIBRARIES)]


def _networks(clouds: tuple[str, ...], dtypes: tuple[str, ...]):
    grid = itertools.product(clouds, dtypes, NETWORKS, MODES, LIBRARIES)
    return [
        Row(lib, name, cloud, dtype, 0, mode)
        for cloud, dtype, name, mode, lib in grid
        if lib != "torch"  # which has no sparse networks
    ]


def selected(rows: list[Row], only: str) -> list[Row]:
    """Return the rows whose names have all words of ``only``, each once."""
    words = set(only.split())
    return [row for row in dict.fromkeys(rows) if words <= set(str(row).split())]
