"""Points, hashes, quantization and batches against loops."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from sparse_scenes import same, scene, taps  # noqa: E402

import voxax.torch.torchsparse as ts  # noqa: E402
import voxax.torch.torchsparse.nn.functional as F  # noqa: E402
from voxax.torch.torchsparse import version_1_4  # noqa: E402
from voxax.torch.torchsparse.nn.utils import get_kernel_offsets  # noqa: E402

pytestmark = pytest.mark.torch


def fnv(words):
    found = 14695981039346656037
    for word in words:
        found = (found ^ (word % 2**32)) * 1099511628211 % 2**64
    return found - 2**64 if found >= 2**63 else found


def test_hashes_are_fnv_of_the_coordinates():
    coords = scene(rows=20, low=-3).coords
    assert F.sphash(coords).tolist() == [fnv(row) for row in coords.tolist()]
    offsets = get_kernel_offsets(2)
    found = F.sphash(coords, offsets)
    assert found.shape == (8, 20)
    for hashes, tap in zip(found.tolist(), offsets.tolist(), strict=True):
        rows = [[b, x + tap[0], y + tap[1], z + tap[2]] for b, x, y, z in coords.tolist()]
        assert hashes == [fnv(row) for row in rows]


def test_queries_find_rows():
    coords = scene(rows=30).coords
    references = F.sphash(coords)
    queries = F.sphash(coords, get_kernel_offsets(3))
    found = F.sphashquery(queries, references)
    known = {value: row for row, value in enumerate(references.tolist())}
    assert found.tolist() == [[known.get(value, -1) for value in row] for row in queries.tolist()]
    assert found.dtype == torch.int32
    assert F.sphashquery(references, references[:0]).tolist() == [-1] * 30
    twice = torch.cat([references, references])
    assert F.sphashquery(references, twice).tolist() == list(range(30))


@pytest.mark.parametrize(("size", "stride"), [((2, 2, 2), (1, 1, 1)), ((3, 1, 3), (2, 1, 1))])
def test_hash_tables_look_voxels_up(size, stride):
    known, queries = scene(rows=60, low=-2).coords, scene(rows=200, low=-2, seed=2).coords
    queries = torch.cat([queries, queries[:9]])
    table = ts.backend.GPUHashTable(torch.zeros(120).long(), torch.zeros(120).int())
    last = [1, 2, 3, 0]
    table.insert_coords(known[:, last])
    sizes, steps = (torch.tensor(of, dtype=torch.int32) for of in (size, stride))
    offsets = taps(size)
    found = table.lookup_coords(queries[:, last], sizes, steps, len(offsets))
    assert (found.shape, found.dtype) == ((256, len(offsets)), torch.int32)
    assert not found[209:].any()
    at = {tuple(row): number for number, row in enumerate(known.tolist(), 1)}
    for (b, *cell), row in zip(queries.tolist(), found.tolist(), strict=False):
        places = [
            (b, *(c * s + o for c, s, o in zip(cell, stride, tap, strict=True))) for tap in offsets
        ]
        assert row == [at.get(place, 0) for place in places]


def test_voxels_of_points_are_means():
    places = torch.tensor([0, 2, 2, -1, 0, 4, 2])
    feats = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    counts = F.spcount(places, 6)
    assert (counts.tolist(), counts.dtype) == ([2, 0, 3, 0, 1, 0], torch.int32)
    rows = [
        feats[places == row].mean(0) if number else 0 * feats[0]
        for row, number in enumerate(counts.tolist())
    ]
    same(F.spvoxelize(feats, places, counts), torch.stack(rows), feats)


def test_points_of_voxels_are_weighted_sums():
    rows = torch.randint(-1, 5, (40, 8), generator=torch.Generator().manual_seed(0))
    feats = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(40, 8, dtype=torch.float64)
    expected = torch.stack(
        [
            sum((w * feats[row] for row, w in zip(*pair, strict=True) if row >= 0), 0 * feats[0])
            for pair in zip(rows.tolist(), weights, strict=True)
        ]
    )
    same(F.spdevoxelize(feats, rows.int(), weights), expected, feats)
    assert F.spdevoxelize(feats[:0], 0 * rows - 1, weights).shape == (40, 3)


@pytest.mark.parametrize("scale", [1, 4])
def test_trilinear_weights(scale):
    points = torch.rand(30, 3, dtype=torch.float64) * 20 - 10
    rows = torch.randint(-1, 4, (30, 8))
    below = torch.floor(points / scale) * scale
    for point, low, ids, found in zip(
        points, below, rows, F.calc_ti_weights(points, rows, scale), strict=True
    ):
        near = 1 - (point - low) / scale
        expected = [
            float(torch.where(torch.tensor(corner) == 0, near, 1 - near).prod())
            for corner in itertools.product((0, 1), repeat=3)
        ]
        expected = torch.tensor(expected) * (ids >= 0)
        torch.testing.assert_close(found.float(), expected / (expected.sum() + 1e-8))


def test_quantization():
    points = np.random.default_rng(0).normal(size=(300, 3)) * 3
    voxels, first, places = ts.quantize.sparse_quantize(
        points, (0.5, 1.0, 2.0), return_index=True, return_inverse=True
    )
    cells = np.floor(points / [0.5, 1.0, 2.0]).astype(np.int32)
    expected = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    assert voxels.dtype == np.int32
    for one, other in zip((voxels, first, places), expected, strict=True):
        assert np.array_equal(one, other.reshape(one.shape))
    assert np.array_equal(ts.quantize.sparse_quantize(points), np.unique(np.floor(points), axis=0))


def test_batches():
    items = []
    for seed in range(3):
        x = scene(rows=20 + seed, seed=seed, scenes=1)
        sparse = ts.SparseTensor(x.feats.detach().numpy(), x.coords[:, 1:].numpy())
        items.append({"x": sparse, "deep": {"y": np.ones(2) * seed}, "name": "ab"[:seed]})
    batch = ts.collate.sparse_collate_fn(items)
    assert batch["name"] == ["", "a", "ab"]
    assert batch["deep"]["y"].tolist() == [[0, 0], [1, 1], [2, 2]]
    assert torch.bincount(batch["x"].C[:, 0]).tolist() == [20, 21, 22]
    assert torch.equal(batch["x"].C[20:41, 1:], items[1]["x"].C)
    assert batch["x"].C.dtype == torch.int32
    assert ts.collate.sparse_collate_fn([1, 2]) == [1, 2]


@pytest.mark.parametrize("version", [ts, version_1_4])
def test_batches_of_labels(version):
    """One number for each voxel, as in the data sets of TorchSparse's examples."""
    coords, labels = torch.arange(6).view(2, 3).int(), torch.tensor([1, 2])
    items = [{"y": version.SparseTensor(coords=coords, feats=labels)} for _ in range(2)]
    assert version.utils.collate.sparse_collate_fn(items)["y"].feats.tolist() == [1, 2, 1, 2]
    both = [items[0]["y"], version.SparseTensor(labels[:, None], coords)]
    with pytest.raises(ValueError, match=r"\[2\] and \[2, 1\]: expected as many channels"):
        version.utils.collate.sparse_collate(both)


def test_point_tensors_share_what_was_looked_up():
    points = ts.PointTensor(torch.ones(4, 2), torch.zeros(4, 4))
    points.idx_query[1] = "rows"
    total = points + points
    assert total.idx_query is points.idx_query
    assert total.additional_features is points.additional_features
    assert torch.equal(total.F, 2 * points.F)
