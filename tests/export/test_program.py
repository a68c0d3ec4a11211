"""Programs in files: written here, read back, and the same numbers."""

import hashlib
import hmac
import json
import os
import pickle
import re
import secrets
import stat
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax import _native
from voxax._atomic_file import write_atomically
from voxax.export import executable as executables
from voxax.export import export_program, load_program
from voxax.export import program as programs
from voxax.hardware import HardwareInfo
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
    whole = tmp_path / "whole"
    export_program(lambda v: v, whole, capacity=96, channels=3, batch_size=2, dtype="int8")
    with pytest.raises(vx.InputError, match=r"features of float32: the program takes .* int8"):
        load_program(whole)(coords, features)
    with pytest.raises(vx.InputError, match="programs are for cpu, cuda, tpu"):
        export_program(model, path, capacity=8, channels=3, platform="abacus")
    with pytest.raises(vx.InputError, match="at least 1"):
        export_program(model, path, capacity=0, channels=3)
    with pytest.raises(vx.InputError, match="dtype 'float3' is unknown"):
        export_program(model, path, capacity=8, channels=3, dtype="float3")
    with pytest.raises(vx.InputError, match="takes a function or a model as model, got int"):
        export_program(5, path, capacity=8, channels=3)
    with pytest.raises(vx.InputError, match="is a folder: give the path of a file"):
        export_program(model, tmp_path, capacity=8, channels=3)
    with pytest.raises(vx.InputError, match="absent is no folder: make it first"):
        export_program(model, tmp_path / "absent" / "a", capacity=8, channels=3)
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


needs_kernels = pytest.mark.skipif(
    _native.unavailable() is not None, reason="the native kernels are not built"
)


def module_in(path):
    """The program's text, without the names of the files that it was traced from."""
    with zipfile.ZipFile(path) as archive:
        exported = jax.export.deserialize(bytearray(archive.read("program.stablehlo")))
    place = r'loc\((#loc\d*|"[^"]*"\(#loc\d*\)|unknown)\)|^#loc.*\n'
    return re.sub(place, "", exported.mlir_module(), flags=re.MULTILINE)


def changed(path, to, **about):
    """Copy a program's file with other entries in its description."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(to, "w") as copy:
        for name in archive.namelist():
            data = archive.read(name)
            if name == "about.json":
                data = json.dumps({**json.loads(data), **about}).encode()
            copy.writestr(name, data)
    return to


@needs_kernels
def test_a_program_for_cpus_is_what_jit_runs(written, rng):
    model, path, about = written
    assert "voxax_product" in about["native_kernels"]
    assert "voxax_unique_rows" in about["native_kernels"]
    program = load_program(path)
    coords, features = clouds(rng, 70)
    graph, state = nnx.split(model)

    @jax.jit
    def run(state, coords, features):
        voxels = vx.Voxels.from_coords(coords, features, 2, capacity=96)
        return nnx.merge(graph, state)(voxels).features

    number = len(coords)
    padded = np.full((96, 4), vx.coords.PAD, np.int32), np.zeros((96, 3), np.float32)
    padded[0][:number], padded[1][:number] = coords, features
    expected = np.asarray(run(state, *padded))[:number]
    np.testing.assert_array_equal(program(coords, features).features, expected)


ELSEWHERE = """
import sys
import numpy as np
from flax import nnx
from test_program import Network
from voxax.export import export_program, load_program
first, again, rows = sys.argv[1:]
export_program(Network(nnx.Rngs(0)), again, capacity=96, channels=3, batch_size=2)
with np.load(rows) as stored:
    result = load_program(first)(stored["coords"], stored["features"])
    np.testing.assert_array_equal(result.features, stored["expected"])
