"""What this process runs on, asked of the runtime; every fact carries its source."""

from voxax.hardware.cache_dir import cache_dir as cache_dir
from voxax.hardware.describe import Runtime as Runtime
from voxax.hardware.describe import describe as describe
from voxax.hardware.describe import remeasure as remeasure
from voxax.hardware.info import Fact as Fact
from voxax.hardware.info import HardwareInfo as HardwareInfo
from voxax.hardware.info import feature_names as feature_names
from voxax.hardware.info import shown as shown
from voxax.hardware.memory import peak_memory as peak_memory
from voxax.hardware.memory import process_memory as process_memory

__all__ = [
    "Fact",
    "HardwareInfo",
    "Runtime",
    "cache_dir",
    "describe",
    "feature_names",
    "peak_memory",
    "process_memory",
    "remeasure",
    "shown",
]
