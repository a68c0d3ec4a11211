"""Rows that are measured on a GPU: one library on one operation each."""

from __future__ import annotations

import dataclasses
import itertools

LIBRARIES = ("voxax", "torch", "spconv")
DTYPES = ("float16", "bfloat16", "float32")
CHANNELS = (16, 32, 64, 128, 256)
CLOUDS = ("lidar", "indoor")
SMALL = (1_000, 5_000, 20_000)
MODES = ("forward", "forward+backward")


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      library: who runs it.
      operation: ``layer`` (3x3x3 submanifold, map built before), ``map`` (3x3x3 from sorted
        coordinates), ``network`` (a MinkUNet34, maps included), ``rates`` or ``launch``.
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
    """All rows, the telling ones first; for a rehearsal a few."""
    if rehearsal:
        small = (f"{CLOUDS[0]}:300",)
        layers = _layers(small, ("float32",), (8,))
        # Not the networks: to tune one takes minutes on a CPU.
        return [Row("voxax", "rates"), Row("voxax", "launch"), *layers, *_rest(small, ())]
    small = tuple(f"{cloud}:{n}" for cloud, n in itertools.product(CLOUDS, SMALL))
    return [
        Row("voxax", "rates"),
        Row("voxax", "launch"),
        *_layers(CLOUDS, ("float16",), (64, 128)),
        *_rest(CLOUDS, ("float16",)),
        *_layers(small, ("float16",), (64,)),
        *_layers(CLOUDS, ("float16", "bfloat16", "float32"), CHANNELS),
        *_rest(small, ("float16",)),
    ]


def _layers(clouds: tuple[str, ...], dtypes: tuple[str, ...], channels: tuple[int, ...]):
    grid = itertools.product(clouds, dtypes, channels, MODES, LIBRARIES)
    return [Row(lib, "layer", cloud, dtype, c, mode) for cloud, dtype, c, mode, lib in grid]


def _rest(clouds: tuple[str, ...], dtypes: tuple[str, ...]):
    maps = [Row(lib, "map", cloud) for cloud, lib in itertools.product(clouds, LIBRARIES)]
    grid = itertools.product(clouds, dtypes, MODES, LIBRARIES)
    return maps + [Row(lib, "network", c, dtype, 0, mode) for c, dtype, mode, lib in grid]


def selected(rows: list[Row], only: str) -> list[Row]:
    """Return the rows whose names have all words of ``only``, each once."""
    words = set(only.split())
    return [row for row in dict.fromkeys(rows) if words <= set(str(row).split())]
