"""The predicted choices that come with voxax for TPUs: a training step of MinkUNet18 on LiDAR.

    python benchmarks/tpu/defaults.py --chips v5e v6e

As `voxax tune --tpu CHIPS --training`, in bfloat16, into the files of voxax.tuning.defaults: the
candidates that could be priced, seconds with four digits. About five minutes a generation on 2
cores. Nothing runs. Needs libtpu.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # `benchmarks`, also as a script

from benchmarks.tpu.counted import options

from voxax.cli import main as voxax
from voxax.hardware import describe
from voxax.predict import TOPOLOGIES
from voxax.tuning import cache
from voxax.tuning.cache import device_name
from voxax.tuning.entry import Entry


def make() -> Any:
    """The model."""
    import jax.numpy as jnp

    from voxax.models import MinkUNet18

    return MinkUNet18(4, 20, dtype=jnp.bfloat16)


def slim(entry: Entry) -> Entry:
    """Fields that are read of a predicted entry."""
    priced = [
        dataclasses.replace(m, seconds=float(f"{m.seconds:.4g}"))
        for m in entry.measured
        if m.seconds is not None
    ]
    return dataclasses.replace(
        entry, measured=tuple(priced), seconds_spent=round(entry.seconds_spent, 1)
    )


def main() -> None:
    for chip in options(__doc__, anew=False).parse_args().chips:
        device = device_name(describe(TOPOLOGIES[chip]))
        target = cache.FOLDER / f"{device}.json"
        with tempfile.TemporaryDirectory() as folder:
            os.environ["VOXAX_CACHE_DIR"] = folder
            model = ["--model", "benchmarks.tpu.defaults:make", "--training"]
            # What it holds would count as known, and nothing would be predicted. Git has it.
            target.unlink(missing_ok=True)
            if voxax(["tune", "--tpu", chip, *model]):
                raise SystemExit(1)
            found = cache.read_file(Path(folder) / "tuning" / f"{device}.json", device)
        cache.save_file(target, device, {key: slim(e) for key, e in found.store.items()})
        target.with_name(f".{device}.lock").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
