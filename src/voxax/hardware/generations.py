"""Generations of TPUs by the names that people use."""

from __future__ import annotations

TOPOLOGIES = {
    "v4": "v4:2x2x1",
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "7x": "tpu7x:2x2x1",
}
"""The smallest slice of each generation that libtpu describes."""
