"""Imports go one way, in no cycle and at the top of a file, and importing voxax has no effects.

Layers are the contract in `pyproject.toml`, which import-linter checks; what it cannot see is
checked here from the syntax trees.
"""

import ast
import functools
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "voxax"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Packages around the library: they import it, and it never imports them.
AROUND = ("cli", "plot", "check", "torch", "io", "export", "predict")
# Semi-public parts of JAX, which change between releases: only `_compat.py` may use them, and for
# the checker `_compat_tracing.py`.
COMPAT = (PACKAGE / "_compat.py", PACKAGE / "_compat_tracing.py")
PRIVATE_JAX = ("jax.extend", "jax.interpreters", "jax._src", "jax.core")
# Too slow or too optional to come with `import voxax`.
HEAVY = ("flax", "torch", "matplotlib", "pandas", "optax", "orbax", "laspy")
# May be absent, or are slow to load and rarely needed (Pallas): imported where they are used.
OPTIONAL = (
    *HEAVY,
    "cutlass",
    "cuda",
    "grain",
    "huggingface_hub",
    "jax.experimental.pallas",
    "plotly",
    "platformdirs",
    "plyfile",
    "psutil",
    "pydantic",
    "pydantic_core",
    "pynvml",
    "lzf",
    "resource",  # not on Windows
    "rich",
    "safetensors",
    "treescope",
    "trimesh",
    "triton",
    "tyro",
    "viser",
)
# A module's name says what is in it.
NAMELESS = {"utils.py", "util.py", "helpers.py", "helper.py", "misc.py", "common.py"}


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
    (contract,) = (contract for contract in contracts if contract["id"] == "layers")
    return [name.strip(" ()") for layer in contract["layers"] for name in layer.split("|")]


def package_of(path: Path) -> list[str]:
    """The dotted package that relative imports in `path` start from, as a list."""
    return list(path.relative_to(PACKAGE.parent).parent.parts)


def module_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


class Import(NamedTuple):
    """One imported name: ``from base import name``, or ``import base`` with an empty name."""

    base: str
    name: str
    line: int
    in_function: bool

    @property
    def dotted(self) -> str:
        return f"{self.base}.{self.name}" if self.name else self.base


def imports(path: Path, tree: ast.Module) -> Iterator[Import]:
    """Every import of a file, those in functions and under ``TYPE_CHECKING`` among them."""

    def visit(node: ast.AST, in_function: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, "", node.lineno, in_function)
        elif isinstance(node, ast.ImportFrom):
            package = package_of(path)
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                yield Import(base, alias.name, node.lineno, in_function)
        inside = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, inside)

    return visit(tree, False)


@functools.cache
def imports_of(path: Path) -> tuple[Import, ...]:
    return tuple(imports(path, ast.parse(path.read_text(), str(path))))


@functools.cache
def handed_on(path: Path) -> tuple[Import, ...]:
    """What a package loads when it is used, by the stub beside it, but for its own packages."""
    stub = path.with_suffix(".pyi")
    if not stub.exists():
        return ()
    found = imports(path, ast.parse(stub.read_text(), str(stub)))
    return tuple(one for one in found if one.dotted not in MODULES)


def imported_names(path: Path) -> set[str]:
    """Every dotted name that the file imports, plus its `jax.something` attributes."""
    names = {name for found in imports_of(path) for name in (found.base, found.dotted)}
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "jax"
        ):
            names.add(f"jax.{node.attr}")
    return names


def within(name: str, packages) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def where(path: Path, found: Import) -> str:
    return f"{path.relative_to(ROOT)}:{found.line} {found.dotted}"


def target(found: Import) -> str | None:
    """The module of voxax that an import reads, behind a package's re-exports; or None."""
    name = found.dotted
    if name in MODULES:
        return name
    module = found.base
    if module in MODULES and MODULES[module].name == "__init__.py":
        for exported in (*imports_of(MODULES[module]), *handed_on(MODULES[module])):
            if exported.name == found.name and exported.base != module:
                return target(exported)
    return module if module in MODULES else None


def graph() -> dict[str, set[str]]:
    """For each module all that it imports: at once, in functions, for types or when it is used."""
    return {
        name: {
            read
            for found in (*imports_of(path), *handed_on(path))
            if (read := target(found)) and read != name
        }
        for name, path in MODULES.items()
    }


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in edges[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            component = sorted(stack[at:])
            del stack[at:]
            if len(component) > 1:
                found.append(component)

    for name in edges:
        if name not in index:
            visit(name)
    return sorted(found)


def test_import_contracts_hold():
    script = (
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True))"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_package_is_in_a_layer():
    """A new package or module must be given its place in the contract."""
    present = {
        ".".join(("voxax", *path.relative_to(PACKAGE).with_suffix("").parts))
        for folder in (PACKAGE, PACKAGE / "nn")
        for path in folder.iterdir()
        if path.name not in ("__init__.py", "nn")
        and (path.suffix == ".py" or (path.is_dir() and any(path.glob("*.py"))))
    }
    assert sorted(present - set(layers())) == []


