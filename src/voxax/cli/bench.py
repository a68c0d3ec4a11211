"""``voxax bench --tpu`` predicts the run time of a model on TPUs, without having one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from voxax.cli.workload import Workload
from voxax.errors import InputError

if TYPE_CHECKING:
    from voxax.predict import CompiledKernel, CompiledProgram

DEFAULT = Workload()
_SHOWN = 12
# Number of one-dimensional int32 operands of a window kernel: the fields of ``Visits``.
_LISTS = 5


def bench(
    workload: Annotated[Workload, tyro.conf.arg(name="")] = DEFAULT,
    tpu: str | None = None,
    algorithm: str | None = None,
    most: int = _SHOWN,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Predict the least time that a model takes on TPUs; no TPU is needed.

    Compiles the model for the TPUs. Counts the cycles of each kernel in the compiler's schedule,
    and the bytes and operations of the program. Prints the time of each kernel and what bounds it,
    and the ratio of the total time to the lower bound. The lower bound is the longer of two times:
    to move features, weights and results once at the peak bandwidth, and to do the operations that
    XLA counts at the peak rate. Needs `pip install "voxax[tpu]"`.

    Args:
      workload: Model and voxels.
      tpu: TPU generations, separated by commas: v4, v5e, v5p, v6e, 7x.
      algorithm: Algorithm of all convolutions, such as implicit_gemm. By default voxax chooses.
      most: Number of kernels to print.
      json_: Print JSON instead of tables.
    """
    from voxax.cli.progress import working
    from voxax.predict import LEFT_OUT, TOPOLOGIES, count_all, render

    chips = [chip.strip() for chip in (tpu or "").split(",") if chip.strip()]
    if not chips:
        raise InputError(
            f"--tpu is missing: give generations, such as {','.join(TOPOLOGIES)}. Devices that are "
            "present are measured by `voxax tune` and `voxax explain --roofline`"
        )
    arguments = {**dataclasses.asdict(workload), "algorithm": algorithm}
    arguments["file"] = None if workload.file is None else str(workload.file)
    place = workload.model.rpartition(":")[0]
    if place.endswith(".py") and not Path(place).is_file():
        raise InputError(f"--model {workload.model}: there is no file {place}")
    with working(f"compiling for {', '.join(chips)}", begin=False):
        programs = count_all([(chip, "voxax.cli.bench:to_compile", arguments) for chip in chips])
    if json_:
        found = [_to_json(program) for program in programs]
        print(json.dumps({"predicted": found, "left out": LEFT_OUT}, indent=2))
        return 0
    for program in programs:
        passes = {kernel.name: passes_of(kernel) for kernel in program.kernels}
        seconds, bound = program.seconds(passes, at_least=True), program.lower_bound
        print(f"{workload.model} on one {program.chip.name}, predicted")
        print(render(program, passes, most))
        print(
            f"lower bound {1e6 * bound:,.1f} us, of {program.lower_bound_by}; "
            f"{seconds / bound:.1f} times"
        )
        print()
    print(LEFT_OUT)
    return 0


def to_compile(algorithm: str | None, file: str | None, **arguments: Any) -> tuple[Any, ...]:
    """Return ``(function, *shapes)``: a function that runs a model, and its arguments' shapes.

    The model and its voxels are those of ``Workload(file=file, **arguments)``, with array sizes as
    on an accelerator. `shapes` has one pytree of ``jax.ShapeDtypeStruct`` for each argument of the
    function. All convolutions use `algorithm`; None lets voxax choose.
    :func:`voxax.predict.count_all` calls ``to_compile`` in another process.
    """
    import contextlib

    import jax

    import voxax as vx

    workload = Workload(**arguments, file=None if file is None else Path(file))
    built = workload.build(for_accelerator=True)

    def call(*values: Any) -> Any:
        pinned = vx.algorithms(forward=algorithm, backward=algorithm)
        with pinned if algorithm is not None else contextlib.nullcontext():
            return built.call(*values)

    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), built.arguments)
    return call, *shapes


def passes_of(kernel: CompiledKernel) -> float | None:
    """Return the mean number of loop passes per stripe of a window kernel; None for another kernel.

    A window kernel is a Pallas TPU kernel of implicit GEMM. Its rows are cut into stripes, a stripe
    into groups, and a group into tiles. Its main loop is assumed to make one pass for each group.
    The numbers of groups and stripes follow from the lengths of the operands ``first`` and
    ``bounds``, see :class:`voxax.kernels.implicit_gemm.tpu_kernel.Visits`.
    """
    lists = [shape for dtype, shape in kernel.operands if dtype == "s32" and len(shape) == 1]
    if not kernel.is_pallas or len(lists) != _LISTS or lists[2] != lists[3]:
        return None
    return lists[1][0] / max(lists[4][0] - 1, 1)


def _to_json(program: CompiledProgram) -> dict[str, Any]:
    passes = {kernel.name: passes_of(kernel) for kernel in program.kernels}
    seconds = program.seconds(passes, at_least=True)
    kernels = [
        {
            "name": cost.kernel.name,
            "label": cost.kernel.label,
            "runs": None if cost.kernel.in_open_loop else cost.kernel.times,
            "cycles": cost.cycles,
            "issued": cost.bundles,
            "bytes": cost.bytes,
            "busy": dict(cost.busy),
            "seconds": cost.seconds,
            "bound": cost.bound,
            "complete": cost.complete,
        }
        for cost in program.costs(passes)
    ]
    return {
        "chip": dataclasses.asdict(program.chip),
        "seconds": seconds,
        "lower_bound_seconds": program.lower_bound,
        "lower_bound_by": program.lower_bound_by,
        "times_lower_bound": seconds / program.lower_bound,
        "flops": program.flops,
        "temporary_bytes": program.temporary,
        "kernels": kernels,
    }
