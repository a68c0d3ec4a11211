"""`voxax tune` and `voxax explain` on models and voxels that the user names."""

import logging
import re
import signal
import sys

import numpy as np
import pytest

from voxax.cli import main
from voxax.cli.workload import Workload
from voxax.hardware import describe
from voxax.tuning import cache as tuning_cache
from voxax.tuning.cache import TuningCache, device_name
from voxax.tuning.occupancy import KINDS

MODELS = """
from flax import nnx
import voxax as vx
from voxax.nn.modules import SubMConv3d

vx_float = 1.0
ready = SubMConv3d(4, 8, 3)

def make():
    return SubMConv3d(4, 8, 3)

def function(voxels):
    return ready(voxels)

def needs_two(width, depth):
    return ready

def no_convolution(voxels):
    return voxels

class Net(nnx.Module):
    def __init__(self):
        self.conv = make()

    def __call__(self, voxels):
        return self.conv(voxels)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, rng):
    """The working directory: a cloud, modules with models, and a cache of its own."""
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VOXAX_AUTOTUNE", "cached")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_models.py").write_text(MODELS)
    (tmp_path / "broken_models.py").write_text("import a_package_that_nobody_has")
    np.savez(tmp_path / "cloud.npz", xyz=rng.uniform(0, 2, (150, 3)) + np.asarray([1e6, -2e6, 0]))
    np.savez(tmp_path / "empty.npz", xyz=np.zeros((0, 3)))
    yield tmp_path
    for name in ("my_models", "broken_models"):
        sys.modules.pop(name, None)


@pytest.fixture
def few_candidates(monkeypatch):
    """Most of the time of tuning goes into compiling candidates."""
    for name in ("VOXAX_FWD_ALGO_MODE", "VOXAX_BWD_ALGO_MODE"):
        monkeypatch.setenv(name, "[explicit_gemm, cutlass_implicit_gemm]")


def run(capsys, *arguments):
    status = main(list(map(str, arguments)))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


CLOUD = ("--file", "cloud.npz", "--voxel-size", "0.25")


@pytest.mark.usefixtures("few_candidates")
def test_tune_then_explain(capsys, folder):
    status, out, err = run(capsys, "tune", *CLOUD, "--model", "my_models:make", "--training")
    assert status == 0
    assert out.startswith("my_models:make, forward and gradients, on cloud.npz at 0.25: ")
    assert re.search(r"^ ?0 .* forward .* 27 .* cached$", out, re.MULTILINE)
    assert re.search(r"^ ?1 .* wgrad .* cached$", out, re.MULTILINE)
    assert "2 products, 2 problems: 2 cached" in out
    assert "s of measuring" in out
    # On the traced map and on one as dense as this one.
    assert err.count("tuned forward") == err.count("tuned wgrad") == 1

    name = device_name(describe())
    path = folder / "cache" / "tuning" / f"{name}.json"
    assert out.endswith(f"cache: {path}\n")
    known = TuningCache(path.parent, name).items()
    assert len(known) == 4
    assert {entry.sample for _, entry in known} == {"caller's map"}

    # Known now: no second measurement.
    status, _, err = run(capsys, "tune", *CLOUD, "--model", "my_models:ready", "--details")
    assert status == 0
    assert "tuned" not in err

    status, out, _ = run(capsys, "explain", *CLOUD, "--model", "my_models:Net", "--details")
    assert status == 0
    assert "1 product, 1 problem: 1 cached" in out
    (entry,) = [entry for key, entry in known if "forward" in key and "traced" in key]
    chosen = [line for line in out.splitlines() if line.endswith("  chosen")]
    assert len(chosen) == 1
    for measured in entry.measured:
        if measured.seconds is not None:
            assert f"{1e3 * measured.seconds:.3g} ms" in out
    assert "cutlass_implicit_gemm" in out

    status, out, _ = run(capsys, "explain", *CLOUD, "--model", "my_models:function")
    assert status == 0
    assert "chosen" not in out
    assert "cached: the fastest measured before on this device" in out


@pytest.mark.usefixtures("few_candidates", "takes_ctrl_c")
def test_an_interrupted_save_keeps_what_was_measured(capsys, folder, monkeypatch):
    save = tuning_cache.save_file

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)
        return save(*arguments, **options)

    monkeypatch.setattr(tuning_cache, "save_file", interrupted)
    status, _, err = run(capsys, "tune", *CLOUD, "--model", "my_models:make", "--anew")
    assert status == 130
    assert err.endswith("interrupted\n")
    assert len(TuningCache(folder / "cache" / "tuning", device_name(describe())).items()) == 1


@pytest.mark.usefixtures("few_candidates")
def test_tune_again(capsys, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    arguments = ("tune", *CLOUD, "--model", "my_models:ready")
    assert "VOXAX_AUTOTUNE=off: runs do not read" in run(capsys, *arguments)[1]
    assert "tuned" not in run(capsys, *arguments)[2]
    assert run(capsys, *arguments, "--anew")[2].count("tuned") == 1


@pytest.mark.usefixtures("few_candidates")
def test_on_a_terminal(capsys, folder, monkeypatch):
    """A spinner instead of lines, the logger is left as it was, and a cache that is in the way."""
    (folder / "cache").write_text("a file in the folder's place")
    monkeypatch.setenv("FORCE_COLOR", "1")
    log = logging.getLogger("voxax.tuning")
    before = log.level, list(log.handlers)
    with pytest.warns(UserWarning, match="compiled programs are not kept"):
        status, out, err = run(capsys, "tune", *CLOUD, "--model", "my_models:ready")
    assert status == 0
    assert "tuned forward" not in err
    assert "tuning: 1 measured" in err
    assert "could not be written" in out
    assert (log.level, list(log.handlers)) == before


@pytest.mark.parametrize("name", ["VOXAX_AUTOTUNE", "VOXAX_AUTOTUNE_LOG"])
def test_mistakes_in_the_environment(name, capsys, monkeypatch):
    monkeypatch.setenv(name, "loud")
    status, _, err = run(capsys, "tune", *CLOUD, "--model", "my_models:ready")
    assert status == 2
    assert f"{name}=loud" in err


@pytest.mark.parametrize("kind", [None, "surface"])
def test_explain_recorded_scene(kind, capsys, monkeypatch):
    monkeypatch.delenv("VOXAX_AUTOTUNE")  # explain measures nothing, whatever the mode
    options = () if kind is None else ("--workload", kind)
    status, out, _ = run(capsys, "explain", *options, "--model", "my_models:make")
    assert status == 0
    assert f"on the recorded scene '{kind or 'lidar'}': " in out
    assert "1 product, 1 problem: 1 predicted" in out


def test_every_recorded_scene_can_be_asked_for():
    """tyro reads the names from the annotation, which cannot be computed."""
    for kind in KINDS:
        assert f"'{kind}'" in Workload.__annotations__["workload"].replace('"', "'")


def test_a_named_model(capsys, monkeypatch):
    from voxax import models
    from voxax.nn.modules import SubMConv3d

    monkeypatch.setattr(models, "MinkUNet34", lambda *channels: SubMConv3d(*channels, 3))
    options = ("--model", "MinkUNet34", "--channels", "3", "--classes", "7")
    status, out, _ = run(capsys, "explain", *CLOUD, *options)
    assert status == 0
    assert out.startswith("MinkUNet34, forward, on cloud.npz")
    assert " 3 -> 7 " in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "ResNet50"], "--model ResNet50 is unknown: give MinkUNet14, MinkUNet18"),
        (["--model", "no_such_module:net"], "'no_such_module' cannot be imported"),
        (["--model", "broken_models:net"], "a_package_that_nobody_has"),
        (["--model", ":net"], "--model is FILE.py:NAME or package.module:NAME, got ':net'"),
        (["--model", "nothing.py:net"], "there is no file nothing.py"),
        (["--model", "my_models.py:nothing"], "my_models has no 'nothing'"),
        (["--model", "my_models:nothing"], "my_models has no 'nothing'"),
        (["--model", "my_models:needs_two"], "it is needs_two(width, depth)"),
        (["--model", "my_models:vx_float"], "it is of type float"),
        (["--model", "my_models:SubMConv3d"], "is neither a model on Voxels nor a function"),
        (["--model", "my_models:no_convolution"], "computes no sparse convolution"),
        (["--model", "my_models:function", "--training"], "is no flax.nnx module"),
        (["--model", "my_models:make", "--channels", "3"], "expects 4 channels, the voxels have 3"),
        (["--channels", "0"], "--channels 0 must be at least 1"),
        (["--classes", "-1"], "--classes -1 must be at least 1"),
    ],
)
def test_mistakes_about_the_model(arguments, message, capsys):
    status, _, err = run(capsys, "explain", *CLOUD, *arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--file", "missing.npz"], "missing.npz"),
        (["--file", "empty.npz"], "empty.npz holds no points"),
        (["--file", "my_models.py"], "my_models.py"),
        (["--file", "cloud.npz", "--workload", "lidar"], "give one of them"),
        (["--file", "cloud.npz", "--voxel-size", "0"], "--voxel-size 0.0 must be at least"),
        (["--file", "cloud.npz", "--voxel-size", "nan"], "--voxel-size nan must be a finite"),
        (["--file", "cloud.npz", "--voxel-size", "1e-12"], "outside [-2**30, 2**30)"),
        (["--voxel-size", "0.2"], "belongs to --file"),
    ],
)
@pytest.mark.parametrize("command", ["tune", "explain"])
def test_mistakes_about_the_voxels(command, arguments, message, capsys):
    status, _, err = run(capsys, command, "--model", "my_models:make", *arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1
