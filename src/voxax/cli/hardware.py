"""``voxax hardware``."""

from __future__ import annotations

import dataclasses
import json


def hardware() -> int:
    """Print what this process runs on, as JSON."""
    from voxax.hardware import describe

    print(json.dumps(dataclasses.asdict(describe()), indent=2))
    return 0
