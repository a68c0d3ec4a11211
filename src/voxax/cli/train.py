"""``voxax train`` trains a network on folders of labeled scans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro


def train(
    config: Annotated[Path, tyro.conf.Positional],
    resume: bool = False,
    overwrite: bool = False,
    out: Path | None = None,
    devices: int | Literal["all"] | None = None,
    deterministic: bool = False,
) -> int:
    """Train a network on labeled scans, with the settings of a configuration file.

    The network learns a class for each point, boxes of objects, or a class for each cloud. Writes a
    checkpoint for `voxax segment`, `detect` or `evaluate`, the loss of every step, and metrics.json
    with the score of the validation scans. Ctrl-C stops early and leaves a usable checkpoint.

    Args:
      config: The configuration, a TOML file.
      resume: Continue from the checkpoint in the folder of the results.
      overwrite: Delete the run in the folder of the results.
      out: Folder for the results, instead of the folder that the configuration names.
      devices: Number of devices that share a step's scenes, instead of the configuration's number;
          `all` for every device of this host. Without either number, all TPUs or GPUs of this host
          that can share the scenes, or one device on a CPU.
      deterministic: On a CPU, compute the same bits on any number of cores. XLA then uses four
          threads, and convolutions use the default algorithms.
    """
    from voxax.cli.process import (
        be_deterministic,
        keep_heap,
        refuse_other_hosts,
        use_devices,
    )
    from voxax.cli.train_config import read_config
    from voxax.cli.train_run import Run
    from voxax.hardware import keep_programs

    keep_heap()
    keep_programs()
    if deterministic:
        be_deterministic()
    read = read_config(config)
    if devices is not None:
        read = read.model_copy(update={"devices": devices})
    asked = f"{config}: devices =" if devices is None else "--devices"
    if isinstance(read.devices, int):
        use_devices(read.devices, asked)  # before anything starts JAX
    refuse_other_hosts("train")
    place = read.place(read.out) if out is None else out
    return Run(read, place, resume, overwrite, devices, deterministic)()
