"""The first commands on a machine with TPUs: what is installed, what runs, what is kept."""

import dataclasses
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import voxax as vx
from voxax.cli import demo as demo_module
from voxax.cli import main, process, train_config, train_run
from voxax.cli.demo_kinds import KINDS
from voxax.hardware import describe
from voxax.io.simulator import CLASS_NAMES

ROOT = Path(__file__).parents[2]
# Brought by voxax[demo], not by voxax[tpu].
MISSING = ("flax", "optax", "orbax", "matplotlib", "plotly", "laspy", "plyfile")
WITHOUT = f"""
import importlib.abc, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MISSING!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from voxax.cli import main
raise SystemExit(main(sys.argv[1:]))
"""


def extra(name, known):
    """The packages of an extra, those that it takes over from others among them."""
    for requirement in known[name]:
        package, inner = re.fullmatch(r"([\w-]+)(?:\[([\w,]+)\])?.*", requirement).groups()
        if package == "voxax":
            for other in inner.split(","):
                yield from extra(other, known)
        else:
            yield package


def test_the_extra_for_tpus_brings_the_command_line():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = project["optional-dependencies"]
    assert {"jax", "tyro", "rich"} <= set(extra("tpu", known))
    # What the message of a missing package names, brings it.
    demo = {name.partition("-")[0] for name in extra("demo", known)}
    assert set(MISSING) <= demo


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["cache", "list"], 0, "no tuning cache in"),
        (["demo"], 2, 'voxax: this command needs flax: pip install "voxax[demo]"'),
        (["train", "config.toml"], 2, 'pip install "voxax[demo]"'),
        (["segment", "scan.ply", "--checkpoint", "x"], 2, 'pip install "voxax[demo]"'),
    ],
)
def test_with_that_extra_alone_a_command_runs_or_names_the_other(arguments, status, told, tmp_path):
    environment = os.environ | {"VOXAX_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT, *arguments],
        capture_output=True, text=True, env=environment, timeout=120, cwd=tmp_path,
    )  # fmt: skip
    assert found.returncode == status, found.stderr
    assert told in found.stdout + found.stderr
    assert "Traceback" not in found.stderr


@pytest.fixture
def started(monkeypatch, tmp_path):
    """What ``voxax demo`` would run, without running it, in an empty folder."""
    runs = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo_module._Run, "__call__", lambda self: runs.append(self) or 0)
    monkeypatch.setattr(process, "keep_heap", lambda: False)
    return runs


def on_accelerators(monkeypatch, number=8, hosts=1, platform="tpu"):
    """Let this process see a host with so many chips of a v5e, or GPUs."""
    info = describe("v5e:2x4" if platform == "tpu" else None)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "local_device_count", lambda: number)
    monkeypatch.setattr(jax, "device_count", lambda: hosts * number)
    monkeypatch.setattr(jax, "process_count", lambda: hosts)
    monkeypatch.setattr("voxax.cli.process.use_devices", lambda devices, asked: None)
    monkeypatch.setattr("voxax.hardware.describe", lambda *_, **__: info)


@pytest.mark.parametrize(
    ("options", "devices", "batch_size", "dtype"),
    [
        ([], 8, 8, "bfloat16"),
        (["--devices", "4", "--dtype", "float32"], 4, 4, "float32"),
        (["--batch-size", "16"], 8, 16, "bfloat16"),
        (["--batch-size", "6"], 6, 6, "bfloat16"),
        (["--devices", "all"], 8, 8, "bfloat16"),
        (["--task", "detect"], 8, 8, "bfloat16"),
        (["--task", "detect", "--batch-size", "12"], 6, 12, "bfloat16"),  # as many on each
        (["--task", "detect", "--devices", "1"], 1, 1, "bfloat16"),
    ],
)
def test_the_demo_takes_all_tpus_of_the_host(
    options, devices, batch_size, dtype, started, monkeypatch
):
    on_accelerators(monkeypatch)
    assert main(["demo", *options]) == 0
    (run,) = started
    assert (run.devices, run.batch_size, run.dtype) == (devices, batch_size, dtype)


def test_scenes_that_devices_cannot_share(monkeypatch, started, capsys):
    on_accelerators(monkeypatch)
    sizes = ["--batch-size", "12", "--devices", "8"]
    assert main(["demo", "--task", "detect", *sizes]) == 2
    told = capsys.readouterr().err
    assert "--batch-size 12 on --devices 8: --task detect needs as many scenes on each" in told
    assert main(["demo", *sizes]) == 0
    assert len(started) == 1


@pytest.mark.parametrize("task", ["segment", "detect"])
def test_the_demo_takes_all_gpus_of_the_host(task, started, monkeypatch):
    on_accelerators(monkeypatch, number=4, platform="gpu")
    assert main(["demo", "--task", task]) == 0
    (run,) = started
    assert (run.devices, run.batch_size) == (4, 4)


@pytest.mark.parametrize("options", [[], ["--devices", "all"]])
def test_on_a_cpu_nothing_changes(options, started):
    assert main(["demo", "--width", "1.5", *options]) == 0
    (run,) = started
    assert (run.devices, run.batch_size) == (1, 1)
    assert (run.width, run.dtype) == (1.5, "float32")


TRAIN = """
task = "{task}"
{devices}
[data]
format = "{format}"
folder = "data"
[model]
name = "{name}"
voxel_size = 0.2
region = {region}
[training]
steps = 4
batch_size = {batch_size}
"""
REGION = "[-16, -16, -4, 16, 16, 4]"


