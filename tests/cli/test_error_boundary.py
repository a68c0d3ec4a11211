"""Faults of files and of the machine end every command with one line and status 2."""

import contextlib
import errno
import json
import os
import resource
import shutil
import sys
import zipfile

import jax
import numpy as np
import pytest

from cli.small_network import small
from voxax.cli import main
from voxax.cli.boundary import line_of
from voxax.cli.demo import _Run
from voxax.cli.segmentation_task import Segmentation
from voxax.errors import FileFormatError
from voxax.models.checkpoint import steps_of
from voxax.models.training import Trainer

MODEL = """
from voxax.nn.modules import SubMConv3d

net = SubMConv3d(4, 8, 3)

def doubled(x):
    return 2 * x
"""
CONFIG = """
out = "trained"
[data]
format = "files"
folder = "."
train = ["scan.npz"]
validation = ["held_out.npz"]
classes = {1 = "near", 2 = "far"}
workers = 0
[augment]
[model]
voxel_size = 1.0
[training]
steps = 2
"""
CHOSEN = ["--voxel-size", "1.0", "--workers", "0", "--steps", "2"]
SEGMENTER = ["--network", "minkunet-14", "--attributes", "xyz", "--classes", "3"]
SEGMENTER += ["--voxel-size", "1"]
DETECTOR = ["--network", "second", "--attributes", "xyz", "--classes", "kitti"]
DETECTOR += ["--voxel-size", "1", "--region=0,-8,-3,16,8,1"]
SCAN, NET = ["--input", "scan.npz"], ["--model", "boundary_model.py:net"]
CAPACITY = ["--capacity", "64"]

# Command lines by what is wrong, and the end of its name. IN stands for the place of the fault.
INPUTS = {
    "demo --input": (".npz", ["demo", "--input", "IN", "--out", "new", *CHOSEN]),
    "demo --labels": (".npz", ["demo", *SCAN, "--labels", "IN", "--out", "new", *CHOSEN]),
    "demo --resume": ("", ["demo", *SCAN, "--resume", "--out", "IN", *CHOSEN]),
    "train": (".toml", ["train", "IN"]),
    "segment": (".npz", ["segment", "IN", "--checkpoint", "run/checkpoint"]),
    "segment --checkpoint": ("", ["segment", "scan.npz", "--checkpoint", "IN"]),
    "segment --weights": (".safetensors", ["segment", "scan.npz", "--weights", "IN", *SEGMENTER]),
    "detect": (".npz", ["detect", "IN", "--weights", "no.safetensors", *DETECTOR]),
    "detect --checkpoint": ("", ["detect", "scan.npz", "--checkpoint", "IN"]),
    "detect --weights": (".safetensors", ["detect", "scan.npz", "--weights", "IN", *DETECTOR]),
    "view": (".npz", ["view", "IN"]),
    "view --predictions": (".npz", ["view", "scan.npz", "--predictions", "IN"]),
    "view --labels": (".npz", ["view", "scan.npz", "--labels", "IN"]),
    "view --boxes": (".json", ["view", "scan.npz", "--boxes", "IN"]),
    "view --checkpoint": ("", ["view", "scan.npz", "--checkpoint", "IN"]),
    "tune --file": (".npz", ["tune", *NET, "--file", "IN"]),
    "tune --model": (".py", ["tune", "--model", "IN:net", "--file", "scan.npz"]),
    "explain --file": (".npz", ["explain", *NET, "--file", "IN"]),
    "bench --model": (".py", ["bench", "--model", "IN:net", "--tpu", "v5e"]),
    "cache import": (".json", ["cache", "import", "IN"]),
    "check": (".py", ["check", "IN:doubled", "--inputs", "f32[4]"]),
    "export": (".py", ["export", "IN:net", "--capacity", "64", "--cpu"]),
    "export --checkpoint": ("", ["export", "--checkpoint", "IN", "--capacity", "64", "--cpu"]),
}
OUTPUTS = {
    "demo --out": ["demo", *SCAN, "--out", "IN", *CHOSEN],
    "demo --profile": ["demo", *SCAN, "--out", "new", "--profile", "IN", *CHOSEN],
    "train --out": ["train", "config.toml", "--out", "IN"],
    "segment --out": ["segment", "scan.npz", "--checkpoint", "run/checkpoint", "--out", "IN"],
    "detect --out": ["detect", "scan.npz", "--weights", "no.safetensors", "--out", "IN", *DETECTOR],
    "export --output": [
        "export",
        "boundary_model.py:net",
        "--cpu",
        *CAPACITY,
        "--output",
        "IN/new",
    ],
    "cache export": ["cache", "export", "IN/choices.json"],
}


