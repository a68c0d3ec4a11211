"""Will it fit, and how fast could it be: answered before anything runs."""

from voxax.sizing.fits import fits as fits
from voxax.sizing.report import MemoryLimitError as MemoryLimitError
from voxax.sizing.report import MemoryReport as MemoryReport
