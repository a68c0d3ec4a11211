"""The version of a part of voxax: a digest of the code of its modules and of all that they import.

Docstrings, lines of comments and empty lines do not count: another wording changes no program.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path


@functools.cache
def digest_of(*modules: str, within: str = "voxax", files: tuple[Path, ...] = ()) -> str:
    """Return a digest of these modules, of those that they import within a package, and files."""
    known: dict[str, Path] = {}
    left = list(modules)
    while left:
        name = left.pop()
        if name not in known:
            known[name] = _file(name)
            left += (other for other in _imported(name) if f"{other}.".startswith(f"{within}."))
    found = hashlib.sha256()
    for path in (*(known[name] for name in sorted(known)), *files):
        found.update(code_of(path))
    return found.hexdigest()[:12]


def code_of(path: Path) -> bytes:
    """Return the lines of a Python file that are neither docstring nor comment nor empty."""
    text = path.read_text()
    strings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            strings.update(range(node.lineno - 1, node.end_lineno or node.lineno))
    lines = (line for n, line in enumerate(text.splitlines()) if n not in strings)
    return "\n".join(li for li in lines if li.strip() and not li.lstrip().startswith("#")).encode()


def _file(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None, name
    return Path(spec.origin)


@functools.cache
def _imported(name: str) -> tuple[str, ...]:
    """Return the modules of voxax that a module imports, at its top or within functions."""
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(_file(name).read_text())):
        if isinstance(node, ast.Import):
            found.update((a.name, None) for a in node.names if a.name.startswith("voxax."))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("voxax"):
            for alias in node.names:
                found.update(dict.fromkeys(_modules(str(node.module), alias.name)))
    return tuple(found)


def _modules(module: str, name: str) -> Iterator[str]:
    """Yield the module that ``from module import name`` reads."""
    stub = _file(module).with_suffix(".pyi")
    if _is_module(f"{module}.{name}"):
        yield f"{module}.{name}"
    elif stub.name == "__init__.pyi" and (place := _stubs(stub).get(name)):
        yield from _modules(f"{module}.{place}", name)
    else:
        yield module


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # within a module that is no package
        return False


@functools.cache
def _stubs(stub: Path) -> dict[str, str]:
    """Return by name the module that a package's names are loaded from."""
    nodes = ast.parse(stub.read_text()).body if stub.exists() else []
    return {
        alias.asname or alias.name: node.module
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }
