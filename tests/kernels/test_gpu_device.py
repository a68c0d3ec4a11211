"""Compare results of a GPU with explicit_gemm there and with loops in float64.

VOXAX_TEST_PLATFORM=cuda,cpu pytest -n 0 -m gpu
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.gpu.lowered import CHIPS, TRITON, custom_calls
from benchmarks.workloads import random_cube
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from jax.sharding import PartitionSpec as P

import problems
import voxax as vx
from conformance.cases import TOLERANCE, make_inputs, run
from conformance.layouts import BATCH_SIZE
from conformance.slopes import check_slopes
from conformance.test_gpu_sample import RELATIONS, SAMPLE
from oracle import check_sites, relative_error
from samples import make_voxels
from voxax import _compat
from voxax.hardware import HardwareInfo, describe, targeting
from voxax.kernels import lookup
from voxax.kernels.explicit_gemm import xla
from voxax.kernels.implicit_gemm import gpu
from voxax.models import ResidualBlock
from voxax.nn.functional import spatially_sparse_conv

MAPS = {
    "submanifold": {"kernel_size": 3},
    "strided": {"kernel_size": 2, "stride": 2},
    "wide": {"kernel_size": 5, "dilation": 2},
}
# Of sums of 1,728 products in another order; rounding errors grow with the root of their number.
LIMIT = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
CASES = [
    (relation, product, kind, dtype, channels)
    for relation, channels in (("submanifold", 64), ("strided", 5), ("wide", 130))
    for product in ("forward", "dgrad", "wgrad")
    for kind in ("dense", "depthwise")
    for dtype in LIMIT
]


def the_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip(f"no GPU: JAX runs on {jax.default_backend()}")
    return jax.devices()[0]


def executed(kernel, parameters, problem, operands, kmap):
    """The product, in float32."""
    views = problems.views_of(kmap, kernel, problem, parameters)
    apply = functools.partial(kernel.apply, problem, parameters)
    return np.asarray(jax.jit(apply)(*operands, views), np.float32)


def compare(candidates, relation, product, kind, dtype, channels, kernel=None):
    """``candidates``: ``problem`` to the parameters that ``kernel``, or their own, is to run."""
    kmap = vx.kernel_map(make_voxels(random_cube(3000), capacity=2048), **MAPS[relation])
    problem = problems.of_map(product, kmap, (channels, channels), dtype, "gpu", kind)
    operands = problems.operands_of(problem, kmap)
    expected = executed(xla.EXPLICIT_GEMM, xla.IM2COL, problem, operands, kmap)
    assert np.isfinite(expected).all()
    for parameters in candidates(problem):
        chosen = kernel or problems.kernel_of(problem, parameters)
        actual = executed(chosen, parameters, problem, operands, kmap)
        again = executed(chosen, parameters, problem, operands, kmap)
        np.testing.assert_array_equal(actual, again)
        limit = LIMIT[dtype] * max(1, (kmap.num_offsets * channels / 1728) ** 0.5)
        assert relative_error(actual, expected) < limit, parameters


@pytest.mark.gpu
@pytest.mark.parametrize(("relation", "product", "kind", "dtype", "channels"), CASES)
def test_every_candidate_agrees_with_explicit_gemm(relation, product, kind, dtype, channels):
    facts = describe(the_gpu())

    def candidates(problem):
        found = [p for p in problems.space_of(problem, facts) if ("body", "triton") in p]
        assert found, gpu.unfit(problem, facts)
        return found

    compare(candidates, relation, product, kind, dtype, channels)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize(("relation", "channels"), [("submanifold", 64), ("strided", 72)])
def test_cutlass_agrees_with_explicit_gemm(relation, product, dtype, channels):
    facts, (algorithm,) = describe(the_gpu()), lookup("cutlass_implicit_gemm")

    def candidates(problem):
        reason = algorithm.supports(problem, facts)
        if reason is not None:
            pytest.skip(f"cutlass_implicit_gemm {reason}")
        return algorithm.space(problem, facts)

    compare(candidates, relation, product, "dense", dtype, channels, algorithm)


@pytest.mark.gpu
@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: "-".join(map(str, case)))
@pytest.mark.filterwarnings("ignore:a kernel of extent")
def test_layers_are_the_reference(case):
    the_gpu()
    relation, size, ndim, channels, dtype, layout = case
    operator = RELATIONS[relation](size, channels)
    inputs = make_inputs(operator, ndim, dtype, layout)
    voxels, params, sites, exact = inputs
    name = "implicit" if relation == "depthwise" else "implicit_gemm"
    out = run(operator, voxels, params, name)
    expected = operator.reference(sites, exact, BATCH_SIZE)
    check_sites(out, expected, TOLERANCE[dtype])
    check_slopes(operator, inputs, expected, out, name)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["implicit_gemm", "cutlass_implicit_gemm"])
def test_a_layer_with_its_map_runs_in_one_program(algorithm):
    """Check that two runs agree bit by bit, with no call to the host before the end."""
    facts = describe(the_gpu())
    kmap = vx.kernel_map(make_voxels(random_cube(9)), 3)
    problem = problems.of_map("forward", kmap, (32, 32), "bfloat16", "gpu")
    reason = lookup(algorithm)[0].supports(problem, facts)
    if reason is not None:
        pytest.skip(f"{algorithm} {reason}")
    voxels = make_voxels(random_cube(3000), 32, capacity=4096)
    voxels = voxels.replace_features(voxels.features.astype(jnp.bfloat16))
    weight = jnp.asarray(np.random.default_rng(0).normal(size=(27, 32, 32)), jnp.bfloat16)

    def loss(w, v):
        with vx.algorithms(forward=algorithm, backward=algorithm):
            out = spatially_sparse_conv(v, w, 3)
        return jnp.sum(out.features.astype(jnp.float32) ** 2)

    step = jax.jit(jax.grad(loss))
    with jax.transfer_guard("disallow"):
        first, second = step(weight, voxels), step(weight, voxels)
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LIMIT)
def test_a_block_in_inference_is_that_of_explicit_gemm(dtype):
    """The Triton kernels apply what follows; XLA's product does not."""
    the_gpu()
    voxels = make_voxels(random_cube(3000), 16, capacity=4096)
    model = ResidualBlock(16, 64, use_bias=True, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
    model.eval()
    graph, state = nnx.split(model)
    found = {}
    for name in ("implicit_gemm", "explicit_gemm"):
        with vx.algorithms(forward=name):
            run = jax.jit(lambda s, v: nnx.merge(graph, s)(v).features)
            assert custom_calls(run.lower(state, voxels)).count(TRITON) == 2 * name.startswith("im")
            found[name] = np.asarray(run(state, voxels), np.float32)
    assert relative_error(*found.values()) < 2 * LIMIT[dtype]


def shard_losses(mesh, w, voxels):
    """Loss and gradient over shards: the leaves of ``voxels`` have an axis for them in front."""

    def shard(w, v):
        own = jax.tree.map(lambda leaf: leaf[0], v)
        out = spatially_sparse_conv(own, w, 3, fwd_algo="implicit_gemm", bwd_algo="implicit_gemm")
        return jax.lax.psum(jnp.sum(out.features.astype(jnp.float32) ** 2), "data")

    specs = {"in_specs": (P(), P("data")), "out_specs": (P(), P())}
    return jax.shard_map(jax.value_and_grad(shard), mesh=mesh, **specs)(w, voxels)


def shards_and_weight(number):
    """Return the scene with other features for each shard."""
    rng = np.random.default_rng(0)
    scene = make_voxels(random_cube(300), 16, capacity=320)
    shards = [
        scene.replace_features(scene.features * factor)
        for factor in rng.normal(size=number).astype(np.float32)
    ]
    weight = jnp.asarray(rng.normal(size=(27, 16, 16)), jnp.float32)
    return shards, jax.tree.map(lambda *leaves: jnp.stack(leaves), *shards), weight


@pytest.mark.gpu
def test_shards_on_several_gpus_are_those_on_one():
    the_gpu()
    number = len(jax.devices())
    if number < 2:
        pytest.skip("one GPU")
    shards, stacked, weight = shards_and_weight(number)
    mesh = jax.make_mesh((number,), ("data",))
    loss, slope = jax.jit(functools.partial(shard_losses, mesh))(weight, stacked)
    one = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1])
    alone = [
        jax.jit(functools.partial(shard_losses, one))(weight, jax.tree.map(lambda a: a[None], v))
        for v in shards
    ]
    assert relative_error(np.asarray(loss), sum(float(each) for each, _ in alone)) < 1e-5
    assert relative_error(np.asarray(slope), sum(np.asarray(each) for _, each in alone)) < 1e-5


