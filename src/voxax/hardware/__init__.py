"""Facts about the hardware of this process, asked of the runtime, each with its source."""

from voxax._shared_names import share_names as _share_names
from voxax.hardware.cache_dir import blocked as blocked
from voxax.hardware.cache_dir import cache_dir as cache_dir
from voxax.hardware.cpu import peak_memory as peak_memory
from voxax.hardware.cpu import process_memory as process_memory
from voxax.hardware.describe import Runtime as Runtime
from voxax.hardware.describe import describe as describe
from voxax.hardware.describe import remeasure as remeasure
from voxax.hardware.gpu_sheets import GpuSheet as GpuSheet
from voxax.hardware.gpu_sheets import gpu_sheet as gpu_sheet
from voxax.hardware.gpu_sheets import known_gpus as known_gpus
from voxax.hardware.info import Fact as Fact
from voxax.hardware.info import HardwareInfo as HardwareInfo
from voxax.hardware.info import feature_names as feature_names
from voxax.hardware.info import shown as shown
from voxax.hardware.kept_programs import KeptPrograms as KeptPrograms
from voxax.hardware.kept_programs import forget_programs as forget_programs
from voxax.hardware.kept_programs import keep_programs as keep_programs
from voxax.hardware.kept_programs import kept_programs as kept_programs
from voxax.hardware.target import hardware_of as hardware_of
from voxax.hardware.target import target_platform as target_platform
from voxax.hardware.target import targeting as targeting

_share_names(__name__)
