"""The GPU's kernels in Triton's interpreter, where tiles, blocks, parts and slices are several.

Small maps are in ``test_every_form.py`` and ``test_gpu_sample.py``, under the form ``triton_16``.
"""

import jax
import numpy as np
import pytest
from benchmarks.gpu.lowered import CHIPS, problem_of
from benchmarks.workloads import random_cube

import problems
import voxax as vx
from oracle import relative_error
from samples import make_voxels, slow_unless
from voxax.geometry.host import invert_table, pair_lists
from voxax.kernels.depthwise import gpu as depthwise_gpu
from voxax.kernels.explicit_gemm import xla
from voxax.kernels.implicit_gemm import gpu
from voxax.kernels.implicit_gemm.tap_order import sort_by_taps

TOLERANCE = {"float32": 2e-6, "bfloat16": 1e-2, "float16": 2e-3}


def tiles(rows, in_block, out_block, splits=1, wgrad=False):
    values = {
        "body": "triton",
        "gemm_block_size" if wgrad else "fwd_block_size": rows,
        "in_block": in_block,
        "out_block": out_block,
        "num_stages": 2,
        "num_warps": 4,
        "interpret": 1,
        **({"split_k_factor": splits} if wgrad or splits > 1 else {}),
    }
    return tuple(sorted(values.items()))


def executed(kernel, parameters, problem, operands, kmap):
    views = problems.views_of(kmap, kernel, problem, parameters)
    run = jax.jit(lambda a, b, v: kernel.apply(problem, parameters, a, b, v))
    out = run(*operands, views)
    assert out.dtype == operands[0].dtype
    return np.asarray(out, np.float32)


@problems.needs_triton
@pytest.mark.parametrize(
    ("product", "options", "dtype", "channels", "parameters"),
    [
        slow_unless(fast, *case)
        for fast, *case in (
            # Two blocks of channels on both sides, the last ones partly padding; two tiles of rows.
            (False, "forward", {"kernel_size": 3}, "bfloat16", (17, 20), tiles(64, 16, 16)),
            # Taps cut into more slices than some tiles have taps.
            (
                False,
                "dgrad",
                {"kernel_size": 2, "stride": 2},
                "float16",
                (9, 5),
                tiles(64, 16, 16, 8),
            ),
            # More parts than most taps have steps of pairs.
            (
                True,
                "wgrad",
                {"kernel_size": 2, "stride": 2},
                "float32",
                (17, 3),
                tiles(16, 16, 16, 5, wgrad=True),
            ),
            (False, "dgrad", {"kernel_size": 3}, "float32", (40, 65), tiles(32, 32, 64)),
            (False, "forward", {"kernel_size": 3}, "bfloat16", (64, 64), tiles(64, 64, 64, 4)),
            (
                False,
                "wgrad",
                {"kernel_size": 3},
                "bfloat16",
                (33, 20),
                tiles(64, 64, 32, 2, wgrad=True),
            ),
        )
    ],
)
def test_products_are_those_of_explicit_gemm(product, options, dtype, channels, parameters):
    kmap = vx.kernel_map(make_voxels(random_cube(90), capacity=100), **options)
    problem = problems.of_map(product, kmap, channels, dtype, "gpu")
    operands = problems.operands_of(problem, kmap)
    actual = executed(problems.kernel_of(problem, parameters), parameters, problem, operands, kmap)
    expected = executed(xla.EXPLICIT_GEMM, xla.IM2COL, problem, operands, kmap)
    assert np.isfinite(actual).all()
    assert relative_error(actual, expected) < TOLERANCE[dtype]


def test_few_rows_are_cut_into_slices():
    """Check the default without measurements, also with fewer programs than cores."""
    h100 = CHIPS["cuda"].info
    few = problem_of("forward")
    many = problems.changed(few, out_capacity=10**6)
    splits = [dict(p).get("split_k_factor", 1) for p in gpu.space(few, h100)]
    assert splits[0] == 1
    assert set(splits) == {1, 2, 8}
    assert all(dict(p).get("split_k_factor", 1) == 1 for p in gpu.space(many, h100))
    assert gpu.space(few, h100)[0] != gpu.space(many, h100)[0]


def random_problem(product, kind, rng):
    """``(problem, operands, views)`` of a bare table; NaN in rows that no pair touches."""
    ins, outs, taps, groups = 30, 40, 5, 2 if kind == "grouped" else 1
    c_in, c_out = (6, 6) if kind == "depthwise" else (6, 4)
    table = np.full((outs, taps), -1, np.int32)
    for tap in range(taps):
        there = np.flatnonzero(rng.random(outs) < 0.4)[:ins]
        table[there, tap] = rng.permutation(ins)[: len(there)]
    problem = problems.make_problem(
        product, kind, ins, outs, taps, c_in, c_out, groups, "float32", "highest", False, "gpu"
    )

    def draw(rows, channels, used):
        values = np.where(used[:, None], rng.normal(size=(rows, channels)), np.nan)
        return values.astype(np.float32)

    x = draw(ins, c_in, np.isin(np.arange(ins), table))
    dy = draw(outs, c_out, (table >= 0).any(1))
    w = rng.normal(size=problem.weight_shape).astype(np.float32)
    transposed = invert_table(table, ins)
    pairs, starts = pair_lists(table)
    views = {
        "neighbors": table,
        "transposed_neighbors": transposed,
        "sorted_neighbors": np.asarray(sort_by_taps(table)),
        "transposed_sorted_neighbors": np.asarray(sort_by_taps(transposed)),
        "pairs": pairs,
        "pair_starts": starts,
    }
    return problem, {"forward": (x, w), "dgrad": (dy, w), "wgrad": (x, dy)}[product], views


@problems.needs_triton
@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
@pytest.mark.parametrize("kind", [slow_unless(False, "grouped"), slow_unless(False, "depthwise")])
def test_other_kinds_of_weights_on_bare_tables(kind, product, rng):
    problem, operands, views = random_problem(product, kind, rng)
    body = depthwise_gpu if kind == "depthwise" else gpu
    parameters = dict(body.space(problem, CHIPS["cuda"].info)[0])
    sizes = dict.fromkeys(("in_block", "out_block", "channel_block"), 16)
    sizes |= {"fwd_block_size": 16, "gemm_block_size": 16, "split_k_factor": 2}
    parameters |= {name: size for name, size in sizes.items() if name in parameters}
    chosen = tuple(sorted({**parameters, "interpret": 1}.items()))
    actual = problems.kernel_of(problem, chosen).apply(problem, chosen, *operands, views)
    expected = xla.apply(problem, xla.IM2COL, *operands, views)
    assert np.isfinite(np.asarray(actual)).all()
    assert relative_error(actual, expected) < TOLERANCE["float32"]
