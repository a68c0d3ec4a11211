"""The options that scripts share, the machine, and the table and the files of a result."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
DATA = Path(__file__).parents[2] / "shared" / "data"


def options(
    about: str | None,
    *,
    data: bool = False,
    rounds: int = 0,
    only: Sequence[str] = (),
    out: bool = True,
) -> argparse.ArgumentParser:
    """Return a parser with what the script says that it has.

    Args:
      about: the script's docstring.
      data: it reads scans.
      rounds: default of ``--rounds``; 0 is a script without.
      only: names of its parts.
      out: it writes results.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if data:
        folder = os.environ.get("VOXAX_TEST_DATA", DATA)
        parser.add_argument("--data", type=Path, default=folder, help="folder of scans")
    if rounds:
        parser.add_argument("--rounds", type=int, default=rounds)
    if only:
        parser.add_argument("--only", nargs="+", choices=only, default=list(only))
    if out:
        parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    return parser


def device() -> str:
    """Return the device's name, with the generation if the name hides it, and its cores."""
    from voxax.hardware import describe

    info = describe()
    generation = f" ({info.generation})" if info.generation else ""
    return f"{info.model or info.device_kind}{generation}, {info.cpu_cores} cores"


def machine() -> dict[str, str]:
    """Return what figures of a process with JAX depend on."""
    import jax

    from voxax import _native

    simd = _native.simd() or "no native kernels"
    return {"device": device(), "simd": simd, "jax": jax.__version__}


def code() -> str:
    """A digest of the files of voxax: sources, shipped choices, native library."""
    import voxax
    import voxax._native

    # An editable install keeps the native library in a folder of its own.
    files = {
        path.relative_to(folder).as_posix(): path
        for folder in map(Path, (*voxax.__path__, *voxax._native.__path__))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def table(
    head: Sequence[str], rows: Iterable[Sequence[Any]], left: int | Sequence[int] = 1
) -> list[str]:
    """Return the lines of a table, of which so many columns, or these, are words."""
    words = range(left) if isinstance(left, int) else left
    sides = "".join("---|" if place in words else "---:|" for place in range(len(head)))
    lines = [f"| {' | '.join(head)} |", f"|{sides}"]
    return lines + [f"| {' | '.join(map(str, cells))} |" for cells in rows]


def known(folder: Path, name: str) -> Any:
    """Return what the JSON file of a result has, or nothing where there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(folder: Path, name: str, values: Any, lines: Sequence[str], show: bool = True) -> None:
    """Write ``name.json``, if there are values, and ``name.md``; print the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(lines).rstrip() + "\n"
    if values is not None:
        (folder / f"{name}.json").write_text(json.dumps(values, indent=1) + "\n")
    (folder / f"{name}.md").write_text(text)
    if show:
        print(text, flush=True)