@pytest.mark.parametrize(
    ("task", "format", "name", "batch_size", "devices", "number"),
    [
        ("segment", "semantic_kitti", "small", 0, "", 8),
        ("segment", "semantic_kitti", "small", 6, "", 6),
        ("segment", "semantic_kitti", "small", 16, 'devices = "all"', 8),
        ("segment", "semantic_kitti", "small", 0, "devices = 1", 1),
        ("classify", "modelnet", "small", 0, "", 8),
        ("detect", "nuscenes", "small", 0, "", 8),
        ("detect", "nuscenes", "small", 6, "", 6),
        ("detect", "nuscenes", "small", 12, "", 6),
        ("detect", "nuscenes", "voxelnext", 12, "", 8),
    ],
)
@pytest.mark.parametrize("platform", ["tpu", "gpu", "cpu"])
def test_training_takes_all_accelerators_of_the_host(
    platform, task, format, name, batch_size, devices, number, monkeypatch, tmp_path
):
    on_accelerators(monkeypatch, platform=platform)
    path, runs = tmp_path / "run.toml", []
    scans = SimpleNamespace(train=[], class_names=("a", "b", "c"))
    region = REGION if task == "detect" else "[]"
    path.write_text(TRAIN.format(**locals()))
    monkeypatch.setattr(train_run.Run, "__call__", lambda self: runs.append(self) or 0)
    monkeypatch.setattr(train_config.TrainConfig, "dataset", lambda self: scans)
    assert main(["train", str(path)]) == 0
    (run,) = runs
    assert run.devices == (1 if platform == "cpu" and not devices else number)


@pytest.mark.parametrize("command", ["demo", "train"])
def test_a_slice_of_several_hosts_is_refused(command, started, monkeypatch, capsys, tmp_path):
    on_accelerators(monkeypatch, number=4, hosts=4)
    arguments = ["demo"]
    if command == "train":
        config = tmp_path / "config.toml"
        config.write_text("")
        settings = type("Config", (), {"devices": 4})()
        monkeypatch.setattr(train_config, "read_config", lambda path: settings)
        arguments = ["train", str(config)]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert f"the slice has 4 hosts with 16 devices, and `voxax {command}`" in told
    assert "voxax.parallel.DataParallelTrainer" in told
    assert not started


@pytest.mark.parametrize("task", sorted(KINDS))
def test_the_demos_networks_compute_in_bfloat16(task):
    """Parameters and results of the network stay float32 where the task needs them so."""
    made = KINDS[task]().task([], CLASS_NAMES[:3] if task == "segment" else ("a", "b", "c"),
                              0.5,
        "bfloat16")  # fmt: skip
    assert made.computes_in == {"dtype": jax.numpy.bfloat16}
    assert type(made).from_json(made.to_json()) == made
    from flax import nnx

    model = made.model()
    kinds = {getattr(m, "dtype", None) for _, m in nnx.iter_modules(model)} - {None}
    assert jax.numpy.dtype("bfloat16") in {jax.numpy.dtype(k) for k in kinds}
    params = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert {p.dtype for p in params} == {np.dtype("float32")}
    assert dataclasses.replace(made, dtype="float32").computes_in == {}


KEPT = """
import sys
import jax, jax.numpy as jnp
before = jax.config.values["jax_compilation_cache_dir"]
import voxax
assert jax.config.values["jax_compilation_cache_dir"] == before  # importing changes nothing
from voxax.cli import demo as module, main
from voxax.cli.progress import phase

def run(self):
    with phase("compile", {}):
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.jit(lambda x: jnp.sin(x) + 1)(jnp.ones(3)).block_until_ready()
    return 0

module._Run.__call__ = run
raise SystemExit(main(["demo"]))
"""


@pytest.mark.parametrize("own", [False, True])
def test_compiled_programs_are_kept_on_disk_and_the_wait_is_explained(own, tmp_path):
    """In voxax's cache folder, unless the user has chosen another."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION")}
    environment |= {"VOXAX_CACHE_DIR": str(tmp_path / "voxax")}
    folder = tmp_path / "own" if own else tmp_path / "voxax" / "programs"
    if own:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(folder)
    whole: dict[Path, bytes] = {}
    for _ in range(2):
        found = subprocess.run(
            [sys.executable, "-c", KEPT], capture_output=True, text=True, env=environment,
            timeout=120, cwd=tmp_path,
        )  # fmt: skip
        assert found.returncode == 0, found.stderr
        assert "compiling the training step, once (minutes on a TPU)" in found.stdout
        assert f"later runs find it in {folder}" in found.stdout
        assert "Error reading" not in found.stderr
        programs = {path: path.read_bytes() for path in folder.glob("*-cache")}
        assert programs
        if not own and not whole:  # the process was killed while JAX wrote the last one
            whole, half = programs, max(programs)
            half.write_bytes(programs[half][:100])
            half.with_name(half.name.removesuffix("cache") + "atime").unlink()
        elif not own:
            assert programs.keys() == whole.keys()
            assert all(len(programs[path]) > 100 for path in programs)
    assert own is not (tmp_path / "voxax" / "programs").exists()


def test_nothing_is_kept_where_that_cannot_be(monkeypatch, tmp_path):
    before = jax.config.values["jax_compilation_cache_dir"]
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    with pytest.warns(UserWarning, match="not kept"):
        vx.keep_programs()
    assert jax.config.values["jax_compilation_cache_dir"] == before


def test_a_terminal_shows_how_long_it_has_been(monkeypatch):
    from rich.console import Console

    from voxax.cli import progress

    console = Console(force_terminal=True, width=120, record=True)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with progress.working("compiling") as shown:
        shown.refresh()
    assert re.search(r"compiling \d:\d\d:\d\d", console.export_text())
