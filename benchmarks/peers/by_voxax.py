"""voxax: AUTO, tuned while it warms up. The same with ``VOXAX_NATIVE=off`` is XLA alone."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.peers.cases import OPERATIONS, Case, Contestant, Makers, sgemm_operands

import voxax as vx
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import Choice, measure, record_choices

_recording = contextlib.ExitStack()
_choices: list[Choice] = _recording.enter_context(record_choices())


def forget() -> dict[str, int]:
    """Returns how many products of the case ran with a choice that was not measured."""
    jax.clear_caches()
    last = {choice.problem: choice.source for choice in _choices}
    return {"unmeasured": sum(source == "predicted" for source in last.values())}


def versions() -> dict[str, str]:
    from voxax import _native

    native = _native.simd() or _native.unavailable() or ""
    return {"voxax": vx.__version__, "JAX": jax.__version__, "native kernels": native}


def sgemm() -> Contestant:
    a, b = map(jnp.asarray, sgemm_operands())
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision="highest"))
    return Contestant(lambda: product(a, b).block_until_ready(), lambda out: {"out": out})


def contestants(case: Case, arrays: dict[str, np.ndarray]) -> Makers:
    # The budget is a process's: without this the first cases would leave nothing for the others.
    measure.spend(-measure.spent())
    _choices.clear()
    make = {"minkunet18": _minkunet, "map3": _map}.get(case.operation, _layer)
    return {"voxax": partial(make, case, arrays)}


def _layer(case: Case, arrays: dict[str, np.ndarray]) -> Contestant:
    what = OPERATIONS[case.operation]
    options: dict[str, Any] = {"kernel_size": what.kernel, "stride": what.stride}
    rows, count = len(arrays["coords"]), len(arrays["out_coords"])
    if what.stride > 1:
        options["capacity"] = vx.bucket_capacity(count)
    if case.operation == "conv3s2":
        options |= {"generative": True, "spatial_shape": tuple(arrays["grid"].tolist())}
    weight = jnp.asarray(arrays["weight"])

    def forward(weight: jax.Array, voxels: vx.Voxels) -> jax.Array:
        return spatially_sparse_conv(voxels, weight, **options).features

    def both(weight: jax.Array, voxels: vx.Voxels, cotangent: jax.Array) -> Any:
        out, pull = jax.vjp(forward, weight, voxels)
        weight_grad, voxels_grad = pull(cotangent)
        return out, weight_grad, voxels_grad.features

    voxels = vx.Voxels.from_coords(arrays["coords"], arrays["features"])
    if not case.trains:
        voxels = vx.plan(lambda v: forward(weight, v), voxels)
        infer = jax.jit(forward)
        return Contestant(
            lambda: jax.block_until_ready(infer(weight, voxels)),
            lambda out: {"out": np.asarray(out)[:count]},
        )
    like = jax.eval_shape(forward, weight, voxels)
    cotangent = jnp.zeros(like.shape).at[:count].set(arrays["cotangent"])
    voxels = vx.plan(lambda v: both(weight, v, cotangent), voxels)
    train = jax.jit(both)

    def in_order(result: Any) -> dict[str, np.ndarray]:
        out, weight_grad, features_grad = map(np.asarray, result)
        return {
            "out": out[:count],
            "features_grad": features_grad[:rows],
            "weight_grad": weight_grad,
        }

    return Contestant(lambda: jax.block_until_ready(train(weight, voxels, cotangent)), in_order)


def _map(case: Case, arrays: dict[str, np.ndarray]) -> Contestant:
    """Build the map alone from sorted coordinates; sort shuffled ones first."""
    coords = jnp.asarray(arrays["coords"])
    ones = jnp.ones((len(coords), 1))

    ordered, capacity = case.mode == "sorted", vx.bucket_capacity(len(coords))
    given = vx.Voxels.from_coords(coords, ones) if ordered else coords

    @jax.jit
    def build(given: Any) -> Any:
        voxels = given if ordered else vx.Voxels.from_coords(given, ones, capacity=capacity)
        return vx.kernel_map(voxels, 3).neighbors, None if ordered else voxels.coords

    call = lambda: jax.block_until_ready(build(given)[0])  # noqa: E731
    return Contestant(call, lambda table: {"pairs": np.asarray((np.asarray(table) >= 0).sum())})


def _minkunet(case: Case, arrays: dict[str, np.ndarray]) -> Contestant:
    """Capacities of all levels fitted ahead; the maps are built in the step."""
    import optax
    from benchmarks.peers.problems import minkunet
    from flax import nnx

    from voxax.geometry import Plan

    model = minkunet()
    model.train() if case.trains else model.eval()
    voxels = vx.Voxels.from_coords(arrays["coords"], arrays["features"])
    plan = Plan.record(model, voxels)
    voxels = plan.attach(voxels, maps=False)
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    count = len(arrays["coords"])
    if not case.trains:

        def logits_of(params: Any, rest: Any, voxels: vx.Voxels) -> jax.Array:
            return nnx.merge(graph, params, rest, copy=True)(voxels).features

        infer = jax.jit(logits_of)
        return Contestant(
            lambda: jax.block_until_ready(infer(params, rest, voxels)),
            lambda logits: {"logits": np.asarray(logits)[:count]},
        )
    labels = jnp.full(voxels.capacity, -1).at[:count].set(arrays["labels"].astype(np.int32))

    def step(params: Any, rest: Any, voxels: vx.Voxels, labels: jax.Array) -> Any:
        def loss_of(params: Any) -> Any:
            module = nnx.merge(graph, params, rest, copy=True)
            logits = module(voxels).features
            each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
            loss = jnp.sum(jnp.where(labels >= 0, each, 0)) / jnp.sum(labels >= 0)
            return loss, nnx.split(module, nnx.Param, ...)[2]

        (loss, rest), grads = jax.value_and_grad(loss_of, has_aux=True)(params)
        return loss, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), rest

    train = jax.jit(step)
    return Contestant(
        lambda: jax.block_until_ready(train(params, rest, voxels, labels)),
        lambda result: {"loss": np.asarray(result[0])},
    )