def _of(content):
    def make(path):
        path.write_bytes(content)
        return path

    return make


def _folder(path):
    path.mkdir()
    return path


def _loop(path):
    path.symlink_to(path)
    return path


def _pipe(path):
    os.mkfifo(path)
    return path


FAULTS = {
    "missing": lambda path: path,
    "a folder": _folder,
    "empty": _of(b""),
    "noise": _of(np.random.default_rng(0).bytes(3000)),
    "zeros": _of(bytes(3000)),
    "below a file": lambda path: f"scan.npz/below{path.suffix}",
    "long": lambda path: "x" * 5000 + path.suffix,
    "zero byte": lambda path: f"a\0b{path.suffix}",
    "a loop of links": _loop,
    "a device without end": lambda path: "/dev/zero",
    "a pipe": _pipe,
}
# A pipe or noise in the place of a folder is a file, as any.
OUTPUT_FAULTS = ("empty", "below a file", "long", "zero byte", "a loop of links")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A scan, a configuration, a model and a trained network."""
    place = tmp_path_factory.mktemp("faults")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(Segmentation, "model", small)
        patch.setattr(_Run, "_pictures", lambda self: None)
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr("voxax.plot.viewer.Viewer", _NoViewer)
        (place / "boundary_model.py").write_text(MODEL)
        (place / "config.toml").write_text(CONFIG)
        plan = np.random.default_rng(0).uniform(0, 40, (2000, 2))
        labels = (plan[:, 0] > 20) + 1
        np.savez("scan.npz", xyz=np.column_stack([plan, np.zeros(2000)]), label=labels)
        shutil.copy("scan.npz", "held_out.npz")
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            assert main(["demo", *SCAN, "--out", "run", *CHOSEN]) == 0
        yield place
    sys.modules.pop("boundary_model", None)


class _NoViewer:
    def __init__(self, *arguments, **options):
        raise AssertionError("nothing is wrong with the file")


def told(capsys, arguments):
    """The one line that a command ends with."""
    capsys.readouterr()
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("voxax: ")
    assert error.count("\n") == 1
    assert "Traceback" not in error
    assert len(error) < 1000
    return error


def at(place, arguments):
    return [str(place) + word[2:] if word[:2] == "IN" else word for word in arguments]


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.filterwarnings("ignore:.*Transparent hugepages")
def test_inputs_that_are_none(name, folder, tmp_path, capsys):
    end, arguments = INPUTS[name]
    for number, (fault, make) in enumerate(FAULTS.items()):
        place = make(tmp_path / f"in{number}{end}")
        if end == ".py" and fault == "empty":
            continue  # a module without names
        assert told(capsys, at(place, arguments)), fault


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_that_are_none(name, folder, tmp_path, capsys, monkeypatch):
    def compiled(*arguments):
        raise AssertionError("it is found before anything is compiled")

    monkeypatch.setattr(Trainer, "compile", compiled)
    for number, fault in enumerate(OUTPUT_FAULTS):
        place = FAULTS[fault](tmp_path / f"out{number}")
        assert told(capsys, at(place, OUTPUTS[name])), fault
    assert told(capsys, at("/proc/voxax", OUTPUTS[name]))


@contextlib.contextmanager
def full_disk(most=100):
    """Files of more bytes cannot be written, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_full_disk(name, folder, tmp_path, capsys):
    if name == "cache export":
        pytest.skip("there is nothing to export")
    with full_disk():
        assert "too large" in told(capsys, at(tmp_path / "new", OUTPUTS[name]))


