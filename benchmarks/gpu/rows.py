"""Rows that are measured on a GPU: one library on one operation each."""

from __future__ import annotations

import dataclasses
import itertools

from benchmarks.gpu.published import EIGHT, SEVEN, TWO_SCENES

LIBRARIES = ("voxax", "flexgemm", "warpconvnet", "spconv", "spconv_triton", "fvdb", "torch")
SMALL_PEERS = ("flexgemm", "warpconvnet", "fvdb")
"""Those that ``by_small_peers.py`` has together."""
DTYPES = ("float16", "bfloat16", "float32")
CHANNELS = (16, 32, 64, 128, 256)
CLOUDS = ("lidar", "indoor")
REAL = ("lidar120k", "lidar91k", "indoor148k")
SMALL = (1_000, 5_000, 20_000)
MODES = ("forward", "forward+backward")
NETWORKS = ("SpUNet34C", "MinkUNet34")
STACK = "stack"
TUNED = "tuned "
"""Before the name of a network that voxax tunes first; else its first candidates run."""

# Those that are written here for whole networks, and for layers in a row.
OF_NETWORKS = ("voxax", "spconv", "spconv_triton")
OF_STACKS = tuple(library for library in LIBRARIES if library != "torch")


@dataclasses.dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes:
      library: who runs it.
      operation: ``layer`` (3x3x3 submanifold, map built before), ``map`` (3x3x3 from sorted
        coordinates), ``rates``, ``launch``; with their maps: a network of :data:`NETWORKS` or
        :data:`published.SEVEN`, or ``stack`` with the number of 3x3x3 layers.
      cloud: its name, see :func:`clouds.prepare`.
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


def stages(rehearsal: bool = False) -> dict[str, list[Row]]:
    """Rows by stage, each in its first; for a rehearsal each kind once, on small clouds."""
    seen: set[Row] = set()
    found = {}
    for stage, rows in _stages(rehearsal).items():
        found[stage] = [row for row in dict.fromkeys(rows) if row not in seen]
        seen.update(rows)
    return found


def _stages(rehearsal: bool) -> dict[str, list[Row]]:
    if rehearsal:
        small = (f"{CLOUDS[0]}:300",)
        return {
            "chip": _chip(),
            # spconv trains on CPUs in float32 alone.
            "networks": _networks(small, ("float32",)),
            "layers": _layers(small, ("float32",), (8,)),
            "torchsparse": _seven(("SK-M-0.5x", "WM-C-1f"), "float32", ":300"),
            "flexgemm": _eight(((8, 8, 2),)),
            "maps": _maps(small),
            "more": [],
            "tuned": [],
        }
    small = tuple(f"{cloud}:{n}" for cloud, n in itertools.product(CLOUDS, SMALL))
    networks = itertools.product(REAL, NETWORKS, MODES)
    return {
        "chip": _chip(),
        "networks": _networks(REAL[:1], ("float16",)),
        "layers": _layers(CLOUDS, ("float16",), (64, 128)),
        "torchsparse": _seven(tuple(SEVEN), "float16"),
        "flexgemm": _eight(EIGHT),
        "maps": _maps((*CLOUDS, *small)),
        "more": [
            *_networks(REAL, ("float16", "bfloat16")),
            *_layers(CLOUDS, DTYPES, CHANNELS),
            *_layers(small, ("float16",), (64,)),
            *_networks(small[:3], ("float16",)),
        ],
        "tuned": [
            Row("voxax", TUNED + name, cloud, "float16", 0, mode) for cloud, name, mode in networks
        ],
    }


def every_row(rehearsal: bool = False) -> list[Row]:
    """The rows of all stages."""
    return [row for rows in stages(rehearsal).values() for row in rows]


def _chip() -> list[Row]:
    return [Row("voxax", "rates"), Row("voxax", "launch")]


def _layers(clouds: tuple[str, ...], dtypes: tuple[str, ...], channels: tuple[int, ...]):
    grid = itertools.product(clouds, dtypes, channels, MODES, LIBRARIES)
    return [Row(lib, "layer", cloud, dtype, c, mode) for cloud, dtype, c, mode, lib in grid]


def _maps(clouds: tuple[str, ...]):
    return [Row(lib, "map", cloud) for cloud, lib in itertools.product(clouds, LIBRARIES)]


def _networks(clouds: tuple[str, ...], dtypes: tuple[str, ...]):
    grid = itertools.product(clouds, dtypes, NETWORKS, MODES, OF_NETWORKS)
    return [Row(lib, name, cloud, dtype, 0, mode) for cloud, dtype, name, mode, lib in grid]


def _seven(names: tuple[str, ...], dtype: str, cut: str = ""):
    """As TorchSparse++ measures: inference of one scene, training of two."""
    grid = itertools.product(names, MODES, OF_NETWORKS)
    return [
        Row(lib, name, f"{name}{'' if mode == MODES[0] else TWO_SCENES}{cut}", dtype, 0, mode)
        for name, mode, lib in grid
    ]


def _eight(sizes: tuple[tuple[int, int, int], ...]):
    return [
        Row(lib, f"{STACK}{layers}", f"sphere{size}", "float16", channels, MODES[1])
        for (size, channels, layers), lib in itertools.product(sizes, OF_STACKS)
    ]


def selected(rows: list[Row], only: str) -> list[Row]:
    """Return the rows whose names have all words of ``only``, each once."""
    words = set(only.split())
    return [row for row in dict.fromkeys(rows) if words <= set(str(row).split())]
