"""The shape of the house: imports go one way, and importing voxax has no side effects."""

import ast
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "voxax"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Rooms that import the house, and that the house never imports.
SIDE_DOORS = ("cli", "plot", "check", "torch", "interop", "io", "forecast")
# Semi-public parts of JAX, which change between releases: only `_compat.py`, and for the checker
# `_compat_tracing.py`, may touch them.
COMPAT = (PACKAGE / "_compat.py", PACKAGE / "_compat_tracing.py")
PRIVATE_JAX = ("jax.extend", "jax.interpreters", "jax._src", "jax.core")
# Too slow or too optional to come with `import voxax`.
HEAVY = ("flax", "torch", "matplotlib", "pandas", "optax", "orbax", "laspy")
# A module's name says what is in it.
NAMELESS = {"utils.py", "util.py", "helpers.py", "helper.py", "misc.py", "common.py"}
MAX_LINES = 450


def run_python(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, **environment},
    )


def layers() -> list[str]:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    (house,) = (contract for contract in contracts if contract["id"] == "house")
    return [name.strip(" ()") for layer in house["layers"] for name in layer.split("|")]


def package_of(path: Path) -> list[str]:
    """The dotted package that relative imports in `path` start from, as a list."""
    return list(path.relative_to(PACKAGE.parent).parent.parts)


def imported_names(path: Path) -> set[str]:
    """Every dotted name that the file imports, plus its `jax.something` attributes."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path)
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names.add(base)
            names.update(f"{base}.{alias.name}" for alias in node.names)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "jax"
        ):
            names.add(f"jax.{node.attr}")
    return names


def within(name: str, packages) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def test_import_contracts_hold():
    script = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_room_is_on_a_floor():
    """A new package or module must be given its place in the contract."""
    rooms = {
        ".".join(("voxax", *path.relative_to(PACKAGE).with_suffix("").parts))
        for folder in (PACKAGE, PACKAGE / "nn")
        for path in folder.iterdir()
        if path.name not in ("__init__.py", "nn")
        and (path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py"))))
    }
    assert sorted(rooms - set(layers())) == []


def test_house_never_imports_side_doors():
    """The import contract sees all modules but the package's own `__init__`; this one does."""
    doors = [f"voxax.{door}" for door in SIDE_DOORS]
    offenders = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in SOURCES
        if path.relative_to(PACKAGE).with_suffix("").parts[0] not in SIDE_DOORS
        and (found := {name for name in imported_names(path) if within(name, doors)})
    }
    assert offenders == {}


def test_private_jax_only_in_compat():
    offenders = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in SOURCES
        if path not in COMPAT
        and (found := {name for name in imported_names(path) if within(name, PRIVATE_JAX)})
    }
    assert offenders == {}


def test_no_nameless_modules():
    assert [str(path.relative_to(ROOT)) for path in SOURCES if path.name in NAMELESS] == []


def test_files_are_short():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in SOURCES}
    assert {path: n for path, n in lengths.items() if n > MAX_LINES} == {}


def test_import_is_light():
    trace = run_python("-X", "importtime", "-c", "import voxax").stderr
    loaded = {line.rsplit("|", 1)[-1].strip() for line in trace.splitlines() if "|" in line}
    assert "voxax" in loaded
    assert sorted(name for name in loaded if within(name, HEAVY)) == []


def test_import_prints_nothing():
    result = run_python("-W", "default", "-c", "import voxax")
    assert result.stdout == ""
    assert result.stderr == ""


def test_import_initialises_no_backend():
    script = (
        "import voxax\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized())"
    )
    assert run_python("-c", script).stdout.strip() == "False"


@pytest.mark.parametrize("prefix", ["VOXAX_", "WARPCONVNET_"])
def test_import_reads_no_environment(prefix):
    script = (
        "import os\n"
        "plain = os._Environ.__getitem__\n"
        "read = []\n"
        "def recorded(self, key):\n"
        "    read.append(key)\n"
        "    return plain(self, key)\n"
        "os._Environ.__getitem__ = recorded\n"
        "import voxax\n"
        f"print([key for key in read if str(key).startswith({prefix!r})])"
    )
    assert run_python("-c", script).stdout.strip() == "[]"
