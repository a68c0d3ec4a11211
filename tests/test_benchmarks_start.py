"""Every benchmark is a script that starts, as its first lines say it is called."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "benchmarks").rglob("*.py")
    if f"    python {path.relative_to(ROOT).as_posix()}" in path.read_text()
)


def test_there_are_scripts():
    assert "benchmarks/native.py" in SCRIPTS
    assert "benchmarks/peers/run.py" in SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_starts(script):
    result = subprocess.run(
        [sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "usage:" in result.stdout
