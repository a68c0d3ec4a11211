"""Runs the shared suite; see ``tests/conformance.py``."""

from conformance import *  # noqa: F403
