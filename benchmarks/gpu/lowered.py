"""Programs lowered for GPUs that are not present, and the Triton kernels in them."""

import contextlib
import dataclasses
import re
from typing import Any

import jax
import jax.numpy as jnp
from benchmarks.gpu.sheets import gpu_sheet
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from voxax import _compat
from voxax.geometry import PAIR_ROOM, KernelSpec
from voxax.hardware import HardwareInfo, targeting
from voxax.kernels import Layer, Problem
from voxax.kernels.depthwise import gpu as depthwise_gpu
from voxax.kernels.implicit_gemm import gpu

TRITON = "triton_kernel_call_ffi"
"""What XLA calls the custom call of a Triton kernel."""

ROWS, OUT_ROWS, TAPS = 1000, 700, 27
PRODUCTS = ("forward", "dgrad", "wgrad")


@dataclasses.dataclass(frozen=True)
class Chip:
    """A GPU: JAX's platform, and what voxax would know about it."""

    platform: str
    info: HardwareInfo

    @property
    def kind(self) -> str:
        return self.info.device_kind


CHIPS = {
    "cuda": Chip("cuda", gpu_sheet("sm_90").info),
    "rocm": Chip("rocm", gpu_sheet("gfx942").info),
}


@contextlib.contextmanager
def as_if_here(chip):
    """Inside, programs are made for the chip."""
    device = AbstractDevice(device_kind=chip.kind, num_cores=None, platform=chip.platform)
    with (
        use_abstract_mesh(AbstractMesh((), (), abstract_device=device)),
        targeting(chip.info),
        _compat.fresh_trace(),
    ):
        yield


def lower(chip, function, *arguments):
    """``function`` of these shapes, lowered for the chip as if it were here."""
    with as_if_here(chip):
        traced = jax.jit(function).trace(*arguments)
        return traced.lower(lowering_platforms=(chip.platform,))


def custom_calls(lowered):
    """Names of what the program calls besides XLA's own operations, one for each call."""
    return re.findall(r"stablehlo\.custom_call @\"?([^\"(]+)\"?\(", lowered.as_text())


def problem_of(
    product: Any,
    kind: Any = "dense",
    dtype: str = "bfloat16",
    channels: tuple[int, int] = (48, 96),
    precision: str = "highest",
) -> Any:
    """A problem of 27 taps between 1000 and 700 rows."""
    c_in, c_out = (channels[0],) * 2 if kind == "depthwise" else channels
    groups = 2 if kind == "grouped" else 1
    layer = Layer(
        in_capacity=ROWS,
        out_capacity=OUT_ROWS,
        num_offsets=TAPS,
        symmetric=False,
        kind=kind,
        groups=groups,
        precision=precision,
        spec=KernelSpec.make(3, 3),
    )
    return Problem(product, layer, c_in, c_out, dtype, "gpu")


def module_of(problem: Problem) -> Any:
    """The module of the Triton kernels that multiply the problem's weights."""
    return depthwise_gpu if problem.layer.kind == "depthwise" else gpu


def alone(problem: Any, parameters: Any, apply: Any = None) -> tuple[Any, tuple[Any, ...]]:
    """A product as a function, by default with the Triton kernels, and shapes of its arguments."""
    outs, ins, taps = problem.layer.out_capacity, problem.layer.in_capacity, TAPS
    shapes = {
        "sorted_neighbors": (taps + 1, outs),
        "transposed_sorted_neighbors": (taps + 1, ins),
        "pairs": (2, taps * outs + PAIR_ROOM),
        "pair_starts": (taps + 1,),
    }
    module = module_of(problem)
    names = module.TRITON.views_of(problem, parameters)
    views = {name: jax.ShapeDtypeStruct(shapes[name], jnp.int32) for name in names}
    operands = [jax.ShapeDtypeStruct(shape, problem.dtype) for shape in problem.operand_shapes]
    chosen = module.apply if apply is None else apply

    def run(a: Any, b: Any, views: Any) -> Any:
        return chosen(problem, parameters, a, b, views)

    return run, (*operands, views)


def lowered_kernel(chip: Any, problem: Any, parameters: Any, apply: Any = None) -> Any:
    """A product alone, for a chip; by default with the Triton kernels."""
    run, arguments = alone(problem, parameters, apply)
    return lower(chip, run, *arguments)