def test_the_library_never_imports_what_is_around_it():
    """The import contract sees all modules but the package's own `__init__`; this one does."""
    around = [f"voxax.{package}" for package in AROUND]
    offenders = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in SOURCES
        if path.relative_to(PACKAGE).with_suffix("").parts[0] not in AROUND
        and (found := {name for name in imported_names(path) if within(name, around)})
    }
    assert offenders == {}


def test_there_is_no_import_cycle():
    assert cycles(graph()) == []


def test_cycles_are_found():
    edges = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"f"}, "f": {"e"}}
    assert cycles(edges) == [["b", "c"], ["e", "f"]]


def needs_optional(name: str) -> bool:
    """Return whether a name is an optional package, or a module that imports one when it loads."""
    if within(name, OPTIONAL):
        return True
    path = MODULES.get(name)
    return path is not None and any(
        within(found.dotted, OPTIONAL) for found in imports_of(path) if not found.in_function
    )


def may_be_in_a_function(path: Path, found: Import) -> bool:
    """Commands load what they run; `_compat` may import parts that some versions of JAX lack; the
    native library also serves PyTorch, without JAX."""
    if path == PACKAGE / "_native" / "__init__.py" and found.dotted == "jax":
        return True
    if path.relative_to(PACKAGE).parts[0] == "cli":
        return True
    if path in COMPAT and within(found.dotted, ("jax",)):
        return True
    return needs_optional(found.dotted) or needs_optional(target(found) or found.base)


def test_imports_are_at_the_top_of_a_file():
    offenders = [
        where(path, found)
        for path in SOURCES
        for found in imports_of(path)
        if found.in_function and not may_be_in_a_function(path, found)
    ]
    assert offenders == []


def test_hidden_imports_are_found():
    source = """
import a
if TYPE_CHECKING:
    from voxax.b import c
def f():
    from .d import e
"""
    found = list(imports(PACKAGE / "nn" / "x.py", ast.parse(source)))
    assert [(one.dotted, one.in_function) for one in found] == [
        ("a", False), ("voxax.b.c", False), ("voxax.nn.d.e", True)
    ]  # fmt: skip


def test_private_jax_only_in_compat():
    offenders = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in SOURCES
        if path not in COMPAT
        and (found := {name for name in imported_names(path) if within(name, PRIVATE_JAX)})
    }
    assert offenders == {}


def test_no_nameless_modules():
    # The one that spconv itself has, whose users import it by this name.
    known = {ROOT / "src/voxax/torch/spconv/utils.py"}
    found = [path for path in SOURCES if path.name in NAMELESS and path not in known]
    assert [str(path.relative_to(ROOT)) for path in found] == []


def loaded_by(statement: str) -> set[str]:
    """The modules that a new process has loaded after a statement."""
    return set(run_python("-c", f"{statement}\nimport sys\nprint(*sys.modules)").stdout.split())


def test_import_is_light():
    loaded = loaded_by("import voxax")
    assert sorted(name for name in loaded if within(name, (*HEAVY, "jax", "numpy"))) == []
    own = {name for name in loaded if within(name, ("voxax",))}
    assert own == {"voxax", "voxax._own_process"}


@pytest.mark.parametrize("name", ["Voxels", "plan", "kernel_map", "tune", "explain"])
def test_a_name_loads_no_optional_package(name):
    loaded = loaded_by(f"from voxax import {name}")
    assert "jax" in loaded
    assert sorted(found for found in loaded if within(found, HEAVY)) == []


@pytest.mark.parametrize(
    "name",
    ["CapacityError", "PAD", "bucket_capacity", "hardware.peak_memory"],
)
def test_a_name_that_needs_no_jax_loads_none(name):
    loaded = loaded_by(f"import voxax; voxax.{name}")
    assert sorted(found for found in loaded if within(found, ("jax", "jaxlib"))) == []


def test_a_first_use_under_jit_is_traced_once():
    """Also where a name loads modules that change what programs are keyed on."""
    script = (
        "import jax, voxax\n"
        "traced = []\n"
        "@jax.jit\n"
        "def f(x):\n"
        "    traced.append(x)\n"
        "    return voxax.voxelize(x, None, 0.5, capacity=32).count\n"
        "for _ in range(3):\n"
        "    f(jax.numpy.ones((32, 3)))\n"
        "print(len(traced))"
    )
    assert run_python("-c", script).stdout.strip() == "1"


def test_import_prints_nothing():
    script = "import voxax; voxax.plan, voxax.explain, voxax.tune, voxax.Voxels"
    result = run_python("-W", "default", "-c", script)
    assert result.stdout == ""
    assert result.stderr == ""


def test_import_initializes_no_backend():
    script = (
        "import voxax; voxax.plan, voxax.explain, voxax.tune, voxax.Voxels\n"
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
        "import voxax; voxax.plan, voxax.explain, voxax.tune, voxax.Voxels\n"
        f"print([key for key in read if str(key).startswith({prefix!r})])"
    )
    assert run_python("-c", script).stdout.strip() == "[]"