@pytest.mark.parametrize("fault", ["no arrays", "noise", "another network", "another task"])
@pytest.mark.filterwarnings("ignore:.*is taken")
def test_broken_checkpoints(fault, folder, tmp_path, capsys):
    place = tmp_path / "checkpoint"
    shutil.copytree(folder / "run" / "checkpoint", place)
    (step,) = steps_of(place)
    description = place / str(step) / "description" / "metadata"
    values = json.loads(description.read_text())
    if fault == "no arrays":
        shutil.rmtree(place / str(step) / "default")
    elif fault == "noise":
        for path in sorted(place.rglob("*")):
            if path.is_file() and path != description:
                path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))
    elif fault == "another network":
        values["network"]["class_names"] = ["a", "b", "c"]
    else:
        values["task"] = "levitate"
    description.write_text(json.dumps(values))
    assert str(place) in told(capsys, ["segment", "scan.npz", "--checkpoint", str(place)])


@pytest.mark.parametrize("order", [None, 3, [], "x", float("nan")])
def test_an_order_of_scenes_that_is_none(order, folder, tmp_path, capsys):
    shutil.copytree(folder / "run", tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoint"
    (step,) = steps_of(checkpoint)
    shutil.rmtree(checkpoint / str(step) / "checksums")
    description = checkpoint / str(step) / "description" / "metadata"
    values = json.loads(description.read_text()) | {"order": order}
    description.write_text(json.dumps(values))
    words = ["demo", *SCAN, "--out", str(tmp_path / "run"), *CHOSEN, "--resume"]
    assert "which is no table of the seed" in told(capsys, words)


SETTINGS = {"class_names": ["a", "b"], "voxel_size": 1, "width": 1, "learning_rate": 1, "steps": 1}
NONE_AT_ALL = (-1, float("nan"), float("inf"), 1e308, 10**40, "x", [], {}, [[1]])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("voxel_size", NONE_AT_ALL),
        ("width", NONE_AT_ALL),
        ("steps", NONE_AT_ALL),
        ("learning_rate", (0, -1, float("nan"), "x", [])),
        ("weight_decay", (-1, float("nan"), float("inf"), "x", [])),
        ("class_names", (3, None, [1, 2], ["a"] * 5000)),
        ("class_weights", ("x", 1, [1], [1, -1], [1, float("nan")], [1, 1, 1], ["a", "b"])),
    ],
)
def test_numbers_of_a_strangers_checkpoint(name, values):
    Segmentation.from_json(SETTINGS | {"class_weights": [1, 0]})
    for value in values:
        with pytest.raises(FileFormatError, match="the checkpoint's description"):
            Segmentation.from_json(SETTINGS | {name: value})


def raising(error):
    """A stack as of a command: voxax calls a package, which raises."""
    package = {"__name__": error.pop("by")}
    exec("def fail(error):\n    raise error", package)
    ours = {"__name__": "voxax.cli.some", "fail": package["fail"]}
    exec("def command(error):\n    fail(error)", ours)
    try:
        ours["command"](error["error"])
    except BaseException as found:
        return found


class _LibraryError(Exception):
    pass


