"""From a request to one algorithm with its parameters: a filter, a measurement, a memory."""

from voxax.hardware import hardware_of as hardware_of
from voxax.hardware import target_platform as target_platform
from voxax.hardware import targeting as targeting
from voxax.tuning.decide import Choice as Choice
from voxax.tuning.request import Request as Request
from voxax.tuning.request import Resolved as Resolved
from voxax.tuning.request import admitted as admitted
from voxax.tuning.request import algorithms as algorithms
from voxax.tuning.request import autotune_mode as autotune_mode
from voxax.tuning.request import reload_environment as reload_environment
from voxax.tuning.request import resolve as resolve
from voxax.tuning.space import views_of as views_of
from voxax.tuning.tuner import choose as choose
from voxax.tuning.tuner import foresee as foresee
from voxax.tuning.tuner import record_choices as record_choices
from voxax.tuning.tuner import tune as tune
from voxax.tuning.tuner import unmeasured as unmeasured
from voxax.tuning.tuner import with_known_time as with_known_time
