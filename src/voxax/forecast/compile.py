"""Compiling for TPUs that are not there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax

from voxax import _compat
from voxax.hardware import describe
from voxax.tuning import targeting


def compile_for(topology: str, function: Callable[..., Any], *shapes: Any) -> Any:
    """A function compiled for one device of a topology, with default layouts.

    Convolutions inside choose their algorithms for that device, as an exported program's do: of
    this process's hardware the TPU's kernels would be refused, since nothing is known of a TPU.

    Without a TPU: libtpu is kept from asking a metadata server about one, here and afterwards.

    Args:
      topology: libtpu's name, see :data:`voxax.forecast.TOPOLOGIES`.
      function: what to compile.
      *shapes: pytrees of ``jax.ShapeDtypeStruct`` or arrays.
    """
    from jax.sharding import AbstractDevice, AbstractMesh, SingleDeviceSharding, use_abstract_mesh

    # Before libtpu is loaded: it would wait for the server, and allow one process at a time.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    device = _compat.tpu_topology(topology)[0]
    kind, cores = device.device_kind, int(getattr(device, "num_cores", None) or 1)
    one = SingleDeviceSharding(device)
    abstract = AbstractDevice(device_kind=kind, num_cores=cores, platform="tpu")
    with (
        use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract)),
        targeting(describe(device)),
        _compat.fresh_trace(),
    ):
        lowered = jax.jit(function, in_shardings=one, out_shardings=one).lower(*shapes)
    return lowered.compile()
