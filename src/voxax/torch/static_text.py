"""The static side of operators as text: PyTorch's operators take tensors, numbers and strings.

A text holds everything but shapes and dtypes, so an exported program can be loaded in another
process.
"""

# pyright: reportMissingImports=false, reportMissingTypeStubs=false
# PyTorch is an extra, which is absent where types are checked.

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import torch

from voxax.geometry import KernelMap, KernelShape, KernelSpec, VoxelGeometry
from voxax.geometry.build import output_stride
from voxax.kernels import WeightKind
from voxax.nn.arguments import by_product
from voxax.products import convolve
from voxax.products.convolution import precision_name
from voxax.tuning import Request
from voxax.tuning.request import frozen

Level = tuple[int, ...]

# Rows of the problem for which views are chosen: those that a program lacks it builds itself.
_TYPICAL_ROWS = 65536


@dataclasses.dataclass(frozen=True)
class LayerText:
    """The static side of the three products of a layer, as a text describes it.

    Attributes:
      spec: the relation.
      same: both sides are one voxel set.
      level: total stride of the input.
      kind, groups: of the weight.
      views: names of the map's arrays, ``neighbors`` first.
      precision, requests: as in :func:`voxax.nn.functional.spatially_sparse_conv`.
    """

    spec: KernelSpec
    same: bool
    level: Level
    kind: WeightKind
    groups: int
    views: tuple[str, ...]
    precision: str | None
    requests: tuple[tuple[str, Any], ...]

    def kernel_map(self, in_rows: int, out_rows: int, views: Sequence[jax.Array]) -> KernelMap:
        """Return the map that holds ``views``; its voxels have a number of rows only."""
        source = stand_in(in_rows, self.level)
        out = source if self.same else stand_in(out_rows, self.level)
        return KernelMap(
            source, out, self.spec, dict(zip(self.views, views, strict=True)), check=False
        )

    def channels(self, weight: Any) -> tuple[int, int]:
        """Return the input and output channels of a weight, an array of either library."""
        c_in = weight.shape[-1 if self.kind == "depthwise" else -2]
        return self.groups * c_in, self.groups * weight.shape[-1]

    def weight_shape(self, c_in: int, c_out: int) -> tuple[int, ...]:
        taps, g = self.spec.num_offsets, self.groups
        if self.kind == "depthwise":
            return (taps, c_in)
        return (taps, g, c_in // g, c_out // g) if self.kind == "grouped" else (taps, c_in, c_out)

    def forward(self, features: jax.Array, weight: jax.Array, kernel_map: KernelMap) -> jax.Array:
        return convolve(
            features, weight, kernel_map, precision=self.precision, **dict(self.requests)
        )


def stand_in(rows: int, stride: Level) -> VoxelGeometry:
    """Return a voxel set of which only the number of rows is known."""
    coords: Any = jax.ShapeDtypeStruct((rows, 1 + len(stride)), jnp.int32)
    return VoxelGeometry(coords, jax.ShapeDtypeStruct((), jnp.int32), {}, None, stride, 1)  # type: ignore[arg-type]


@torch.compiler.assume_constant_result
def spec_text(
    ndim: int,
    kernel_size: int | Sequence[int],
    stride: int | Sequence[int],
    dilation: int | Sequence[int],
    transposed: bool,
    generative: bool,
    kernel_shape: KernelShape,
    spatial_shape: int | Sequence[int] | None,
) -> str:
    """Return the text of a :class:`voxax.KernelSpec`, checked. Arguments and errors as there."""
    relation = (kernel_size, stride, dilation, transposed, generative)
    return text_of_spec(
        KernelSpec.make(ndim, *relation, kernel_shape=kernel_shape, spatial_shape=spatial_shape)
    )


def text_of_spec(spec: KernelSpec) -> str:
    """Return the text that :func:`read_spec` reads."""
    return json.dumps(dataclasses.asdict(spec), separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def read_spec(text: str) -> KernelSpec:
    """Return the spec in a text."""
    return KernelSpec(**{name: _tuples(value) for name, value in json.loads(text).items()})


class Facts(NamedTuple):
    """Properties of the KernelSpec in a text."""

    ndim: int
    transposed: bool
    generative: bool
    keeps_coords: bool
    num_offsets: int


@torch.compiler.assume_constant_result
def relation_facts(spec: str) -> Facts:
    """Return properties of the KernelSpec serialized in ``spec``."""
    found = read_spec(spec)
    return Facts(
        found.ndim, found.transposed, found.generative, found.keeps_coords, found.num_offsets
    )


@torch.compiler.assume_constant_result
def output_level(spec: str, stride: Level) -> tuple[int, ...]:
    """Return the total stride of the output for an input of that total stride.

    Raises:
      InputError: a transposed relation that leads to a finer lattice than the original voxels.
    """
    return output_stride(tuple(stride), read_spec(spec))


@torch.compiler.assume_constant_result
def adjoint_text(spec: str) -> str:
    """Return the text of the adjoint relation, without how outputs are found."""
    return text_of_spec(read_spec(spec).adjoint().relation)


@torch.compiler.assume_constant_result
def request_text(
    kind: WeightKind,
    precision: str | None,
    fwd_algo: Request = None,
    bwd_algo: Request = None,
    dgrad_algo: Request = None,
    wgrad_algo: Request = None,
) -> str:
    """Return the text of algorithm requests, in one spelling.

    Raises:
      AlgorithmError: one that is not understood.
      InputError: an unknown precision.
    """
    # None stays: it is read when a layer runs.
    precision = None if precision is None else precision_name(precision)
    requests = by_product(fwd_algo, bwd_algo, dgrad_algo, wgrad_algo)
    plain = {name: frozen(request, kind, name) for name, request in requests.items()}
    return json.dumps({"precision": precision, "requests": plain}, separators=(",", ":"))


@torch.compiler.assume_constant_result
def layer_text(
    spec: str, same: bool, level: Level, options: str, kind: WeightKind, shape: Level, dtype: str
) -> str:
    """Return the text that :func:`read_layer` reads, with the views that its products read.

    Args:
      spec, options: texts.
      same, level, kind: as in :class:`LayerText`.
      shape: of the weight.
      dtype: of the operands, by name.
    """
    return _layer_text(spec, same, tuple(level), options, kind, tuple(shape), dtype)


@functools.lru_cache(maxsize=4096)
def _layer_text(
    spec: str, same: bool, level: Level, options: str, kind: WeightKind, shape: Level, dtype: str
) -> str:
    groups = shape[1] if kind == "grouped" else 1
    described = {
        "spec": json.loads(spec),
        "same": same,
        "level": level,
        "kind": kind,
        "groups": groups,
        "views": ("neighbors",),
        **json.loads(options),
    }
    layer = read_layer(json.dumps(described))
    table = jax.ShapeDtypeStruct((_TYPICAL_ROWS, layer.spec.num_offsets), jnp.int32)
    w = jax.ShapeDtypeStruct(shape, dtype)
    x = jax.ShapeDtypeStruct((_TYPICAL_ROWS, layer.channels(w)[0]), dtype)
    asked: list[str] = []

    def forward(x: jax.Array, w: jax.Array, table: jax.Array) -> jax.Array:
        kernel_map = layer.kernel_map(_TYPICAL_ROWS, _TYPICAL_ROWS, [table])
        out = layer.forward(x, w, kernel_map)
        asked.extend(name for name in kernel_map.memo.names() if isinstance(name, str))
        return out

    with jax.enable_x64(True):
        jax.eval_shape(forward, x, w, table)
    described["views"] = ("neighbors", *sorted(set(asked)))
    return json.dumps(described, separators=(",", ":"))


@functools.lru_cache(maxsize=4096)
def read_layer(text: str) -> LayerText:
    """Return the layer in a text."""
    found = json.loads(text)
    spec = read_spec(json.dumps(found.pop("spec")))
    requests = tuple(found.pop("requests").items())
    return LayerText(spec=spec, requests=requests, **{k: _tuples(v) for k, v in found.items()})


@torch.compiler.assume_constant_result
def view_names(text: str) -> tuple[str, ...]:
    """Return the names of the map's arrays that a layer's operators take, in order."""
    return read_layer(text).views


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
