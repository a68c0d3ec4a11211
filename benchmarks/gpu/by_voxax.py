"""voxax on a GPU: AUTO, tuned before it is timed; and what the chip itself can do."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.gpu.published import SEVEN
from benchmarks.gpu.rows import STACK, TUNED, Row
from benchmarks.gpu.stopwatch import timed
from benchmarks.tpu.scans import neighbors
from flax import nnx

import voxax as vx
from voxax.geometry.planning import Plan
from voxax.models import create
from voxax.models.training import masked_cross_entropy
from voxax.models.voxel_backbone import VoxelResBackBone8x
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import record_choices
from voxax.tuning.measure import spend, spent


def versions() -> dict[str, str]:
    return {"voxax": vx.__version__, "JAX": jax.__version__}


def wait(result: Any) -> None:
    jax.block_until_ready(result)


def measure(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    if row.operation == "rates":
        return _rates()
    if row.operation == "launch":
        x = jnp.zeros(8)
        add = jax.jit(lambda x: x + 1)
        return timed(lambda: add(x), wait)
    of = _stack if row.operation.startswith(STACK) else _network
    spend(-spent())  # each row may tune for as long
    with record_choices() as choices:
        values = {"map": _map, "layer": _layer}.get(row.operation, of)(row, cloud)
    last = {choice.problem: choice for choice in choices}
    used = sorted({f"{c.problem.product}: {c}" for c in last.values()})
    note = "; ".join(used) if len(used) <= 3 else f"{len(used)} choices"
    return {**values, "note": f"{values.get('note', '')}{note}"}


def _rates() -> dict[str, Any]:
    info = vx.hardware.describe(probe=True)
    return {
        "matrix": dict(info.peak_rates or ()),
        "bandwidth": info.memory_bandwidth,
        "note": f"bandwidth from {info.fact('memory_bandwidth').source}",
    }


def _voxels(cloud: dict[str, np.ndarray], channels: int, dtype: str = "float32") -> vx.Voxels:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((len(cloud["coords"]), channels), np.float32)
    scenes = int(cloud["coords"][:, 0].max()) + 1
    return vx.Voxels.from_coords(cloud["coords"], jnp.asarray(features, dtype), batch_size=scenes)


def _map(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    voxels = _voxels(cloud, 1)
    build = jax.jit(lambda v: vx.kernel_map(v, 3).neighbors)
    right = neighbors(cloud["coords"][:, 1:])
    wrong = float((np.asarray(build(voxels))[: len(right)] != right).sum())
    return {**timed(lambda: build(voxels), wait), "error": wrong}


def _layer(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    rng, c = np.random.default_rng(1), row.channels
    voxels = _voxels(cloud, c, row.dtype)
    w = jnp.asarray(rng.standard_normal((27, c, c), np.float32) / np.sqrt(27 * c), row.dtype)
    dy = jnp.asarray(rng.standard_normal((voxels.capacity, c), np.float32), row.dtype)

    def forward(w: jax.Array, voxels: vx.Voxels) -> jax.Array:
        return spatially_sparse_conv(voxels, w, 3).features

    def both(w: jax.Array, voxels: vx.Voxels) -> Any:
        def of(w: jax.Array, x: jax.Array) -> jax.Array:
            return forward(w, voxels.replace_features(x))

        _, pull = jax.vjp(of, w, voxels.features)
        return pull(dy)

    function = both if row.trains else forward
    vx.tune(function, w, voxels)
    voxels = vx.plan(lambda v: function(w, v), voxels)
    program = jax.jit(function)
    exact = _error(w, voxels)
    return {**timed(lambda: program(w, voxels), wait), "error": exact}


def _error(w: jax.Array, voxels: vx.Voxels) -> float:
    """Return the error against explicit_gemm in float32, over the largest entry."""
    out = spatially_sparse_conv(voxels, w, 3).features
    wide = voxels.replace_features(voxels.features.astype(jnp.float32))
    right = spatially_sparse_conv(
        wide, w.astype(jnp.float32), 3, fwd_algo="explicit_gemm", precision="highest"
    ).features
    worst = jnp.max(jnp.abs(out.astype(jnp.float32) - right))
    return float(worst / jnp.max(jnp.abs(right)))


def _stack(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    """As FlexGEMM's benchmark: the map, the layers, and the gradients of their parameters."""
    number, c = int(row.operation.removeprefix(STACK)), row.channels
    voxels = _voxels(cloud, c, row.dtype)
    params = []
    for key in jax.random.split(jax.random.key(0), number):  # made there: they are large
        w = jax.random.normal(key, (27, c, c), jnp.dtype(row.dtype)) * (27 * c) ** -0.5
        params.append((w.astype(row.dtype), jnp.zeros(c, row.dtype)))

    def step(params: Any, voxels: vx.Voxels) -> Any:
        def of(params: Any) -> jax.Array:
            out = voxels
            for w, b in params:
                out = spatially_sparse_conv(out, w, 3, bias=b)
            return out.features

        y, pull = jax.vjp(of, params)
        return pull(jnp.ones_like(y))

    vx.tune(step, params, voxels)
    program = jax.jit(step)
    # A bias' gradient is the number of rows: beyond what float16 has.
    note = _finite([slope for slope, _ in program(params, voxels)])
    return {**timed(lambda: program(params, voxels), wait), "note": note}


