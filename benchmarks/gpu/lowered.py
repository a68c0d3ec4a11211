"""Programs lowered for GPUs that are not present, to Triton's language."""

import dataclasses
import re

import jax
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from voxax import _compat
from voxax.hardware import HardwareInfo
from voxax.tuning.target import targeting

TRITON = "__gpu$xla.gpu.triton"
"""What JAX calls the custom call of a Pallas kernel that Triton compiles."""


@dataclasses.dataclass(frozen=True)
class Chip:
    """A GPU: JAX's platform, its kind, and what voxax would know about it."""

    platform: str
    kind: str
    info: HardwareInfo


# Shared memory of a block: NVIDIA's CUDA C++ programming guide, table of compute capabilities;
# AMD's CDNA 3 instruction set architecture, "local data share".
CHIPS = {
    "cuda": Chip(
        "cuda",
        "NVIDIA H100 80GB HBM3",
        HardwareInfo(
            platform="gpu",
            device_kind="NVIDIA H100 80GB HBM3",
            generation="9.0",
            cores=132,
            shared_memory_bytes=232_448,
        ),
    ),
    "rocm": Chip(
        "rocm",
        "gfx942",
        HardwareInfo(
            platform="gpu",
            device_kind="gfx942",
            generation="gfx942",
            cores=304,
            shared_memory_bytes=65_536,
        ),
    ),
}


def lower(chip, function, *arguments):
    """``function`` of these shapes, lowered for the chip as if it were here."""
    device = AbstractDevice(device_kind=chip.kind, num_cores=None, platform=chip.platform)
    with (
        use_abstract_mesh(AbstractMesh((), (), abstract_device=device)),
        targeting(chip.info),
        _compat.fresh_trace(),
    ):
        traced = jax.jit(function).trace(*arguments)
        return traced.lower(lowering_platforms=(chip.platform,))


def custom_calls(lowered):
    """Names of what the program calls besides XLA's own operations, one for each call."""
    return re.findall(r"stablehlo\.custom_call @\"?([^\"(]+)\"?\(", lowered.as_text())


def triton_modules(lowered):
    """``[(name, Triton's module as MLIR bytecode, warps, stages)]`` of the Pallas kernels."""
    found = []

    def visit(operation):
        if operation.name == "stablehlo.custom_call":
            attributes = operation.attributes
            if attributes["call_target_name"].value == TRITON:
                config = attributes["mhlo.backend_config"]
                found.append(
                    (
                        config["name"].value,
                        config["ir"].value_bytes,
                        config["num_warps"].value,
                        config["num_stages"].value,
                    )
                )
        for region in operation.regions:
            for block in region:
                for inner in block:
                    visit(inner.operation)

    visit(lowered.compiler_ir("stablehlo").operation)
    return found
