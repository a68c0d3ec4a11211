"""A step of a checkpoint is whole or not there, and a broken one does not end the run."""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import voxax as vx
from voxax.models import checkpoint
from voxax.models.checkpoint import (
    check_arrays,
    load_arrays,
    load_description,
    newest_step,
    remove_steps_above,
    save_checkpoint,
    steps_of,
)


def tree(step):
    return {"a": np.full((64, 64), float(step)), "steps": np.asarray(step)}


def test_description_and_arrays_are_of_one_step(tmp_path):
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, tree(step), {"step": step}, step)
    assert steps_of(tmp_path) == [3, 2]
    assert load_description(tmp_path) == {"step": 3}
    assert int(load_arrays(tmp_path, tree(0))["steps"]) == 3

    shutil.rmtree(tmp_path / "3" / "default")
    with pytest.warns(UserWarning, match="step 3 of .* cannot be read: .*; step 2 is taken"):
        assert int(load_arrays(tmp_path, tree(0))["steps"]) == 2
    remove_steps_above(tmp_path, 2)
    save_checkpoint(tmp_path, tree(3), {"step": 3}, 3)
    assert int(load_arrays(tmp_path, tree(0))["steps"]) == 3

    for step in (2, 3):
        shutil.rmtree(tmp_path / str(step) / "default")
    with pytest.raises(vx.FileFormatError, match="the checkpoint is broken"):
        load_arrays(tmp_path, tree(0))


def test_checkpoints_with_one_description_for_all_steps_are_read(tmp_path):
    save_checkpoint(tmp_path, tree(1), {}, 1)
    shutil.rmtree(tmp_path / "1" / "description")
    with pytest.raises(vx.FileFormatError, match="holds no whole step"):
        load_description(tmp_path)
    (tmp_path / "voxax.json").write_text(json.dumps({"task": "segment"}))
    assert load_description(tmp_path) == {"task": "segment"}
    (tmp_path / "voxax.json").write_text("{")
    with pytest.raises(vx.FileFormatError, match="is not valid JSON"):
        load_description(tmp_path)


SAVES = """
import sys
import numpy as np
from voxax.models.checkpoint import save_checkpoint, newest_step
first = (newest_step(sys.argv[1]) or 0) + 1
for step in range(first, first + 500):
    print(step, flush=True)
    tree = {"a": np.full((64, 64), float(step)), "steps": np.asarray(step)}
    save_checkpoint(sys.argv[1], tree, {"step": step}, step)
"""


