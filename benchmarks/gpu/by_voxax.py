"""voxax on a GPU: AUTO, tuned before it is timed; and what the chip itself can do."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.gpu.rows import TUNED, Row
from benchmarks.gpu.stopwatch import timed
from flax import nnx

import voxax as vx
from voxax.geometry.planning import Plan
from voxax.models import create
from voxax.models.training import masked_cross_entropy
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
    measures = {"map": _map, "layer": _layer}
    spend(-spent())  # each row may tune for as long
    with record_choices() as choices:
        values = measures.get(row.operation, _network)(row, cloud)
    last = {choice.problem: choice for choice in choices}
    used = sorted({f"{c.problem.product}: {c}" for c in last.values()})
    return {**values, "note": "; ".join(used) if len(used) <= 3 else f"{len(used)} choices"}


def _rates() -> dict[str, Any]:
    info = vx.hardware.describe(probe=True)
    return {
        "matrix": dict(info.peak_rates or ()),
        "bandwidth": info.memory_bandwidth,
        "note": f"bandwidth from {info.fact('memory_bandwidth').source}",
    }


def _voxels(row: Row, cloud: dict[str, np.ndarray], channels: int) -> vx.Voxels:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((len(cloud["coords"]), channels), np.float32)
    return vx.Voxels.from_coords(cloud["coords"], jnp.asarray(features, row.dtype or "float32"))


def _map(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    voxels = _voxels(row, cloud, 1)
    build = jax.jit(lambda v: vx.kernel_map(v, 3).neighbors)
    return timed(lambda: build(voxels), wait)


def _layer(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    rng, c = np.random.default_rng(1), row.channels
    voxels = _voxels(row, cloud, c)
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


def _network(row: Row, cloud: dict[str, np.ndarray]) -> dict[str, Any]:
    """Untuned a network takes the first candidates of ``implicit_gemm``: to tune takes minutes."""
    tuned = row.operation.startswith(TUNED)
    build = {"MinkUNet34": "minkunet-34", "SpUNet34C": "spunet-34c"}
    name = build[row.operation.removeprefix(TUNED)]
    model = create(
        name, in_channels=4, num_classes=20, dtype=jnp.dtype(row.dtype), rngs=nnx.Rngs(0)
    )
    voxels = _voxels(Row(row.library, row.operation), cloud, 4)
    model.eval()
    voxels = Plan.record(model, voxels).attach(voxels, maps=False)
    labels = jnp.zeros(voxels.capacity, jnp.int32).at[len(cloud["coords"]) :].set(-1)
    if row.trains:
        model.train()
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def logits_of(params: Any, voxels: vx.Voxels) -> tuple[jax.Array, Any]:
        module = nnx.merge(graph, params, rest, copy=True)
        return module(voxels).features, nnx.split(module, nnx.Param, ...)[2]

    def loss_of(params: Any, voxels: vx.Voxels) -> tuple[jax.Array, Any]:
        logits, kept = logits_of(params, voxels)
        return masked_cross_entropy(logits, labels), kept

    def step(params: Any, voxels: vx.Voxels) -> Any:
        (loss, kept), slopes = jax.value_and_grad(loss_of, has_aux=True)(params, voxels)
        return loss, jax.tree.map(lambda p, g: p - 1e-3 * g, params, slopes), kept

    function = step
    if not row.trains:
        function = lambda p, v: logits_of(p, v)[0]  # noqa: E731
        params = jax.tree.map(lambda p: p.astype(row.dtype), params)
    if tuned:
        vx.tune(function, params, voxels)
        program = jax.jit(function)
        return timed(lambda: program(params, voxels), wait)
    os.environ["VOXAX_AUTOTUNE"] = "off"
    vx.reload_environment()
    try:
        with vx.algorithms(forward="implicit_gemm", backward="implicit_gemm"):
            program = jax.jit(function).lower(params, voxels).compile()
            return timed(lambda: program(params, voxels), wait)
    finally:
        del os.environ["VOXAX_AUTOTUNE"]
        vx.reload_environment()
