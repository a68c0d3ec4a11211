"""Every public name says what it is; a function that takes arrays, their shapes and its errors.

Public is what `docs/reference` names, and the checker; in a module what it hands on (`a as a`) or
lists in `__all__`; of a class, its methods and properties without an underscore.
"""

import ast
import functools
import importlib
import inspect
import re
import types
from pathlib import Path

import pytest
from flax import nnx

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
NAMED = [n for p in PAGES for n in re.findall(r"^::: (\S+)", p.read_text(), re.MULTILINE)]
NAMED.append("voxax.check")  # a page of its own

# On other pages of the reference: modules, and what chooses algorithms.
ELSEWHERE = {"__version__", "tune", "explain", "algorithms", "reload_environment"}
ELSEWHERE |= {"check_static", "fits"}

# What JAX calls to take a class apart, and PyTorch to run a module and to print it.
PROTOCOL = {"tree_flatten_with_keys", "tree_unflatten", "forward", "extra_repr"}
# Plain arithmetic: what does not fit is an error of JAX.
RAISE_NOTHING = {"poly6", "masked_moments", "normalize"}

ARRAY = re.compile(r"\b(Array|ndarray|ArrayLike|Tensor)\b")
# Converted to arrays, so annotated with Any.
ALSO_ARRAYS = {"batch_index", "coords", "features", "mask", "offsets", "positions", "scores"}
VOXELS = re.compile(r"\b(Voxels|Points|VoxelGeometry)\b")

SHAPE = re.compile(r"\[[^\]]*\]")
IN_WORDS = re.compile(
    r"scalar|a number|integers?\b|one per axis|random`* key|\bas\s+(in|for|there|of|returned)\b"
)
REFERENCE = re.compile(r"\bas (?:in|for|there)?[^:`]*?:(?:func|class|meth):`~?([\w.]+)`", re.DOTALL)


