"""The kernels of ``cutlass_implicit_gemm``, compiled for Hopper, where the package is installed.

No GPU is needed: CUTLASS' Python DSL compiles them to PTX, which ``ptx.py`` interprets, one block
after another, and the results are compared with those of ``explicit_gemm``.
"""

import re
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.gpu.lowered import CHIPS, custom_calls, lower, lowered_kernel, problem_of
from benchmarks.workloads import random_cube

import problems
import ptx
import voxax as vx
from oracle import relative_error
from samples import make_voxels
from voxax.geometry.host import pair_lists
from voxax.kernels import lookup
from voxax.kernels.explicit_gemm import xla
from voxax.kernels.implicit_gemm import gpu_cutlass
from voxax.kernels.implicit_gemm.tap_order import sort_by_taps
from voxax.nn.functional import spatially_sparse_conv

(CUTLASS,) = lookup("cutlass_implicit_gemm")
CHIP = CHIPS["cuda"]
TOLERANCE = {"bfloat16": 1e-2, "float16": 2e-3}
DSL_CALL = "CuteDSLRT_NvJaxCutlassCall"


def chosen(tile, slices):
    return (("accumulator_type", "float32"), ("mma_tile", tile), ("split_k_slices", slices))


@pytest.fixture(scope="module")
def folder():
    """Return the folder in which the DSL writes PTX, which it does for Hopper."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        # Read once, when the DSL is imported.
        patch.setenv("CUTE_DSL_ARCH", "sm_90a")
        patch.setenv("CUTE_DSL_KEEP", "ptx")
        patch.setenv("CUTE_DSL_DUMP_DIR", name)
        pytest.importorskip("cutlass.jax", reason="needs CUTLASS: pip install 'voxax[cutlass]'")
        yield Path(name)


@pytest.fixture
def kept(folder):
    """The only PTX that was compiled in this test, or since it was asked for last."""
    for path in folder.iterdir():
        path.unlink()

    def only():
        (path,) = folder.glob("*.ptx")
        text = path.read_text()
        path.unlink()
        return text

    return only


@pytest.fixture
def interpreted(kept, monkeypatch):
    """Inside, a launch compiles its kernel and interprets the PTX; what is given takes the bytes of
    shared memory that a block may have, whether copies are eager, and a seed."""
    from voxax.kernels.implicit_gemm import gpu_cutlass_kernel

    options = {}
    real = gpu_cutlass_kernel.call

    def call(launch, tile, sizes, out):
        def run(*operands):
            shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in operands]
            traced = jax.jit(real(launch, tile, sizes, out)).trace(*shapes)
            traced.lower(lowering_platforms=("cuda",))
            program = ptx.parse(kept())
            assert program.threads == tile.threads
            result = np.full(out.shape, np.nan, out.dtype)
            memory = ptx.Memory([*map(np.asarray, operands), result])
            ptx.run(program, memory, gpu_cutlass_kernel.blocks_of(tile, sizes), **options)
            return jnp.asarray(memory.array(len(operands), result))

        return run

    monkeypatch.setattr(gpu_cutlass_kernel, "call", call)
    return options.update


# Few taps: each instruction is interpreted, thread by thread.
SUBMANIFOLD, STRIDED = {"kernel_size": (3, 3, 1)}, {"kernel_size": 2, "stride": 2}
LATE, EAGER = False, True
CASES = [
    # Channels that are not all of a tile's, two steps of them; two tiles of rows, the last in part.
    ("forward", SUBMANIFOLD, "bfloat16", (72, 40), 3, 1, LATE),
    ("forward", STRIDED, "float16", (8, 136), 0, 1, EAGER),
    ("dgrad", STRIDED, "bfloat16", (16, 72), 1, 2, LATE),
    # Symmetric: the same map with its taps reversed. More slices than some tiles have taps.
    ("dgrad", SUBMANIFOLD, "float16", (24, 32), 2, 8, EAGER),
    ("wgrad", STRIDED, "bfloat16", (72, 24), 3, 1, LATE),
    ("wgrad", STRIDED, "float16", (136, 8), 2, 4, EAGER),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("product", "options", "dtype", "channels", "tile", "slices", "eager"), CASES
)
def test_what_was_compiled_gives_the_products_of_explicit_gemm(
    product, options, dtype, channels, tile, slices, eager, interpreted
):
    kmap = vx.kernel_map(make_voxels(random_cube(90), capacity=100), **options)
    problem = problems.of_map(product, kmap, channels, dtype, "gpu")
    operands = problems.operands_of(problem, kmap)
    parameters = chosen(tile, slices)
    space = gpu_cutlass.shared_bytes(problem, parameters)
    interpreted(shared=space, eager=eager, seed=tile)

    def result(algorithm, parameters):
        views = problems.views_of(kmap, algorithm, problem, parameters)
        return np.asarray(algorithm.apply(problem, parameters, *operands, views), np.float32)

    actual = result(CUTLASS, parameters)
    expected = result(xla.EXPLICIT_GEMM, xla.IM2COL)
    assert np.isfinite(actual).all()
    assert relative_error(actual, expected) < TOLERANCE[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("product", ["forward", "wgrad"])
def test_groups(product, interpreted, rng):
    """Each multiplies its own channels."""
    rows, taps, groups, c_in, c_out = 40, 3, 2, 16, 8
    x, dy = (rng.normal(size=(rows, groups * c)).astype(np.float16) for c in (c_in, c_out))
    w = rng.normal(size=(taps, groups, c_in, c_out)).astype(np.float16)
    table = np.stack([rng.permutation(rows) for _ in range(taps)], 1).astype(np.int32)
    table[rng.random(table.shape) < 0.5] = -1
    problem = problems.make_problem(
        product, "grouped", rows, rows, taps, groups * c_in, groups * c_out, groups, "float16",
        "highest", False, "gpu",
    )  # fmt: skip
    pairs, starts = pair_lists(table)
    views = {
        "sorted_neighbors": np.asarray(sort_by_taps(table)),
        "pairs": pairs,
        "pair_starts": starts,
    }
    views = {name: jnp.asarray(view) for name, view in views.items()}
    interpreted(shared=2**17, eager=False, seed=0)
    a, b = map(jnp.asarray, (x, w) if product == "forward" else (x, dy))
    actual = np.asarray(CUTLASS.apply(problem, chosen(3, 1), a, b, views), float)
    expected = np.zeros(actual.shape)
    for tap in range(taps):
        there = np.flatnonzero(table[:, tap] >= 0)
        picked = x[table[there, tap]].astype(float).reshape(-1, groups, c_in)
        if product == "forward":
            sums = np.einsum("ngi,gio->ngo", picked, w[tap].astype(float))
            expected[there] += sums.reshape(len(there), -1)
        else:
            slopes = dy[there].astype(float).reshape(-1, groups, c_out)
            expected[tap] = np.einsum("ngi,ngo->gio", picked, slopes)
    assert relative_error(actual, expected) < TOLERANCE["float16"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("product", "dtype", "tile"),
    [
        ("forward", "bfloat16", 0),
        ("dgrad", "float16", 1),
        ("wgrad", "bfloat16", 2),
        ("forward", "float16", 3),
        ("wgrad", "float16", 0),
    ],
)
def test_a_product_lowers_for_hopper(product, dtype, tile, kept):
    """Check that products use tensor cores, with copies that are awaited later."""
    problem = problem_of(product, dtype=dtype, channels=(64, 128))
    lowered = lowered_kernel(CHIP, problem, chosen(tile, 1), CUTLASS.apply)
    (call,) = custom_calls(lowered)
    assert call.startswith(DSL_CALL)
    text = kept()
    assert ".target sm_90a" in text
    half = "bf16" if dtype == "bfloat16" else "f16"
    for instruction in (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{half}.{half}.f32",
        "ldmatrix.sync.aligned.m8n8.x4",
        "cp.async.cg.shared.global",
        "cp.async.wait_group",
    ):
        assert instruction in text
    assert ".local" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("folder")
def test_a_layer_lowers_with_its_map():
    """Strided and back, forward and backward: nothing but these kernels leaves XLA."""
    voxels = make_voxels(random_cube(40), 8, capacity=48)
    voxels = voxels.replace_features(voxels.features.astype(jnp.bfloat16))
    weight = jnp.ones((27, 8, 8), jnp.bfloat16)

    def loss(w, v):
        pins = {"fwd_algo": "cutlass_implicit_gemm", "bwd_algo": "cutlass_implicit_gemm"}
        down = spatially_sparse_conv(v, w, 3, 2, **pins)
        up = spatially_sparse_conv(down, w, 3, 2, transposed=True, out_voxels=v, **pins)
        return up.features.astype(jnp.float32).sum()

    lowered = lower(CHIP, jax.value_and_grad(loss), weight, voxels)
    assert {name.rsplit("_", 1)[0] for name in custom_calls(lowered)} == {DSL_CALL}
    calls = re.findall(r"call @cutlass_call_inner\w*\(", lowered.as_text())
    assert len(calls) == 5, "two forward, two wgrad, one dgrad"
