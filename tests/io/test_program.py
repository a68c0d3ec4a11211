"""Programs in files: written here, read back, and the same numbers."""

import json
import zipfile

import jax
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.hardware import HardwareInfo
from voxax.io import program as programs
from voxax.io.program import export_program, load_program
from voxax.nn.modules import SpatiallySparseConv

pytest.importorskip("flatbuffers")


class Network(nnx.Module):
    """Down, along and up again."""

    def __init__(self, rngs):
        self.down = SpatiallySparseConv(3, 4, 2, 2, rngs=rngs)
        self.along = SpatiallySparseConv(4, 4, 3, rngs=rngs)
        self.up = SpatiallySparseConv(4, 5, 2, 2, transposed=True, rngs=rngs)

    def __call__(self, voxels):
        coarse = self.along(self.down(voxels))
        return self.up(coarse, out_voxels=voxels)


def clouds(rng, number):
    rows = np.unique(rng.integers([0, -5, -5, -5], [2, 5, 6, 4], (number, 4)), axis=0)
    rows = rng.permutation(rows).astype(np.int32)
    return rows, rng.normal(size=(len(rows), 3)).astype(np.float32)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("program") / "network.voxax"
    model = Network(nnx.Rngs(0))
    about = export_program(model, path, capacity=96, channels=3, batch_size=2)
    return model, path, about


def test_a_program_computes_what_the_model_does(written, rng):
    model, path, _ = written
    program = load_program(path)
    for number in (60, 0):
        coords, features = clouds(rng, number)
        found = program(coords, features)
        voxels, rows = vx.Voxels.from_coords(coords, features, 2, capacity=96, return_inverse=True)
        expected = model(voxels)
        np.testing.assert_array_equal(found.coords, expected.valid_coords())
        np.testing.assert_allclose(found.features, expected.valid_features(), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found.rows, rows)
        np.testing.assert_array_equal(found.coords[found.rows], coords)


def test_the_file_says_what_it_holds(written):
    _, path, about = written
    with zipfile.ZipFile(path) as archive:
        assert json.loads(archive.read("about.json")) == about
    assert about["platform"] == "cpu"
    assert about["capacity"] == 96
    assert len(about["algorithms"]) == 3
    assert all("forward" in line for line in about["algorithms"])


def test_mistakes_are_told(written, rng, tmp_path):
    model, path, about = written
    program = load_program(path)
    coords, features = clouds(rng, 400)
    with pytest.raises(vx.CapacityError, match="capacity 96"):
        program(coords, features)
    with pytest.raises(vx.InputError, match=r"takes \[N, 4\] and \[N, 3\]"):
        program(coords[:3], features[:3, :2])
    coords, features = clouds(rng, 20)
    with pytest.raises(vx.InputError, match=r"takes \[N, 4\]"):
        program(3, features)
    # Neither cut nor wrapped to what 32 bits hold.
    with pytest.raises(vx.InputError, match="coords of float64"):
        program(coords + 0.5, features)
    with pytest.raises(vx.InputError, match="coordinates"):
        program(coords.astype(np.int64) + np.array([0, 2**32, 0, 0]), features)
    with pytest.raises(vx.InputError, match="batch_size=2"):
        program(coords + np.array([2, 0, 0, 0]), features)
    with pytest.raises(vx.InputError, match="features of complex"):
        program(coords, features * 1j)
    with pytest.raises(vx.InputError, match="programs are for cpu, cuda, tpu"):
        export_program(model, path, capacity=8, channels=3, platform="abacus")
    with pytest.raises(vx.InputError, match="at least 1"):
        export_program(model, path, capacity=0, channels=3)
    with pytest.raises(vx.InputError, match="returns voxels, this one"):
        export_program(lambda v: v.features, tmp_path / "a", capacity=8, channels=3)
    with pytest.raises(vx.errors.FileFormatError, match="is no program"):
        load_program(tmp_path / "missing")
    other = tmp_path / "other"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("about.json", json.dumps({**about, "format": 0}))
    with pytest.raises(vx.errors.FileFormatError, match="has format 0"):
        load_program(other)


def test_a_model_that_holds_random_keys(tmp_path, rng):
    class Dropping(nnx.Module):
        def __init__(self, rngs):
            self.one = SpatiallySparseConv(3, 2, 1, rngs=rngs)
            self.drop = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, voxels):
            return self.one(voxels).map(self.drop)

    model, path = Dropping(nnx.Rngs(0)), tmp_path / "dropping"
    export_program(model, path, capacity=64, channels=3, batch_size=2)
    coords, features = clouds(rng, 30)
    found = load_program(path)(coords, features)
    # As it is evaluated: nothing is dropped.
    expected = features @ np.asarray(model.one.weight[...])[0]
    np.testing.assert_allclose(found.features[found.rows], expected, rtol=1e-4, atol=1e-5)


def chip(*_):
    return HardwareInfo(
        platform="tpu", device_kind="TPU v5 lite", vmem_bytes=2**27, smem_bytes=2**20, cores=1
    )


def test_a_program_for_a_tpu_holds_its_kernels(tmp_path, monkeypatch):
    """Written here; whether it runs there, no one has tried."""
    monkeypatch.setattr(programs, "describe", chip)
    path = tmp_path / "tpu.voxax"
    about = export_program(
        Network(nnx.Rngs(0)), path, capacity=128, channels=3, platform="tpu", device="v5e:2x2",
        algorithm="implicit_gemm",
    )  # fmt: skip
    assert about["device"] == "TPU v5 lite"
    assert [line for line in about["algorithms"] if "windows" not in line] == []
    with zipfile.ZipFile(path) as archive:
        text = jax.export.deserialize(bytearray(archive.read("program.stablehlo"))).mlir_module()
    # Every layer calls its kernel; those of the same sizes hold it once.
    assert text.count("call @product") == 3
    sorts = text.count('kernel_name = "tile_sort"')  # of the voxels, of fewer ones, and back
    assert (text.count("@tpu_custom_call") - sorts, sorts) == (2, 3)
    with pytest.raises(vx.InputError, match="is for tpu, which this process has not"):
        load_program(path)
