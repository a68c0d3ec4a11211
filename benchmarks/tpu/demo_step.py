"""The training step of `voxax demo` on an absent slice: do its two programs compile?

    JAX_PLATFORMS=cpu python benchmarks/tpu/demo_step.py v5e:2x4 v6e:2x2

As on a host of that slice: MinkUNet14 at twice the usual width in bfloat16, one street for each
chip, `shard_map`, choices as they ship. Prints what its convolutions chose, seconds that compiling
took, and the compiler's account of one chip's memory. About two minutes a slice. Nothing runs on a
TPU. Needs libtpu.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def devices(topology: str) -> list[Any]:
    """Return the devices of a slice."""
    from voxax import _compat

    # Before libtpu is loaded: it would wait for a server, and allow one process at a time.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    return _compat.tpu_topology(topology)


def lowered(trainer: Any, topology: str, voxels: Any, labels: Any) -> tuple[Any, Any, list[Any]]:
    """Lower a step of a fresh DataParallelTrainer for a slice: gradients, update, and choices.

    Args:
      trainer: of any mesh with the axis ``data``; it has traced no step.
      topology: libtpu's name of the slice.
      voxels, labels: of one shard; only shapes matter.
    """
    from voxax.tuning import record_choices

    mesh = trainer.mesh = Mesh(np.asarray(devices(topology)), ("data",))
    whole, each = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("data",)))
    params, state, optimizer_state = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole),
        (trainer.params, trainer.state, trainer.optimizer_state),
    )
    shards = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((mesh.size, *x.shape), x.dtype, sharding=each),
        (voxels, labels),
    )
    with record_choices() as choices:
        gradients = trainer._gradients.lower(params, state, *shards)
    return gradients, trainer._update.lower(params, optimizer_state, params), choices


def demo() -> tuple[Any, Any, Any]:
    """Return the demo's trainer for TPUs, and voxels and labels of one of its streets."""
    from voxax.cli.demo_kinds import SegmentDemo
    from voxax.cli.learning import Learning
    from voxax.cli.scenes import MakeTask, run
    from voxax.parallel import DataParallelTrainer

    kind = SegmentDemo(scenes=4)
    streets = kind.streets(0)
    scenes = [run(task) for task in (*streets.validation, *streets.train)]
    task = kind.task(scenes, streets.class_names, 2.0, "bfloat16")
    learning = Learning(task, Path("nowhere"), seed=0)
    learning.fit(scenes)
    example = MakeTask(learning.preparation, 1, 1, learning.transform)(scenes[:1], (0,))()
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    weights = np.asarray(task.class_weights)
    trainer = DataParallelTrainer(task.model(), task.optimizer(), mesh, class_weights=weights)
    return trainer, example.voxels, example.labels


def main() -> None:
    os.environ.pop("VOXAX_AUTOTUNE", None)
    for topology in sys.argv[1:] or ["v5e:2x4"]:
        trainer, voxels, labels = demo()
        *programs, choices = lowered(trainer, topology, voxels, labels)
        sources = Counter((c.algorithm, c.source) for c in choices)
        begin = time.perf_counter()
        memories = [program.compile().memory_analysis() for program in programs]
        seconds = time.perf_counter() - begin
        print(topology, dict(sources), f"compiled in {seconds:.0f} s", flush=True)
        for program, memory in zip(("gradients", "update"), memories, strict=True):
            sizes = {
                name: f"{getattr(memory, f'{name}_size_in_bytes') / 1e6:.0f} MB"
                for name in ("temp", "argument", "output", "alias")
            }
            print(f"  {program}", sizes, flush=True)


if __name__ == "__main__":
    # Choices of this program, not of what somebody has measured elsewhere.
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VOXAX_CACHE_DIR"] = folder
        main()
