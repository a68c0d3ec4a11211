"""``vx.explain`` counts the items of a row, and names the kernel of a TPU that they choose."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from samples import make_voxels, make_weight
from voxax.explanation.tpu_rows import rows_moved
from voxax.hardware import HardwareInfo
from voxax.hardware.target import targeting
from voxax.kernels.implicit_gemm.tpu_items import BODY
from voxax.nn.functional import spatially_sparse_conv

CHIP = HardwareInfo(platform="tpu", device_kind="some", vmem_bytes=2**27, smem_bytes=2**20, cores=1)


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")


def line():
    """300 voxels in a row along the last axis: each has its two neighbors and itself."""
    place = np.arange(300)
    return np.stack([0 * place, 0 * place, 0 * place, place], axis=1)


def cube():
    """8x8x8 voxels: most have 26 neighbors."""
    return np.insert(np.indices((8, 8, 8)).reshape(3, -1).T, 0, 0, axis=1)


def planned(coords, channels):
    """Voxels whose map exists before a program is compiled, and their weight."""
    weight = make_weight(3, 3, channels, channels)
    host = jax.tree.map(np.asarray, make_voxels(coords, channels=channels))
    voxels = vx.plan(lambda v: spatially_sparse_conv(v, weight), host)
    return jax.tree.map(jnp.asarray, voxels), weight


def explained(voxels, weight, *args):
    with targeting(CHIP):
        report = vx.explain(
            lambda w, *v: spatially_sparse_conv(*(v or (voxels,)), w, fwd_algo="auto").features,
            weight, *args, platform="tpu",
        )  # fmt: skip
    (row,) = report
    return row, str(report)


def test_few_neighbors_take_lists():
    row, text = explained(*planned(line(), 96))
    moved = row.rows_moved
    # Both outer taps have one item for each of 38 groups of 8 rows. Groups that are their own
    # neighbors have none of the middle tap: all but the last one, which has 4 rows.
    assert moved.items == (2 * 38 + 1) / 300
    assert moved.neighbors == pytest.approx((3 * 300 - 2) / 300)
    assert moved.counted
    assert moved.by_items
    assert f"product 0: lists of items, with {moved.items:.2g} items and 3 neighbors a row" in text
    assert "not measured; for so many neighbors and channels they come first" in text


@pytest.mark.parametrize(
    ("cloud", "channels", "why"),
    [
        (cube, 96, "lists are for fewer neighbors"),
        (line, 48, "not measured; for so many neighbors and channels they come first"),
        (line, 16, "lists do not fit the taps, channels or rows on this chip"),
    ],
    ids=["many_neighbors", "few_channels", "too_few_channels"],
)
def test_windows_name_their_reason(cloud, channels, why):
    row, text = explained(*planned(cloud(), channels))
    assert not row.rows_moved.by_items
    assert row.rows_moved.why == why
    assert f"windows of rows, with {row.rows_moved.items:.2g} items" in text


def test_a_map_of_the_program_itself_has_no_lists():
    voxels, weight = planned(line(), 96)
    bare = make_voxels(line(), channels=96)
    row, _ = explained(voxels, weight, bare)
    assert not row.rows_moved.by_items
    assert row.rows_moved.counted
    assert "finds its own map" in row.rows_moved.why
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), bare)
    row, text = explained(voxels, weight, shapes)
    assert not row.rows_moved.counted
    assert f"~{row.rows_moved.items:.2g} items" in text
    assert "~ pairs were not counted" in text


@pytest.mark.parametrize(
    ("source", "why"),
    [("measured", "the faster kernel"), ("cached", "the faster kernel"), ("pinned", "the only")],
)
def test_a_measured_choice_is_the_faster_kernel(source, why):
    row, _ = explained(*planned(line(), 96))
    choice = dataclasses.replace(row.choice, source=source)
    assert BODY in choice.parameters
    moved = rows_moved(choice, np.full((8, 27), -1, np.int32), True, CHIP)
    assert moved.why.startswith(why)
    assert (moved.items, moved.neighbors) == (0, 0)


@pytest.mark.parametrize("product", ["dgrad", "wgrad"])
def test_other_products_have_no_lists(product):
    voxels, weight = planned(line(), 96)

    def loss(w, x):
        return spatially_sparse_conv(voxels.replace_features(x), w).features.sum()

    with targeting(CHIP):
        report = vx.explain(jax.grad(loss, (0, 1)), weight, voxels.features, platform="tpu")
    rows = {row.choice.problem.product: row for row in report}
    assert rows["forward"].rows_moved is not None
    assert rows[product].rows_moved is None
