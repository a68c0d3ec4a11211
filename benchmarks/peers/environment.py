"""The environment of the peers: a venv with pinned versions, made on first use."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

TORCH = "torch==2.13.0"


class Package(NamedTuple):
    """Package of a peer, and the import that shows that it works."""

    requirement: str
    modules: str


# spconv and Open3D run on PyTorch, which comes first.
PACKAGES = {
    "torch": Package(TORCH, "torch"),
    "spconv": Package("spconv==2.3.8", "spconv.pytorch"),
    # The plain open3d wheel wants CUDA.
    "open3d": Package("open3d-cpu==0.20.0", "open3d.ml.torch"),
}


def default_folder() -> Path:
    """In the user's cache folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "voxax" / "peers"


def prepare(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Make the venv, install what is missing.

    Returns:
      ``(its Python or None, reasons by peer for those that cannot be used)``.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        reason = _make(folder)
        if reason is not None:
            return None, dict.fromkeys(PACKAGES, reason)
    absent: dict[str, str] = {}
    for peer, package in PACKAGES.items():
        if "torch" in absent:
            absent[peer] = "it needs PyTorch"
        elif _version(python, package.requirement) is None:
            print(f"installing {package.requirement} into {folder}", flush=True)
            # Every command names PyTorch, so that no other package replaces it.
            names = dict.fromkeys([TORCH, package.requirement])
            done = _run([str(python), "-m", "pip", "install", "--quiet", "--no-input", *names])
            if done.returncode:
                absent[peer] = f"pip install {package.requirement}: {_last_line(done.stderr)}"
    return python, {**unusable(python), **absent}


def unusable(python: Path) -> dict[str, str]:
    """Reasons by peer for those that ``python`` cannot import."""
    absent = {}
    for peer, package in PACKAGES.items():
        done = _run([str(python), "-c", f"import torch, {package.modules}"])
        if done.returncode:
            absent[peer] = f"import {package.modules}: {_last_line(done.stderr)}"
    return absent


def _make(folder: Path) -> str | None:
    """Make an empty venv of Python 3.11, for which all peers have wheels; or say why not."""
    own = sys.executable if sys.version_info[:2] == (3, 11) else shutil.which("python3.11")
    if own is None:
        return "no python3.11 on the path: the peers' wheels are for Python 3.11"
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = _run([own, "-m", "venv", str(folder)])
    return _last_line(done.stderr or done.stdout) if done.returncode else None


def _version(python: Path, requirement: str) -> str | None:
    """The installed version if it is the pinned one."""
    name, version = requirement.split("==")
    code = f"import importlib.metadata as m; print(m.version({name!r}))"
    done = _run([str(python), "-c", code])
    found = done.stdout.strip().split("+")[0]
    return found if found == version else None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else "no message"
