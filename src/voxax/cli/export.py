"""``voxax export`` writes a model to a file that can be loaded and run without the model's code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import tyro

from voxax import _limits
from voxax.cli.workload import model_of
from voxax.errors import InputError


def export(
    model: Annotated[str | None, tyro.conf.Positional] = None,
    *,
    capacity: int,
    checkpoint: Path | None = None,
    output: Path = Path("model.voxax"),
    tpu: str | None = None,
    cuda: bool = False,
    cpu: bool = False,
    channels: int | None = None,
    classes: int | None = None,
    ndim: int = 3,
    batch_size: int = 1,
    dtype: Literal["float32", "bfloat16"] = "float32",
    algorithm: str | None = None,
    portable: bool = False,
    executable: bool = False,
) -> int:
    """Write the forward pass of a model or a checkpoint, with weights, to a file.

    voxax.export.load_program loads the file.

    The device of --tpu or --cuda need not be present. Algorithms come from the tuning cache for the
    device, or are the defaults. --algorithm pins one, such as implicit_gemm for the TPU kernels.

    Args:
      model: MinkUNet14, MinkUNet18, MinkUNet34, FILE.py:NAME or package.module:NAME: a model on
          Voxels, or a function without arguments that makes one. A named model has random
          weights.
      capacity: Largest number of voxels that the program takes.
      checkpoint: Folder of a checkpoint of `voxax demo` or `voxax train`, instead of a model. Not
          of a detector.
      output: File to write.
      tpu: Compile for this TPU: v4, v5e, v5p, v6e, 7x, or a topology such as v5e:4x4.
      cuda: Compile for NVIDIA GPUs.
      cpu: Compile for CPUs.
      channels: Input channels of a model; by default 4.
      classes: Output channels of a named model; by default 20.
      ndim: Number of spatial axes.
      batch_size: Number of scenes in a batch.
      dtype: Type of the input features.
      algorithm: Algorithm of all convolutions.
      portable: With --cpu, leave out voxax's native kernels, for machines without them.
      executable: With --cpu, add machine code for CPUs like this one.
    """
    from voxax.cli.progress import working
    from voxax.cli.run_folder import check_writable
    from voxax.export import export_program
    from voxax.predict import TOPOLOGIES

    if (tpu is not None) + cuda + cpu != 1:
        raise InputError("give one of --tpu CHIP, --cuda and --cpu")
    if (model is None) == (checkpoint is None):
        raise InputError("give a model, or --checkpoint FOLDER, and not both")
    if checkpoint is not None and not (channels is None and classes is None):
        raise InputError("--channels and --classes are of the checkpoint's network: leave them out")
    channels = 4 if channels is None else channels
    classes = 20 if classes is None else classes
    check_writable(output.parent)
    if output.is_dir():
        raise InputError(f"--output {output} is a folder: give the path of a file")
    for name, value, limit in (
        ("--capacity", capacity, _limits.PROGRAM_ROWS),
        ("--channels", channels, _limits.CHANNELS),
        ("--classes", classes, _limits.CLASSES),
        ("--batch-size", batch_size, _limits.STEP_SCENES),
    ):
        limit.check(name, value)
    if checkpoint is not None:
        from voxax.cli.apply import Trained
        from voxax.cli.detection_task import Detection
        from voxax.cli.tasks import task_of

        if isinstance(task_of(checkpoint), Detection):
            raise InputError(
                f"the checkpoint in {checkpoint} is of a detector, and a program is of a network "
                "that returns voxels: detectors cannot be exported"
            )
        trained = Trained(checkpoint)
        network, channels = trained.trainer.model(), int(trained.preparation.num_channels)
        network.eval()
    else:
        network = model_of(str(model), channels, classes)
    with working("compiling the network", begin=False):
        about = export_program(
            network,
            output,
            capacity=capacity,
            channels=channels,
            platform="tpu" if tpu else "cuda" if cuda else "cpu",
            device=TOPOLOGIES.get(tpu.removeprefix("tpu"), tpu) if tpu else None,
            ndim=ndim,
            batch_size=batch_size,
            dtype=dtype,
            algorithm=algorithm,
            portable=portable,
            executable=executable,
        )
    size = output.stat().st_size / 2**20
    print(f"{output}: {size:.1f} MB for {about['platform']}, {about['device']}")
    if cpu:
        print(f"  native kernels: {', '.join(about['native_kernels']) or 'none'}")
    for line in about["algorithms"]:
        print(f"  {line}")
    return 0