CAUSES = {
    "no permission": PermissionError(errno.EACCES, "Permission denied", "a.ply"),
    "read-only disk": OSError(errno.EROFS, "Read-only file system", "out/a"),
    "full disk": OSError(errno.ENOSPC, "No space left on device", "out/a"),
    "open files": OSError(errno.EMFILE, "Too many open files"),
    "memory": MemoryError("Unable to allocate 7 TiB"),
    "device memory": type("JaxRuntimeError", (RuntimeError,), {})("RESOURCE_EXHAUSTED: Out of"),
    "json": json.JSONDecodeError("Expecting value", "{", 1),
    "archive": zipfile.BadZipFile("File is not a zip file"),
}
# As of E57's library, of which the reader makes an error of voxax.
CAUSES["several lines"] = FileFormatError("cannot read a.e57: checksum\n\nDebug info:\n\tline 3")
LIBRARIES = ("laspy", "plyfile", "h5py", "pyarrow", "safetensors", "orbax", "pye57")


@pytest.mark.parametrize("command", ["demo", "train", "segment", "view", "tune", "export", "cache"])
def test_every_cause_is_one_line_of_every_command(command, capsys, monkeypatch):
    faults = {name: (error, "voxax.io.some") for name, error in CAUSES.items()}
    faults |= {name: (_LibraryError("bad\nheader"), f"{name}.inner") for name in LIBRARIES}
    for name, (error, by) in faults.items():
        found = raising({"error": error, "by": by})

        def failing(arguments, found=found):
            raise found

        monkeypatch.setattr("voxax.cli._run", failing)
        line = told(capsys, [command, "scan.npz"])
        assert name in line or name not in LIBRARIES
        assert main([command, "--debug", "scan.npz"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("Traceback")
        assert error.endswith(line)


@pytest.mark.parametrize(("package", "extra"), [("rich", "cli"), ("orbax", "demo")])
def test_a_package_that_is_missing(package, extra):
    error = ModuleNotFoundError(f"No module named {package}.x", name=f"{package}.x")
    line = line_of(error, [])
    assert f'needs {package}: pip install "voxax[{extra}]"' in line


@pytest.mark.parametrize("kind", [AssertionError, TypeError, KeyError, ValueError])
def test_mistakes_of_voxax_keep_their_traceback(kind, monkeypatch):
    found = raising({"error": kind("ours"), "by": "numpy.core"})
    assert line_of(found, []) is None

    def failing(arguments):
        raise found

    monkeypatch.setattr("voxax.cli._run", failing)
    with pytest.raises(kind, match="ours"):
        main(["hardware"])
    assert main(["hardware", "--debug"]) == 1


def test_an_interruption_is_one_line(capsys, monkeypatch):
    def interrupted(arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("voxax.cli._run", interrupted)
    assert main(["tune"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_debug_is_no_option_of_a_command(capsys):
    for arguments in (["--debug", "hardware"], ["hardware", "--debug"]):
        assert main(arguments) == 0
    assert main(["--debug", "view", "no.ply"]) == 2
    assert "MissingFileError" in capsys.readouterr().err


HUGE = ("-1", "nan", "1e300", "99999999999999999999999")
NUMBERS = {
    "demo": ["demo", *SCAN, "--out", "new"],
    "export": ["export", "boundary_model.py:net", "--cpu", *CAPACITY],
    "tune": ["tune", *NET, "--file", "scan.npz"],
    "view": ["view", "scan.npz"],
    "explain": ["explain", "--roofline"],
}
OPTIONS = {
    "demo": ("steps", "width", "scenes", "workers", "batch-size", "devices", "seed"),
    "export": ("capacity", "channels", "classes", "batch-size", "ndim"),
    "tune": ("channels", "classes"),
    "view": ("port",),
    "explain": ("width",),
}


@pytest.mark.parametrize("command", NUMBERS)
def test_numbers_beyond_every_limit(command, folder, capsys):
    for option in OPTIONS[command]:
        for value in HUGE:
            capsys.readouterr()
            try:
                status = main([*NUMBERS[command], f"--{option}={value}"])
            except SystemExit as end:  # of the parser: no number, or no whole one
                status = end.code
            error = capsys.readouterr().err
            assert (status, "Traceback" in error) == (2, False), (option, value)
