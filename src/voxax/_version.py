"""The version of voxax."""

__version__ = "0.1.0"
