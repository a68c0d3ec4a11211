"""Kernel maps against dictionaries of voxels, with the native library and without."""

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from voxax import InputError  # noqa: E402
from voxax.torch.core import kernel_map  # noqa: E402
from voxax.torch.core.sites import Sites  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(params=["native", "numpy"])
def library(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(kernel_map.host, "available", lambda: False)
    return request.param


def rows_of(ndim, number, low=-4, high=5, seed=0):
    cells = np.asarray(list(itertools.product(range(2), *[range(low, high)] * ndim)), np.int32)
    return np.random.default_rng(seed).permutation(cells)[:number]


def offsets_of(ndim, number, seed=1):
    cells = np.asarray(list(itertools.product(*[range(-2, 3)] * ndim)), np.int32)
    return np.random.default_rng(seed).permutation(cells)[:number]


def sites(rows):
    return Sites(torch.from_numpy(rows.copy()), None, 2)


def read(rows, out, offsets, stride):
    """The table by a dictionary."""
    at = {tuple(row): i for i, row in enumerate(rows.tolist())}
    found = [
        [at.get((row[0], *(np.asarray(row[1:]) * stride + offset)), -1) for offset in offsets]
        for row in out
    ]
    return torch.tensor(found, dtype=torch.int32).reshape(len(out), len(offsets))


@pytest.mark.parametrize("ndim", [1, 2, 3, 4, 5])
def test_any_offsets_on_the_same_voxels(ndim, library):
    number = min(60, 2 * 9**ndim)
    rows, offsets = rows_of(ndim, number), offsets_of(ndim, min(7, 5**ndim))
    found = sites(rows).kept(offsets)
    assert torch.equal(found.neighbors, read(rows, rows, offsets, 1))
    for mirrored in (np.concatenate([offsets, 0 * offsets[:1], -offsets[::-1]]), offsets):
        relation = sites(rows).kept(mirrored)
        assert relation.symmetric == (len(mirrored) > len(offsets))
        expected = kernel_map.invert(relation.neighbors, len(rows))
        assert torch.equal(relation.backwards, expected)


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [None, 2])
def test_onto_given_voxels(ndim, stride, library):
    rows, out = rows_of(ndim, min(80, 9**ndim)), rows_of(ndim, min(30, 9**ndim), seed=2)
    offsets, steps = offsets_of(ndim, 5), None if stride is None else [stride] * ndim
    found = sites(rows).onto(sites(out), offsets, steps)
    expected = read(rows, out, offsets, stride or 1)
    assert torch.equal(found.neighbors, expected)
    assert found.in_rows == len(rows)
    assert torch.equal(found.transpose().neighbors, kernel_map.invert(expected, len(rows)))


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_expansion(ndim, library):
    rows, offsets = rows_of(ndim, min(40, 9**ndim)), offsets_of(ndim, 5)
    here = sites(rows)
    found, out = here.expanded(offsets)
    expected, table = {}, {}
    for row, k in itertools.product(range(len(rows)), range(len(offsets))):
        cell = (int(rows[row, 0]), *(rows[row, 1:] + offsets[k]).tolist())
        table[expected.setdefault(cell, len(expected)), k] = row
    assert list(map(tuple, out.indices.tolist())) == list(expected)
    neighbors = torch.full((len(expected), len(offsets)), -1, dtype=torch.int32)
    for (m, k), row in table.items():
        neighbors[m, k] = row
    assert torch.equal(found.neighbors, neighbors)
    assert torch.equal(found.backwards, kernel_map.invert(neighbors, len(rows)))
    assert here.expanded(offsets)[0] is found


@pytest.mark.parametrize("ndim", [1, 2, 3, 4])
def test_boxes_with_and_without_the_kernels(ndim, monkeypatch):
    rows, ones = rows_of(ndim, min(150, 7**ndim), 0, 7), [1] * ndim
    cases = [
        ([3] * ndim, [2] * ndim, ones, ones, False),
        ([2] * ndim, [2] * ndim, ones, ones, True),
    ]

    def maps():
        return [kernel_map.reached_map(rows, *sizes, [14] * ndim, back) for *sizes, back in cases]

    found = maps()
    monkeypatch.setattr(kernel_map.host, "available", lambda: False)
    for (one, out), (other, expected) in zip(found, maps(), strict=True):
        assert (out == expected).all()
        assert torch.equal(one.neighbors, other.neighbors)
        assert torch.equal(one.backwards, other.backwards)


def test_no_rows(library):
    here, offsets = sites(np.zeros((0, 4), np.int32)), offsets_of(3, 4)
    assert here.kept(offsets).neighbors.shape == (0, 4)
    assert here.onto(sites(rows_of(3, 5)), offsets).neighbors.tolist() == [[-1] * 4] * 5
    relation, out = here.expanded(offsets)
    assert relation.in_rows == len(out.indices) == 0


def test_bad_input():
    rows = rows_of(3, 20)
    twice = sites(np.concatenate([rows, rows[:1]]))
    for call in (twice.kept, twice.expanded, lambda offsets: sites(rows).onto(twice, offsets)):
        with pytest.raises(InputError, match="occur twice"):
            call(offsets_of(3, 4))
    with pytest.raises(InputError, match="32 bits"):
        sites(rows + np.asarray([0, 2**31 - 6, 0, 0], np.int32)).expanded(offsets_of(3, 125))
    with pytest.raises(InputError, match="batch index of 2"):
        sites(rows + np.asarray([1, 0, 0, 0], np.int32))
    with pytest.raises(InputError, match="odd"):
        sites(rows).submanifold([2] * 3, [1] * 3)