def handed_on(module) -> list[str]:
    """The public names of a module."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    tree = ast.parse(inspect.getsource(module))
    names = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    ]
    defined = (ast.FunctionDef, ast.ClassDef)
    own = [n.name for n in tree.body if isinstance(n, defined) and not n.name.startswith("_")]
    return names or own


@functools.cache
def public(torch: bool) -> dict[str, object]:
    """Public callables by their dotted name."""
    found: dict[str, object] = {}
    for name in NAMED:
        if name.startswith("voxax.torch") != torch:
            continue
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            folder, _, last = name.rpartition(".")
            found[name] = getattr(importlib.import_module(folder), last)
            continue
        found |= {f"{name}.{last}": getattr(module, last) for last in handed_on(module)}
    return {name: value for name, value in found.items() if is_code(value)}


def is_code(value) -> bool:
    """A class or a function, also a compiled one; no constant and no alias of a type."""
    return callable(value) and not isinstance(value, types.GenericAlias)


def text_of(value) -> str:
    """The docstring that is written there, neither inherited nor made by `dataclass`."""
    if not inspect.isclass(value):
        return value.__doc__ or ""
    text = vars(value).get("__doc__") or ""
    return "" if text.startswith(f"{value.__name__}(") else text


def members(owner: type) -> dict[str, object]:
    """Public methods and properties that a class defines itself."""
    found = {}
    for name, value in vars(owner).items():
        if name.startswith("_") or name in PROTOCOL:
            continue
        if isinstance(value, property):
            found[name] = value.fget
        elif isinstance(value, classmethod | staticmethod):
            found[name] = value.__func__
        elif inspect.isfunction(value):
            found[name] = value
    return found


def nameless(torch: bool) -> list[str]:
    found = []
    for name, value in public(torch).items():
        found += [] if text_of(value) else [name]
        if inspect.isclass(value) and value.__module__.startswith("voxax"):
            own = members(value)
            found += [f"{name}.{last}" for last, member in own.items() if not member.__doc__]
    return found


def entries(text: str) -> dict[str, str]:
    """Return the text of each argument in the section Args."""
    section = re.search(r"^Args:\n((?:[ ]+.*\n|\n)*)", inspect.cleandoc(text) + "\n", re.MULTILINE)
    if section is None:
        return {}
    body = inspect.cleandoc("\n" + section[1])
    found: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", body):
        names, _, said = entry.partition(":")
        found |= {name.strip(" *\n"): said for name in names.split(",")}
    return found


def arguments(function) -> dict[str, str]:
    """Annotations by name."""
    return {n: str(p.annotation) for n, p in inspect.signature(function).parameters.items()}


def is_array(name: str, annotation: str) -> bool:
    if re.match(r"(float|int) \|", annotation):  # a number that may be traced
        return False
    return bool(ARRAY.search(annotation)) or (annotation == "Any" and name in ALSO_ARRAYS)


def referred(text: str, functions: dict[str, object]) -> list[object]:
    """The functions whose arguments or errors these are, too."""
    last = {name.rpartition(".")[2]: value for name, value in functions.items()}
    found = []
    for name in REFERENCE.findall(text):
        folder, _, own = name.rpartition(".")
        if folder.startswith("voxax"):
            found.append(getattr(importlib.import_module(folder), own))
        elif own in last:
            found.append(last[own])
    return found


def states_errors(function, functions, depth: int = 3) -> bool:
    text = text_of(function)
    if "Raises:" in text:
        return True
    return depth > 0 and any(
        states_errors(other, functions, depth - 1) for other in referred(text, functions)
    )


def states_shape(function, argument: str, functions, depth: int = 3) -> bool:
    text = text_of(function)
    said = entries(text).get(argument)
    if said is not None and (SHAPE.search(said) or IN_WORDS.search(said)):
        return True
    return depth > 0 and any(
        states_shape(other, argument, functions, depth - 1) for other in referred(text, functions)
    )


ROLE = re.compile(r":(?:func|class):`~?([\w.]+)`")


def described(value, functions, depth: int = 3) -> set[str]:
    """Arguments in the docstring, in those of functions that it names, and of base classes."""
    texts = [text_of(base) for base in getattr(value, "__mro__", [value])]
    found = set().union(*(entries(text) for text in texts))
    last = {name.rpartition(".")[2]: other for name, other in functions.items()}
    for name in ROLE.findall(texts[0]) if depth else ():
        other = functions.get(name, last.get(name.rpartition(".")[2], value))
        found |= described(other, functions, depth - 1) if other is not value else set()
    return found


def silent_about(value, functions) -> list[str]:
    """Arguments that nothing describes; of options (default ``...``) the entry of all counts."""
    known = described(value, functions)
    given = inspect.signature(value).parameters.values()
    return [p.name for p in given if p.name not in known and p.default is not ...]


def public_functions(torch: bool) -> dict[str, object]:
    return {name: f for name, f in public(torch).items() if not inspect.isclass(f)}


def without_shapes_or_errors(functions) -> list[str]:
    found = []
    for name, function in functions.items():
        given = arguments(function)
        arrays = [n for n, annotation in given.items() if is_array(n, annotation)]
        shapeless = [n for n in arrays if not states_shape(function, n, functions)]
        found += [f"{name}: no shape of {', '.join(shapeless)}"] if shapeless else []
        takes = arrays or any(VOXELS.search(annotation) for annotation in given.values())
        if takes and name.rpartition(".")[2] not in RAISE_NOTHING:
            found += [] if states_errors(function, functions) else [f"{name}: no errors"]
    return found


def test_the_public_names_are_found():
    names = public(False)
    assert len(names) > 200
    assert {"voxax.voxelize", "voxax.nn.modules.SubMConv3d", "voxax.interop.to_spconv"} <= set(
        names
    )


def imported_in_docs_and_examples() -> dict[str, str]:
    """Return each name of voxax that users are shown, with the page that imports it."""
    block = re.compile(r"^```python[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    sources = [(page, match) for page in pages for match in block.findall(page.read_text())]
    sources += [(path, path.read_text()) for path in sorted((ROOT / "examples").glob("*.py"))]
    found = {}
    for path, source in sources:
        if path.name == "architecture.md":  # for those who add an algorithm
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("voxax"):
                found |= {f"{node.module}.{a.name}": path.name for a in node.names}
    return found


def test_what_users_are_shown_is_public():
    """Check that names on pages are public, so that the tests below and the API page have them."""
    known = {id(inspect.unwrap(value)) for value in public(False).values()}
    shown = {n: p for n, p in imported_in_docs_and_examples().items() if ".torch" not in n}
    assert len(shown) > 60
    hidden = []
    for name, page in shown.items():
        folder, _, last = name.rpartition(".")
        value = getattr(importlib.import_module(folder), last, None)
        if is_code(value) and id(inspect.unwrap(value)) not in known:
            hidden.append(f"{name} ({page})")
    assert hidden == []


def test_every_package_that_hands_on_is_on_the_page():
    """Check all packages but those whose names come with `voxax`, and the command line."""
    inner = {"kernels", "cli", "coords", "explanation", "geometry", "products", "tuning"}
    inner |= {"kernels.*", "nn", "torch.core", "_native"}
    source = ROOT / "src" / "voxax"
    for init in sorted(source.rglob("__init__.py")):
        name = ".".join(init.parent.relative_to(source).parts)
        if not name or name in inner or name.split(".")[0] + ".*" in inner:
            continue
        module = importlib.import_module(f"voxax.{name}") if "torch" not in name else None
        if module is None or handed_on(module):
            assert f"voxax.{name}" in NAMED, name


def test_every_public_name_has_a_docstring():
    assert nameless(False) == []


def test_functions_of_arrays_state_shapes_and_errors():
    assert without_shapes_or_errors(public_functions(False)) == []


def test_every_argument_is_described():
    """Check functions and layers; fields of records are attributes."""
    functions = public(False)
    found = {}
    for name, value in functions.items():
        if not name.startswith(("voxax.nn.", "voxax.models.")) and name.count(".") > 1:
            continue
        if inspect.isclass(value) and not issubclass(value, nnx.Module):
            continue
        if missing := silent_about(value, functions):
            found[name] = missing
    assert found == {}


@pytest.mark.torch
def test_the_same_of_voxax_torch():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    assert nameless(True) == []
    assert without_shapes_or_errors(public_functions(True)) == []


def test_every_public_name_has_a_place_in_the_reference():
    """Where several pages share a module, together they name all that it hands on."""
    block = re.compile(r"^::: (\S+)\n((?:    .*\n)*)", re.MULTILINE)
    shown: dict[str, list[str]] = {}
    for page in PAGES:
        for name, options in block.findall(page.read_text()):
            shown.setdefault(name, []).extend(re.findall(r"^        - (\w+)$", options, re.M))
    lists = {name: members for name, members in shown.items() if members}
    assert "voxax.nn.modules" in lists
    for name, members in lists.items():
        assert sorted(members) == sorted(set(members)), name
        if not name.startswith("voxax.torch"):
            module = importlib.import_module(name)
            own = {n for n in handed_on(module) if not inspect.ismodule(getattr(module, n))}
            assert own - ELSEWHERE <= set(members) <= own, name


SECTION = re.compile(r"^( *)(Args|Attributes|Raises|Returns|Yields):\n\n?( *)\S", re.MULTILINE)


def test_sections_are_indented_by_two():
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for before, section, inside in SECTION.findall(path.read_text()):
            if len(inside) != len(before) + 2:
                found.append(f"{path.relative_to(ROOT)}: {section} by {len(inside) - len(before)}")
    assert found == []
