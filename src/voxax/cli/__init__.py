"""The command line: ``voxax demo``, ``voxax segment``, ``voxax hardware``."""

from voxax.cli.main import main as main