"""


def test_a_program_runs_in_another_process_and_holds_no_address(written, rng, tmp_path, request):
    _, path, _ = written
    coords, features = clouds(rng, 50)
    expected = load_program(path)(coords, features).features
    again, rows = tmp_path / "again", tmp_path / "rows.npz"
    np.savez(rows, coords=coords, features=features, expected=expected)
    command = [sys.executable, "-c", ELSEWHERE, str(path), str(again), str(rows)]
    ran = subprocess.run(
        command, cwd=request.path.parent, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    # Libraries and threads lie elsewhere there: a file that held a place of one would differ.
    assert module_in(again) == module_in(path)


def test_a_portable_program_calls_no_native_kernel(written, rng, tmp_path):
    model, path, _ = written
    portable = tmp_path / "portable"
    about = export_program(model, portable, capacity=96, channels=3, batch_size=2, portable=True)
    assert about["native_kernels"] == {}
    assert "@voxax_" not in module_in(portable)
    coords, features = clouds(rng, 50)
    found, expected = load_program(portable)(coords, features), load_program(path)(coords, features)
    np.testing.assert_allclose(found.features, expected.features, rtol=1e-4, atol=1e-5)


def test_a_damaged_program_is_refused_before_it_is_read(written, tmp_path):
    """MLIR's reader does not end with some of these, or ends the process."""
    _, path, _ = written
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    damaged = bytearray(parts["program.stablehlo"])
    damaged[len(damaged) // 2] ^= 1
    for program in (bytes(damaged), parts["program.stablehlo"][:-1]):
        other = tmp_path / "other"
        with zipfile.ZipFile(other, "w") as archive:
            for name, data in (parts | {"program.stablehlo": program}).items():
                archive.writestr(name, data)
        with pytest.raises(vx.errors.FileFormatError, match="not the one that was written"):
            load_program(other)


@needs_kernels
@pytest.mark.parametrize(
    ("kernels", "message"),
    [
        ({"voxax_product": 0}, "version 0 of voxax_product, and this voxax has 1"),
        ({"voxax_product": 9}, "version 9 of voxax_product"),
        ({"voxax_fold": 1}, "no native function voxax_fold"),
    ],
)
def test_other_kernels_are_refused(written, tmp_path, kernels, message):
    _, path, about = written
    to = changed(path, tmp_path / "other", native_kernels={**about["native_kernels"], **kernels})
    with pytest.raises(vx.InputError, match=f"{message}.*portable=True"):
        load_program(to)


@needs_kernels
def test_a_process_without_kernels_refuses_a_program_that_calls_them(written, monkeypatch):
    monkeypatch.setattr(_native, "unavailable", lambda: "they are switched off by VOXAX_NATIVE")
    with pytest.raises(vx.InputError, match=r"switched off by VOXAX_NATIVE.*portable=True"):
        load_program(written[1])


def test_executables(written, rng, tmp_path, monkeypatch):
    model, plain, _ = written
    path = tmp_path / "machine_code"
    about = export_program(model, path, capacity=96, channels=3, batch_size=2, executable=True)
    coords, features = clouds(rng, 50)
    expected = load_program(path)(coords, features)
    found = load_program(path, executable=True)(coords, features)
    np.testing.assert_array_equal(found.features, expected.features)
    np.testing.assert_array_equal(found.rows, expected.rows)

    with pytest.raises(vx.InputError, match="holds no executable"):
        load_program(plain, executable=True)
    needs = about["executable"]
    for name, value, message in [
        ("instructions", [*needs["instructions"], "avx4096"], "a CPU with avx4096, which this"),
        ("machine", "abacus", "for CPUs of abacus"),
        ("jaxlib", "0.0.1", "jaxlib 0.0.1 compiled it"),
    ]:
        other = changed(path, tmp_path / name, executable={**needs, name: value})
        with pytest.raises(vx.InputError, match=f"{message}.*load_program\\(path\\)"):
            load_program(other, executable=True)
        np.testing.assert_array_equal(load_program(other)(coords, features).rows, expected.rows)
    monkeypatch.setattr(executables, "cpu_device", lambda: None)
    with pytest.raises(vx.InputError, match="executables are for CPUs"):
        executables.compiled_here(None, ())


class Runs:
    """A pickle of it creates a file when it is read."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def replaced(path, to, **parts):
    """A copy of a program with other parts; None leaves one out."""
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
    found |= {name.replace("_", "."): data for name, data in parts.items()}
    with zipfile.ZipFile(to, "w") as archive:
        for name, data in found.items():
            if data is not None:
                archive.writestr(name, data)
    return to


@pytest.fixture
def signed(tmp_path, monkeypatch):
    """A program with an executable, and the file of the secret that signed it."""
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "signed"
    export_program(lambda v: v, path, capacity=8, channels=3, executable=True)
    return path, tmp_path / "cache" / "secret"


def test_machine_code_of_others_is_not_unpickled(signed, tmp_path, monkeypatch):
    path, secret = signed
    proof, attack = tmp_path / "proof", tmp_path / "attack"
    code = pickle.dumps(Runs(proof))
    with zipfile.ZipFile(path) as archive:
        own = archive.read("executable.hmac")
        about = archive.read("about.json")
    other = secrets.token_bytes(32)
    forged = hmac.new(other, about + code, "sha256").digest()
    bare = hashlib.sha256(about + code).digest()  # a checksum is not enough
    why = "a pickle, which may run any code, and "
    for signature in (own, forged, bare, b"", None, own[:31], own + b"0"):
        replaced(path, attack, executable=code, executable_hmac=signature)
        with pytest.raises(vx.InputError, match=why) as refused:
            load_program(attack, executable=True)
        assert "unsafe_unsigned_executable=True" in str(refused.value)
        assert not proof.exists()
    # Of another description, too: it tells what the code is called with.
    changed(path, attack, capacity=7)
    with pytest.raises(vx.InputError, match=f"{why}it was not signed with this user's secret"):
        load_program(attack, executable=True)
    # Another user, or this one without the secret.
    for value, said in ((other, "not signed with this user's"), (None, "this user has no secret")):
        secret.unlink()
        if value is not None:
            write_atomically(secret, value, private=True)
        with pytest.raises(vx.InputError, match=f"{why}.*{said}"):
            load_program(path, executable=True)
    assert load_program(path).about["capacity"] == 8
    # Asked for by name, it is read: the user's own file, and what it is there for.
    with pytest.raises(vx.InputError, match="is for executable=True"):
        load_program(path, unsafe_unsigned_executable=True)
    program = load_program(path, executable=True, unsafe_unsigned_executable=True)
    assert program(np.zeros((1, 4), int), np.ones((1, 3))).features.tolist() == [[1, 1, 1]]
    replaced(path, attack, executable=code, executable_hmac=None)
    with pytest.raises(vx.InputError, match="JAX does not load it"):
        load_program(attack, executable=True, unsafe_unsigned_executable=True)
    assert proof.exists()


@pytest.mark.skipif(os.name == "nt", reason="modes of POSIX")
def test_the_secret_is_the_users_alone(signed, tmp_path, monkeypatch):
    path, secret = signed
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    assert stat.S_IMODE(secret.parent.stat().st_mode) == 0o700
    assert len(secret.read_bytes()) == 32
    load_program(path, executable=True)

    def refused(message):
        for act in (lambda: load_program(path, executable=True), lambda: executables.signed(b"")):
            with pytest.raises(vx.InputError, match=message):
                act()

    for mode in (0o640, 0o604, 0o620, 0o666):
        secret.chmod(mode)
        refused(rf"may be read by others \(mode {mode:04o}, not 0600\): delete it")
    secret.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    refused("belongs to the user")
    monkeypatch.undo()
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(secret.parent))
    content = secret.read_bytes()
    secret.write_bytes(content[:31])
    refused("does not have 32 bytes")
    secret.rename(tmp_path / "elsewhere")
    secret.symlink_to(tmp_path / "elsewhere")
    refused("cannot be read")
    secret.unlink()
    os.mkfifo(secret, 0o600)
    refused("is no plain file")


def test_processes_that_make_the_secret_at_once_make_one(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "a" / "b"))
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(lambda _: executables.signed(b"x"), range(32)))) == 1
    assert executables.signed(b"a", b"b") != executables.signed(b"ab", b"")


def test_a_secret_that_cannot_be_kept(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(vx.InputError, match=r"no secret to sign with can be kept in .* no folder"):
        executables.signed(b"")


@pytest.mark.parametrize("option", ["portable", "executable"])
def test_options_of_cpus(tmp_path, option):
    with pytest.raises(vx.InputError, match=f"{option}=True is for platform 'cpu'"):
        export_program(
            abs, tmp_path / "a", capacity=8, channels=3, platform="cuda", **{option: True}
        )


def test_a_callback_cannot_be_stored(tmp_path):
    def model(voxels):
        shape = jax.ShapeDtypeStruct(voxels.features.shape, jnp.float32)
        return voxels.replace_features(jax.pure_callback(np.sin, shape, voxels.features))

    with pytest.raises(vx.InputError, match="calls Python back, which a file cannot hold"):
        export_program(model, tmp_path / "a", capacity=8, channels=3)


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
    text = module_in(path)
    # Every layer calls its kernel; those of the same sizes hold it once.
    assert text.count("call @product") == 3
    sorts = text.count('kernel_name = "tile_sort"')  # of the voxels, of fewer ones, and back
    assert (text.count("@tpu_custom_call") - sorts, sorts) == (2, 3)
    with pytest.raises(vx.InputError, match="is for tpu, which this process has not"):
        load_program(path)
