"""The page on architecture: its paths exist, its layers are the contract, its example runs."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
BLOCK = re.compile(r"<!-- lines: (?P<path>\S+) -->\n+```\w+\n(?P<code>.*?)^```$", re.M | re.S)

PATH = re.compile(r"`(?P<path>(?:src|native|tests)/[\w/.]+)(?:: (?P<name>\w+))?`")


def test_the_files_and_functions_it_names_exist():
    missing = []
    for match in PATH.finditer(BLOCK.sub("", PAGE)):
        path, name = ROOT / match["path"], match["name"]
        if not path.exists():
            missing.append(match["path"])
        elif name and not re.search(rf"^\s*(?:def|class) {name}\b", path.read_text(), re.M):
            missing.append(match[0])
    assert missing == []


def test_its_layers_are_those_of_the_contract():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = (c for c in settings["contracts"] if c["id"] == "layers")
    layers = [name.strip(" ()") for row in contract["layers"] for name in row.split("|")]
    section = PAGE.partition("## Layers")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert re.findall(r"`([\w.]+)`", "".join(rows)) == layers


# What a user sees: the name among the known ones, pinned, refused, measured beside others.
USE = """
import numpy as np

import voxax as vx
from voxax.kernels import lookup, names
from voxax.nn.functional import spatially_sparse_conv as conv

assert "all_taps" in names("dense") and lookup("all_taps")[0].name == "all_taps"
rng = np.random.default_rng(0)
coords = np.unique(rng.integers(0, 6, (60, 3)), axis=0)
coords = np.column_stack([np.zeros(len(coords), int), coords])
voxels = vx.Voxels.from_coords(coords, rng.normal(size=(len(coords), 3)).astype(np.float32))
weight = rng.normal(size=(27, 3, 4)).astype(np.float32)

def layer(voxels, weight):
    return conv(voxels, weight, fwd_algo=["all_taps", "explicit_gemm"])

pinned = conv(voxels, weight, fwd_algo="all_taps")
other = conv(voxels, weight, fwd_algo="explicit_gemm")
np.testing.assert_allclose(pinned.features, other.features, rtol=1e-4, atol=1e-4)
said = str(vx.explain(lambda v, w: conv(v, w, fwd_algo="all_taps"), voxels, weight))
assert "all_taps" in said, said
report = str(vx.tune(layer, voxels, weight))
assert "forward" in report, report
said = vx.explain(layer, voxels, weight).details()
assert "all_taps" in said and "explicit_gemm" in said, said
print(said)
"""


def add_lines(path: Path, diff: str) -> None:
    """Put each added line of the diff behind the line above it, which the file has once."""
    text = path.read_text()
    above = ""
    for line in diff.splitlines():
        if line.startswith("+"):
            assert text.count(f"\n{above}\n") == 1, f"{path.name} has not one line {above!r}"
            text = text.replace(f"\n{above}\n", f"\n{above}\n{line[1:]}\n")
        above = line[1:]
    path.write_text(text)


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The repository's sources and tests with what the page says."""
    folder = tmp_path_factory.mktemp("repository")
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copy(ROOT / "examples" / "kernels" / "all_taps.py", folder / "src" / "voxax" / "kernels")
    (block,) = BLOCK.finditer(PAGE)
    add_lines(folder / block["path"], block["code"])
    return folder


# What an editable installation finds by comes before PYTHONPATH, so it is taken out.
ALONE = """
import sys

sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]
"""


def run(folder, *command, **environment):
    start = folder / "start"
    start.mkdir(exist_ok=True)
    (start / "sitecustomize.py").write_text(ALONE)
    result = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(start), str(folder / "src")]),
            "VOXAX_CACHE_DIR": str(folder / "cache"),
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_tools_have_nothing_to_say(copy):
    pytest.importorskip("ruff", reason="ruff is not installed")
    run(copy, "-m", "ruff", "check", "--no-cache", "src/voxax/kernels/all_taps.py")
    run(copy, "-m", "ruff", "format", "--no-cache", "--check", "src/voxax/kernels/all_taps.py")


@pytest.mark.slow
def test_it_is_registered_pinned_and_measured(copy):
    said = run(copy, "-c", USE, VOXAX_AUTOTUNE="on", VOXAX_NATIVE="off")
    assert "all_taps" in said


@pytest.mark.slow
def test_it_conforms(copy):
    said = run(
        copy, "-m", "pytest", "-n", "0", "-q", "-m", "slow or not slow", "-k", "all_taps",
        "tests/conformance/test_conformance.py", VOXAX_TEST_EVERY="24", VOXAX_TEST_PARTS="1",
    )  # fmt: skip
    assert re.search(r"\d+ passed", said), said