def _model(name: str, dtype: str) -> tuple[nnx.Module, int]:
    """The network, and the channels of its input."""
    common: dict[str, Any] = {"dtype": jnp.dtype(dtype), "rngs": nnx.Rngs(0)}
    if name not in SEVEN:
        known = {"MinkUNet34": "minkunet-34", "SpUNet34C": "spunet-34c"}
        return create(known[name], in_channels=4, num_classes=20, **common), 4
    work = SEVEN[name]
    if work.range is not None:
        return VoxelResBackBone8x(work.channels, work.grid, **common), work.channels
    sizes = {"in_channels": work.channels, "num_classes": work.classes, "width": work.width}
    return create("minkunet-18", **sizes, **common), work.channels


def _network(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    """Untuned a network takes the first candidates of ``implicit_gemm``: to tune takes minutes."""
    tuned = row.operation.startswith(TUNED)
    name = row.operation.removeprefix(TUNED)
    model, channels = _model(name, row.dtype)
    voxels = _voxels(cloud, channels)
    model.eval()
    voxels = Plan.record(model, voxels).attach(voxels, maps=False)
    labels = jnp.zeros(voxels.capacity, jnp.int32).at[len(cloud["coords"]) :].set(-1)
    if row.trains:
        model.train()
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def output_of(params: Any, voxels: vx.Voxels) -> tuple[jax.Array, Any]:
        module = nnx.merge(graph, params, rest, copy=True)
        return module(voxels).features, nnx.split(module, nnx.Param, ...)[2]

    def loss_of(params: Any, voxels: vx.Voxels) -> tuple[jax.Array, Any]:
        out, kept = output_of(params, voxels)
        if channels == 4:
            return masked_cross_entropy(out, labels), kept
        return jnp.square(out.astype(jnp.float32)).mean(), kept  # of a detector the rows are others

    def step(params: Any, voxels: vx.Voxels) -> Any:
        (loss, kept), slopes = jax.value_and_grad(loss_of, has_aux=True)(params, voxels)
        return loss, jax.tree.map(lambda p, g: p - 1e-3 * g, params, slopes), kept

    function = step
    if not row.trains:
        function = lambda p, v: output_of(p, v)[0]  # noqa: E731
        params = jax.tree.map(lambda p: p.astype(row.dtype), params)
    if tuned:
        vx.tune(function, params, voxels)
        return _timed(jax.jit(function), params, voxels)
    os.environ["VOXAX_AUTOTUNE"] = "off"
    vx.reload_environment()
    try:
        with vx.algorithms(forward="implicit_gemm", backward="implicit_gemm"):
            return _timed(jax.jit(function).lower(params, voxels).compile(), params, voxels)
    finally:
        del os.environ["VOXAX_AUTOTUNE"]
        vx.reload_environment()


def _timed(program: Any, params: Any, voxels: vx.Voxels) -> dict[str, Any]:
    note = _finite(program(params, voxels))
    return {**timed(lambda: program(params, voxels), wait), "note": note}


def _finite(result: Any) -> str:
    """Return a note where something is not finite; on the host, where nothing compiles for it."""
    fine = all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(result))
    return "" if fine else "**NaN or infinity in the result**; "
