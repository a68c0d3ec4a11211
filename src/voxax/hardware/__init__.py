"""What this process runs on, asked of the runtime."""

from voxax.hardware.describe import HardwareInfo as HardwareInfo
from voxax.hardware.describe import describe as describe
from voxax.hardware.memory import peak_memory as peak_memory
