"""Output whose reader is gone, as behind `| head`: every command ends without a word."""

import io
import os
import subprocess
import sys

import numpy as np
import pytest

from voxax.cli import main

MODEL = """
from voxax.nn.modules import SubMConv3d

print("imported")
net = SubMConv3d(4, 8, 3)

def doubled(x):
    return 2 * x
"""
FILES = ["--file", "cloud.npz", "--voxel-size", "0.2"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch, rng):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "piped_model.py").write_text(MODEL)
    np.savez(tmp_path / "cloud.npz", xyz=rng.uniform(0, 2, (150, 3)))
    yield
    sys.modules.pop("piped_model", None)


def nobody_reads():
    """A stream to a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", buffering=1)


@pytest.mark.parametrize(
    "command",
    [
        ["hardware"],
        ["cache", "list"],
        ["explain", *FILES, "--model", "piped_model.py:net"],
        ["tune", *FILES, "--model", "piped_model.py:net"],
        ["export", "piped_model.py:net", "--capacity", "64", "--cpu"],
        ["check", "piped_model.py:doubled", "--inputs", "f32[4]"],
        ["check", "piped_model.py:doubled", "--inputs", "f32[4]", "--format", "json"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_command_ends_quietly(command, monkeypatch):
    told = io.StringIO()
    monkeypatch.setattr(sys, "stderr", told)
    with nobody_reads() as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        try:
            status = main(command)
        except SystemExit as end:  # of rich, which sees it first
            status = end.code
        stream.write("more\n")  # goes nowhere
    assert status in (141, 1)
    assert "Error" not in told.getvalue()


@pytest.mark.parametrize("command", [["--help"], ["cache", "list"]])
def test_a_process_ends_quietly(command):
    code = "import sys; from voxax.cli import main; sys.exit(main())"
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ran = subprocess.run(
            [sys.executable, "-c", code, *command],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert ran.stderr == ""
    assert ran.returncode in (141, 1)


def test_another_broken_pipe_is_not_hidden(monkeypatch):
    def command(arguments):
        raise BrokenPipeError("of a worker")

    monkeypatch.setattr("voxax.cli._told", command)
    with pytest.raises(BrokenPipeError, match="of a worker"):
        main(["hardware"])
