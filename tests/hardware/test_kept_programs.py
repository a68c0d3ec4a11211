"""Compiled programs on disk, which later processes load, from a folder of the user's own alone."""

import json
import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

import voxax as vx
from problems import needs_native
from voxax import _native
from voxax.cli import main
from voxax.nn.functional import spatially_sparse_conv

STEP = """
import collections, json, sys
import jax, numpy as np, optax
seen = collections.Counter()
jax.monitoring.register_event_listener(lambda event, **more: seen.update([event]))
import voxax as vx
from flax import nnx
from voxax.models.training import Trainer
from voxax.nn.modules import BatchNorm, Linear, ReLU, Sequential, SparseConv3d, SubMConv3d

rng = np.random.default_rng(0)
voxels = vx.voxelize(rng.uniform(0, 6, (400, 3)).astype(np.float32), voxel_size=0.5)
model = Sequential(
    SubMConv3d(1, 8, 3, rngs=nnx.Rngs(0)), BatchNorm(8), ReLU(), Linear(8, 2, rngs=nnx.Rngs(1))
)
trainer = Trainer(model, optax.adamw(1e-2), **json.loads(sys.argv[1]))
labels = np.arange(voxels.capacity, dtype=np.int32) % 2
losses = [float(trainer.step(voxels, labels)[0]) for _ in range(2)]
found = [seen[f"/jax/compilation_cache/cache_{kind}"] for kind in ("hits", "misses")]
print(json.dumps([*found, losses]))
"""


def run(folder, *, check=True, **environment):
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    env |= {"VOXAX_CACHE_DIR": str(folder), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    options = environment.pop("options", {})
    process = subprocess.Popen(
        [sys.executable, "-c", STEP, json.dumps(options)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env | environment,
    )  # fmt: skip
    return done(process) if check else process


def done(process):
    out, error = process.communicate(timeout=300)
    assert process.returncode == 0, error
    return json.loads(out.splitlines()[-1]), error


def test_a_second_process_compiles_nothing(tmp_path):
    first, second = (run(tmp_path, check=False) for _ in range(2))  # at once
    (_, misses, losses), (_, others, same) = (done(process)[0] for process in (first, second))
    assert misses + others  # on a busy machine one of them may find all that the other compiled
    assert same == losses
    (hits, misses, again), _ = run(tmp_path)
    assert (misses, again) == (0, losses)
    assert hits > 1
    folder = tmp_path / "programs"
    assert folder.stat().st_mode & 0o777 == 0o700

    damaged = sorted(folder.glob("*-cache"))
    for number, path in enumerate(damaged):
        whole = path.read_bytes()
        path.write_bytes((b"", b"no program", whole[:-100])[number % 3])
    (_, misses, again), _ = run(tmp_path)
    assert (misses > 0, again) == (True, losses)


@pytest.mark.parametrize(
    "setting",
    [
        {"options": {"keep_programs": False}},
        {"JAX_ENABLE_COMPILATION_CACHE": "false"},
        {"JAX_COMPILATION_CACHE_DIR": "own"},
    ],
    ids=str,
)
def test_the_users_own_setting_wins(setting, tmp_path):
    own = tmp_path / "own"
    setting = {k: str(own) if v == "own" else v for k, v in setting.items()}
    run(tmp_path, **setting)
    assert not (tmp_path / "programs").exists()
    assert bool(list(own.glob("*-cache"))) == ("JAX_COMPILATION_CACHE_DIR" in setting)


def test_a_folder_of_the_users_choice(tmp_path):
    assert vx.keep_programs(tmp_path / "mine") == tmp_path / "mine"
    assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "mine")
    assert vx.keep_programs() == tmp_path / "mine"  # what is set stays
    assert jax.config.values["jax_compilation_cache_max_size"] == 4 << 30
    assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] == 0.1


def of_others(folder, monkeypatch):
    folder.mkdir()
    number = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: number)


def open_to_others(folder, monkeypatch):
    folder.mkdir()
    folder.chmod(0o770)


def a_file(folder, monkeypatch):
    folder.write_text("")


def read_only(folder, monkeypatch):
    folder.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)


@pytest.mark.parametrize("make", [of_others, open_to_others, a_file, read_only])
def test_a_folder_that_is_not_ones_own_is_refused_with_one_warning(make, tmp_path, monkeypatch):
    folder = tmp_path / "programs"
    make(folder, monkeypatch)
    with pytest.warns(UserWarning, match=re.escape(str(folder))) as told:
        assert [vx.keep_programs(folder) for _ in range(2)] == [None, None]
    assert len(told) == 1
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_commands_list_and_clear_them_and_never_export_them(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    folder = vx.keep_programs()
    (folder / "jit_f-0-cache").write_bytes(b"1" * 2**20)
    (folder / "jit_f-0-atime").write_bytes(b"12345678")
    assert main(["cache", "list"]) == 0
    assert "1 compiled programs, 1.0 MiB" in capsys.readouterr().out
    assert main(["cache", "export", str(tmp_path / "all.json")]) == 2  # no measurements
    assert main(["cache", "clear", "--yes"]) == 0
    assert not list(folder.glob("jit_f*"))
    assert main(["cache", "clear", "--yes"]) == 0
    assert "no compiled programs" in capsys.readouterr().out


@pytest.mark.parametrize(("limit", "kept"), [("-1", True), ("1000000", False)])
def test_programs_without_a_time_of_use_stay_where_there_is_no_limit(limit, kept, tmp_path):
    """JAX writes the time only with a limit; with one, a program without it is incomplete."""
    path = tmp_path / "programs" / "jit_f-0-cache"
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"a program")
    env = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    subprocess.run(
        [sys.executable, "-c", "import voxax as vx; vx.keep_programs()"],
        env=env | {"VOXAX_CACHE_DIR": str(tmp_path), "JAX_COMPILATION_CACHE_MAX_SIZE": limit},
        check=True,
        timeout=120,
    )
    assert path.exists() is kept


@needs_native
def test_the_name_of_a_native_function_changes_with_its_interface(monkeypatch):
    """JAX's key of a program on disk holds these names, and nothing else of the library."""
    rows = np.stack(np.meshgrid(0, *[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 4)
    voxels = vx.Voxels.from_coords(rows.astype(np.int32), np.ones((27, 4), np.float32))
    weight = np.ones((27, 4, 4), np.float32)

    def called():
        def network(voxels, weight):
            return spatially_sparse_conv(voxels, weight, 3).features

        text = jax.jit(network).lower(voxels, weight).as_text()
        return set(re.findall(r"@(voxax_\w+)", text))

    found = called()
    assert found
    assert found <= {_native.target(name) for name in _native.CALLS}
    monkeypatch.setattr(_native, "_ABI", _native._ABI + 1)
    jax.clear_caches()
    assert not called() & found