@pytest.mark.slow
def test_a_process_killed_in_any_save_loses_no_step(tmp_path, rng):
    folder, saved = tmp_path / "run", 0
    for _ in range(8):
        child = subprocess.Popen(
            [sys.executable, "-c", SAVES, str(folder)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(int(rng.integers(1, 4))):
            begun = int(child.stdout.readline())
        time.sleep(float(rng.uniform(0, 0.3)))
        os.kill(child.pid, signal.SIGKILL)
        begun = int((child.stdout.read().split() or [begun])[-1])
        child.wait()
        child.stdout.close()
        newest = newest_step(folder) or 0
        assert max(saved, begun - 1) <= newest <= begun
        if newest:
            found = load_arrays(folder, tree(0))
            assert int(found["steps"]) == newest == load_description(folder)["step"]
            assert (found["a"] == newest).all()
        saved = newest
    assert saved


@pytest.mark.parametrize("damaged", [1, 2])
@pytest.mark.parametrize("facts", ["another", "empty", "no JSON", "a list"])
def test_damaged_facts_of_one_step_leave_the_others(tmp_path, damaged, facts):
    """orbax's facts about a step: others are read, and later ones saved beside it."""
    for step in (1, 2):
        save_checkpoint(tmp_path, tree(step), {"step": step}, step)
    path = tmp_path / str(damaged) / "_CHECKPOINT_METADATA"
    another = path.read_text().replace("commit", "comeit")
    path.write_text({"another": another, "empty": "", "no JSON": "{", "a list": "[1]"}[facts])
    assert int(load_arrays(tmp_path, tree(0))["steps"]) == 2
    save_checkpoint(tmp_path, tree(3), {"step": 3}, 3)
    assert steps_of(tmp_path) == [3, 2]
    assert int(load_arrays(tmp_path, tree(0))["steps"]) == 3
    assert load_description(tmp_path) == {"step": 3}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of tensorstore
def test_a_number_that_changed_on_the_disk_is_not_taken(tmp_path, rng):
    """orbax itself gives what stands there."""
    trees = {
        s: {"w": rng.normal(size=(27, 8)).astype("f4"), "steps": np.asarray(s)} for s in (1, 2)
    }
    for step, saved in trees.items():
        save_checkpoint(tmp_path, saved, {"step": step}, step)
    changed = 0
    for path in sorted((tmp_path / "2" / "default").rglob("*")):
        before = path.read_bytes() if path.is_file() else b""
        for place in range(0, len(before), max(1, len(before) // 25)):
            path.write_bytes(before[:place] + bytes([before[place] ^ 8]) + before[place + 1 :])
            with warnings.catch_warnings(record=True):
                warnings.simplefilter("always")
                found = load_arrays(tmp_path, trees[2])
            saved = trees[int(found["steps"])]
            np.testing.assert_array_equal(found["w"], saved["w"])
            changed += saved is trees[1]
            path.write_bytes(before)
    assert changed


def test_a_description_that_changed_on_the_disk_is_not_taken(tmp_path):
    described = {1: {"size": (0.5, 1), "names": {10: "a", 9: "b"}}, 2: {"size": (0.25, 2)}}
    for step, description in described.items():
        save_checkpoint(tmp_path, tree(step), description, step)
    assert load_description(tmp_path) == {"size": [0.25, 2]}
    path = tmp_path / "2" / "description" / "metadata"
    path.write_text(path.read_text().replace("0.25", "0.35"))
    with pytest.warns(UserWarning, match="2/description/metadata is not what was saved; .* taken"):
        assert load_description(tmp_path) == {"size": [0.5, 1], "names": {"10": "a", "9": "b"}}


def test_arrays_of_every_dtype_have_sums(tmp_path):
    names = ("bfloat16", "float16", "float32", "float64", "int8", "int32", "uint8", "bool")
    values = {name: np.arange(6).reshape(2, 3).astype(jnp.dtype(name)) for name in names}
    values |= {"number": np.asarray(3), "jax": jnp.ones(3)}
    save_checkpoint(tmp_path, values, {}, 1)
    saved = json.loads((tmp_path / "1" / "checksums" / "metadata").read_text())["default"]
    assert saved.keys() == values.keys()
    found = load_arrays(tmp_path, values)
    jax.tree.map(np.testing.assert_array_equal, found, values)
    # Steps that voxax wrote before have none.
    shutil.rmtree(tmp_path / "1" / "checksums")
    jax.tree.map(np.testing.assert_array_equal, load_arrays(tmp_path, values), values)


NUMBERS = ("bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8")
# Everything else changes values, or what a number means.
CASTS = {
    ("bfloat16", "float32"), ("bfloat16", "float64"), ("float16", "float32"),
    ("float16", "float64"), ("float32", "float64"), ("float32", "bfloat16"),
    ("int8", "int16"), ("int8", "int32"), ("int8", "int64"), ("int16", "int32"),
    ("int16", "int64"), ("int32", "int64"), ("uint8", "int16"), ("uint8", "int32"),
    ("uint8", "int64"),
}  # fmt: skip


@pytest.mark.parametrize("kind", [np.asarray, jnp.asarray])
def test_no_dtype_becomes_another_unasked(tmp_path, kind):
    values = np.array([1.5, 2.75, -3.25])
    with jax.enable_x64(True):
        stored = {name: kind(values.astype(jnp.dtype(name))) for name in NUMBERS}
        save_checkpoint(tmp_path, stored, {}, 1)
        assert load_arrays(tmp_path, stored)["float64"].dtype == np.float64
        for old, new in itertools.permutations(NUMBERS, 2):
            like = {**stored, old: kind(np.zeros(3, jnp.dtype(new)))}
            said = f"{old} is {old}, here it is {new}"
            read = load_arrays if new == "int32" else check_arrays  # which is faster
            with pytest.raises(vx.FileFormatError, match=said) as refused:
                read(tmp_path, like)
            assert ("cast=True" in str(refused.value)) == ((old, new) in CASTS)
            if new == "float16":
                with pytest.raises(vx.FileFormatError, match=said):
                    load_arrays(tmp_path, like, cast=True)
        for old, new in sorted(CASTS):
            like = {**stored, old: kind(np.zeros(3, jnp.dtype(new)))}
            found = load_arrays(tmp_path, like, cast=True)
            assert found[old].dtype == jnp.dtype(new)
            assert isinstance(found[old], type(like[old]))
            np.testing.assert_array_equal(found[old], np.asarray(stored[old]).astype(new))


def test_what_is_cast_was_compared_with_its_checksum(tmp_path):
    save_checkpoint(tmp_path, {"w": np.float32([1, 2])}, {}, 1)
    path = tmp_path / "1" / "checksums" / "metadata"
    sums = json.loads(path.read_text())
    sums["default"]["w"] = "float32 00000000"
    path.write_text(json.dumps(sums))
    with pytest.raises(vx.FileFormatError, match="w is not what was saved: its checksum differs"):
        load_arrays(tmp_path, {"w": np.float64([0, 0])}, cast=True)


# Parts of the libraries that store arrays, of which no message should have a word.
INTERNALS = ("zarr", "ocdbt", "tensorstore", "json", "driver", "source loc", "error:", "_metadata")


@pytest.mark.parametrize("how", ["missing", "empty", "cut", "another"])
def test_a_broken_checkpoint_is_described_in_plain_words(tmp_path, how):
    save_checkpoint(tmp_path, tree(1), {}, 1)
    failed = 0
    for path in sorted((tmp_path / "1" / "default").rglob("*")):
        before = path.read_bytes() if path.is_file() else b""
        if not before:
            continue
        path.unlink()
        if how != "missing":
            broken = {"empty": b"", "cut": before[: len(before) // 2], "another": before[::-1]}
            path.write_bytes(broken[how])
        error = None
        try:
            load_arrays(tmp_path, tree(0))
        except vx.FileFormatError as raised:
            error = raised
        path.write_bytes(before)
        if error is None:  # a file that nothing needs
            continue
        failed += 1
        said = str(error)
        assert said.startswith(f"step 1 of {tmp_path} cannot be read: ")
        assert said.endswith("Restore the folder from a copy, or delete it and train again")
        assert not [word for word in INTERNALS if word in said.lower()], said
        assert error.__cause__ is None
        assert "\n" not in said
    assert failed >= 3


@pytest.mark.parametrize(
    ("fault", "number"),
    [
        (ValueError('PERMISSION_DENIED: Error opening "zarr" driver'), errno.EACCES),
        (ValueError("RESOURCE_EXHAUSTED: out of it"), errno.ENOMEM),
        (ValueError("Error opening local file: Too many open files"), errno.EMFILE),
        (PermissionError(errno.EPERM, "no"), errno.EPERM),
    ],
)
def test_faults_of_the_system_are_described_in_plain_words(tmp_path, monkeypatch, fault, number):
    save_checkpoint(tmp_path, tree(1), {}, 1)

    def fails(*_):
        raise fault

    monkeypatch.setattr(checkpoint, "_restored", fails)
    with pytest.raises(OSError, match=f"{os.strerror(number)}: 'step 1 of ") as raised:
        load_arrays(tmp_path, tree(0))
    assert raised.value.errno == number
    assert raised.value.__cause__ is None


def test_random_keys(tmp_path):
    """Those of a network with dropout, typed or as integers."""
    values = {"typed": jax.random.key(3), "several": jax.random.split(jax.random.key(4))}
    values |= {"integers": jax.random.PRNGKey(5)}
    save_checkpoint(tmp_path, values, {}, 1)
    check_arrays(tmp_path, jax.eval_shape(lambda: values))
    others = {**values, "typed": jax.random.key(0), "several": jax.random.split(jax.random.key(0))}
    found = load_arrays(tmp_path, others)
    for name, keys in values.items():
        assert found[name].dtype == keys.dtype
        np.testing.assert_array_equal(*(jax.random.key_data(k) for k in (found[name], keys)))
    with pytest.raises(vx.FileFormatError, match=r"typed is \[2\], here it is \[2, 2\]"):
        load_arrays(tmp_path, {**values, "typed": values["several"]})


@pytest.mark.parametrize("step", [1.5, -1, "1", True])
def test_steps_that_are_none(tmp_path, step):
    with pytest.raises(vx.InputError, match="step="):
        save_checkpoint(tmp_path / "new", tree(1), {}, step)
    assert not (tmp_path / "new").exists()


def test_what_cannot_be_saved(tmp_path):
    with pytest.raises(vx.InputError, match=r"description cannot be saved as JSON .*ndarray"):
        save_checkpoint(tmp_path, tree(1), {"mean": np.zeros(3)}, 1)
    with pytest.raises(vx.InputError, match=r"description cannot be saved.*not a dict"):
        save_checkpoint(tmp_path, tree(1), [1], 1)
    with pytest.raises(vx.InputError, match=r"net/name is str.*into the description"):
        save_checkpoint(tmp_path, {"net": {"name": "first"}}, {}, 1)
    (tmp_path / "file").touch()
    with pytest.raises(vx.InputError, match="file is no folder, a file is in its place"):
        save_checkpoint(tmp_path / "file", tree(1), {}, 1)
    assert steps_of(tmp_path) == []