@problems.needs_triton
@pytest.mark.slow
def test_shards_lower_for_several_gpus():
    """The Triton kernels are inside of the shards, and sums go over the GPUs."""
    chip = CHIPS["cuda"]
    device = AbstractDevice(device_kind=chip.kind, num_cores=None, platform=chip.platform)
    mesh = AbstractMesh((2,), ("data",), abstract_device=device)
    _, stacked, weight = shards_and_weight(2)
    with use_abstract_mesh(mesh), targeting(chip.info), _compat.fresh_trace():
        traced = jax.jit(functools.partial(shard_losses, mesh)).trace(weight, stacked)
        lowered = traced.lower(lowering_platforms=("cuda",))
    assert custom_calls(lowered) == [TRITON, TRITON], "forward and wgrad"
    assert lowered.as_text().count("all_reduce") == 2, "of the loss and of the gradient"


@problems.needs_triton
@pytest.mark.slow
def test_the_comparison_itself_runs():
    """Interpret kernels for a chip that is not present."""
    chip = HardwareInfo(
        platform="gpu", device_kind="some", shared_memory_bytes=2**16, cores=8, generation="9.0"
    )

    def interpreted(problem):
        return [tuple(sorted((*gpu.space(problem, chip)[0], ("interpret", 1))))]

    compare(interpreted, "strided", "forward", "dense", "bfloat16", 5)
