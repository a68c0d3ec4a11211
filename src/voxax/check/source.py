"""Find places in the user's source: frames that are not a library's, and the syntax around them."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib.util
import inspect
import itertools
import linecache
import os
import sysconfig
import types
from collections.abc import Iterable, Iterator
from typing import Any

from voxax import _compat_tracing

# The user's line reaches JAX through frames of these libraries; no finding is about them.
_LIBRARIES = (
    "jax", "jaxlib", "flax", "optax", "orbax", "numpy", "voxax", "tyro", "torch", "torchax",
    "torchvision/ops",
)  # fmt: skip

Frame = tuple[types.CodeType, int]  # innermost instruction of one frame


@dataclasses.dataclass(frozen=True, order=True)
class Site:
    """A range of source code, inside of the function that `function` names.

    Lines and columns count from 1, and the end column is exclusive. `function` is empty if the
    function is unknown.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@functools.cache
def _library_folders() -> tuple[tuple[str, str], ...]:
    found = []
    for name in _LIBRARIES:
        package, _, folder = name.partition("/")
        spec = importlib.util.find_spec(package)
        places = (spec.submodule_search_locations if spec else None) or ()
        found += [(name, os.path.join(place, folder, "")) for place in places]
    return tuple(found)


@functools.cache
def _standard_library() -> tuple[str, str]:
    folder = os.path.join(sysconfig.get_path("stdlib"), "")
    return folder, os.path.join(sysconfig.get_path("purelib"), "")


def library_of(file: str) -> str | None:
    """Return the library that a file belongs to (``jax``, ``std``, ...), or None for user code."""
    if file.startswith("<frozen"):
        return "std"
    for name, folder in _library_folders():
        if file.startswith(folder):
            return name
    standard, installed = _standard_library()
    if file.startswith(standard) and not file.startswith(installed):
        return "std" if "site-packages" not in file else None
    return None


def site_at(code: types.CodeType, instruction: int) -> Site:
    """Return the range of source code of one bytecode instruction, given by its byte offset."""
    position = next(itertools.islice(code.co_positions(), max(instruction, 0) // 2, None), None)
    line, end_line, column, end_column = position or (None, None, None, None)
    line = line or code.co_firstlineno
    start = _characters(code.co_filename, line, column or 0)
    end = _characters(code.co_filename, end_line or line, end_column or 0)
    name = code.co_qualname.replace("<locals>.", "")
    return Site(code.co_filename, line, start + 1, end_line or line, end + 1, name)


def _characters(file: str, line: int, offset: int) -> int:
    """Return the number of characters in the first `offset` UTF-8 bytes of a source line."""
    text = linecache.getline(file, line).encode()
    return len(text[:offset].decode(errors="ignore"))


@dataclasses.dataclass(frozen=True)
class Place:
    """A place in the user's code, with the calls that lead to it and the library calls in it.

    Attributes:
      site: the range of source code in the user's innermost frame.
      api: the library function that `site` calls; None if Python itself acts, as in ``if x:``.
      inside: the library functions that run within `site`, innermost first; the last is `api`.
      callers: the user's calls that lead to `site`, innermost first.
    """

    site: Site
    api: str | None
    inside: tuple[str, ...]
    callers: tuple[Site, ...]


# The checker's own files. Callers of `check_static` are not part of the target.
_CHECKER = os.path.join(os.path.dirname(__file__), "")

# Functions between a user's call and the function that the user called.
_WRAPPERS = {
    "reraise_with_filtered_traceback", "cache_miss", "_python_pjit_helper", "_run_python_pjit",
    "wrapper", "wrapped", "inner", "__call__", "deferring_binary_op", "op", "wrap", "meth",
}  # fmt: skip


def place(frames: Iterable[Frame], own: str | None = None) -> Place | None:
    """Return the place of the user's innermost frame, or None if no frame is the user's.

    `frames` begins with the innermost. `own` is the library that contains the checked function, if
    any; its frames count as the user's.
    """
    inside: list[str] = []
    mine: list[Site] = []
    for code, instruction in frames:
        if code.co_filename.startswith(_CHECKER):
            if code.co_name == "check_static":
                break
            continue
        owner = library_of(code.co_filename)
        if owner is None or owner == own:
            mine.append(site_at(code, instruction))
        elif not mine and not _is_wrapper(code, owner):
            inside.append(code.co_name)
    if not mine:
        return None
    return Place(mine[0], inside[-1] if inside else None, tuple(inside), tuple(mine[1:]))


def place_of(equation: Any, outer: Place | None, own: str | None = None) -> Place | None:
    """Return the place in the user's code that traced an equation of a jaxpr.

    A compiled function that is called twice is traced once, and its equations keep the frames of
    the first call. The frames outside of the function are therefore replaced by `outer`, the place
    of the present call, which is None for the outermost jaxpr. `own` is as in :func:`place`.
    """
    frames = _compat_tracing.frames_of(equation)
    if outer is None:
        return place(frames, own)
    calls = [i for i, (code, _) in enumerate(frames) if code.co_name == _COMPILED_CALL]
    skip = 1 if equation.primitive.name in ("jit", "pjit") else 0
    inside = frames[: calls[skip]] if len(calls) > skip else frames
    return place(inside, own) or outer


# The function of JAX that handles every call of a compiled function.
_COMPILED_CALL = "cache_miss"


def _is_wrapper(code: types.CodeType, owner: str) -> bool:
    """Return True for a library's code that is not the API function which the user called.

    Such code is a wrapper around API functions, or it belongs to voxax or to the standard library.
    `owner` is the library as :func:`library_of` names it.
    """
    return (
        owner in ("std", "voxax")
        or code.co_name in _WRAPPERS
        or (code.co_name.startswith("__") and code.co_filename == _compat_tracing.CORE)
    )


def live_frames(frame: Any) -> Iterator[Frame]:
    """Yield a frame of the running program and its callers as ``(code, bytecode offset)`` pairs."""
    while frame is not None:
        yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def raised_frames(error: BaseException) -> list[Frame]:
    """Return an exception's frames as ``(code, bytecode offset)``, innermost first."""
    found, traceback = [], error.__traceback__
    while traceback is not None:
        found.append((traceback.tb_frame.f_code, traceback.tb_lasti))
        traceback = traceback.tb_next
    frames = found[::-1]
    return frames if isinstance(error, Exception) else _without_hooks(frames)


def _without_hooks(frames: list[Frame]) -> list[Frame]:
    """Return `frames`, innermost first, without the frames of an audit hook.

    The error of the time limit may be raised while such a hook runs. A hook is recognized as
    innermost frames of an installed package that is called by a library, not by the user.
    """

    def owner(frame: Frame) -> str | None:
        file = frame[0].co_filename
        return library_of(file) or ("installed" if "site-packages" in file else None)

    hook = list(itertools.takewhile(lambda f: owner(f) in ("std", "installed"), frames))
    rest = frames[len(hook) :]
    called = bool(rest) and owner(rest[0]) is not None
    return rest if called and "installed" in map(owner, hook) else frames


@functools.lru_cache(maxsize=256)
def _tree(file: str, stamp: int) -> ast.Module | None:
    del stamp
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file, or None if the source is missing or not valid."""
    linecache.checkcache(file)
    lines = linecache.getlines(file)
    return _tree(file, hash(tuple(lines))) if lines else None


def enclosing(site: Site) -> list[ast.AST]:
    """Return the syntax nodes that contain a site, innermost first, or [] without source."""
    tree = tree_of(site.file)
    if tree is None:
        return []
    text = linecache.getline(site.file, site.line)
    start = (site.line, len(text[: site.column - 1].encode()))
    last = linecache.getline(site.file, site.end_line)
    end = (site.end_line, len(last[: site.end_column - 1].encode()))

    def holds(node: Any) -> bool:
        if getattr(node, "end_lineno", None) is None:
            return True
        # A decorated definition starts, for Python, after its decorators.
        parts = (node, *getattr(node, "decorator_list", ()))
        begin = min((part.lineno, part.col_offset) for part in parts)
        return begin <= start and end <= (node.end_lineno, node.end_col_offset)

    chain: list[ast.AST] = []
    node: ast.AST | None = tree
    while node is not None:
        chain.append(node)
        node = next(
            (
                child
                for outer in ast.iter_child_nodes(node)
                for child in _with_position(outer)
                if holds(child)
            ),
            None,
        )
    return chain[::-1]


def site_of_line(file: str, line: int, called: str = "") -> Site:
    """Return the site of a call of the method `called` that begins in a line of a file.

    Without such a call, return the site of the whole line.
    """
    text = linecache.getline(file, line).rstrip("\n")
    start = len(text) - len(text.lstrip())
    tree = tree_of(file)
    for node in ast.walk(tree) if tree is not None else ():
        name = getattr(node.func, "attr", None) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and node.lineno == line and name == called:
            end = node.end_lineno or line
            last = _characters(file, end, node.end_col_offset or 0) + 1
            return Site(file, line, _characters(file, line, node.col_offset) + 1, end, last, "")
    return Site(file, line, start + 1, line, len(text) + 1, "")


def _with_position(node: ast.AST) -> Iterator[ast.AST]:
    """Yield `node` if it has a position in the source, otherwise the nearest nodes in it that do.

    The ``for`` of a comprehension has no position, for example.
    """
    if hasattr(node, "end_lineno"):
        yield node
    else:
        for child in ast.iter_child_nodes(node):
            yield from _with_position(child)


def line_name(site: Site) -> str:
    """Return ``y (line 3)`` if the expression at a site is assigned to ``y``, else ``line 3``."""
    line = f"line {site.line}"
    for node in enclosing(site):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            return f"{node.targets[0].id} ({line})"
        if isinstance(node, ast.AugAssign | ast.AnnAssign) and isinstance(node.target, ast.Name):
            return f"{node.target.id} ({line})"
        if isinstance(node, ast.stmt):
            break
    return line


def swallowed(where: Place, kind: str = "TypeError") -> bool:
    """Return True if a broad ``except`` around a place silently catches errors of tracing.

    ``except Exception`` is broad. ``except jax.errors.ConcretizationTypeError`` is not, because it
    shows that the author expects such an error.

    Args:
      where: the place.
      kind: the name of the built-in class of the errors. Default: ``TypeError``, the base class of
        ConcretizationTypeError.
    """
    for site in (where.site, *where.callers):
        inner: ast.AST | None = None
        for node in enclosing(site):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                break
            if isinstance(node, ast.Try | ast.TryStar) and inner in node.body:
                caught = [_names(handler.type) for handler in node.handlers]
                if any(names & _OF_JAX or "Tracer" in "".join(names) for names in caught):
                    return False
                if any(not names or names & {*_BROAD, kind} for names in caught):
                    return True
            inner = node
    return False


_BROAD = {"Exception", "BaseException"}
_OF_JAX = {
    "JAXTypeError", "JAXIndexError", "ConcretizationTypeError", "NonConcreteBooleanIndexError",
}  # fmt: skip


def _names(node: ast.AST | None) -> set[str]:
    """Return the unqualified names of the error classes in an ``except`` clause.

    `node` is the expression after ``except``; None, for a bare ``except``, gives an empty set.
    """
    parts = ast.walk(node) if node is not None else ()
    return {getattr(p, "attr", None) or getattr(p, "id", "") for p in parts} - {"", "jax", "errors"}


def described(error: BaseException) -> str:
    """Return the class name of an error and its message in one line, shortened if it is long."""
    lines: list[str] = []
    for line in str(error).strip().splitlines():
        if line.startswith(_AFTERWORDS):
            break
        lines += line.split()
    text = " ".join(lines)
    if len(text) > _MOST_CHARACTERS:
        text = text[:_MOST_CHARACTERS].rsplit(" ", 1)[0] + " ..."
    return f"{type(error).__name__}: {text}"


# The longest message that is shown; one of JAX may list a whole tree of types.
_MOST_CHARACTERS = 1500
# The beginnings of what JAX and PyTorch write below a message: links, stacks, dumps of programs.
_AFTERWORDS = (
    "See https", "For more information", "For C++ stack", "For extended logging", "User Stack",
    "Stack trace", "The following call raised", "The error above occurred", "from user code",
    "-----", "Traceback", "Exception raised from", "While executing", "Original traceback", "Set ",
    "Use tlparse",
)  # fmt: skip


def relative(file: str) -> str:
    """Return the path of a file, relative to the working directory if the file is inside it."""
    if not os.path.isabs(file):
        return file
    try:
        found = os.path.relpath(file)
    except ValueError:  # on another drive
        return file
    return file if found.startswith("..") else found


def is_file(file: str) -> bool:
    """Return True for the path of a file, and False for a name such as ``<stdin>``."""
    return not (file.startswith("<") and file.endswith(">"))


def excerpt(site: Site) -> str:
    """Return the source line, and a line of carets below it that mark the site."""
    line = linecache.getline(site.file, site.line).rstrip("\n")
    if not line.strip():
        return ""
    end = site.end_column if site.end_line == site.line else len(line) + 1
    width = max(1, end - site.column)
    pad = "".join("\t" if c == "\t" else " " for c in line[: site.column - 1])
    return f"{line}\n{pad}{'^' * width}"


def definition(target: Any) -> Site:
    """Return the site of the ``def`` line of a function, or of a module's ``__call__``."""
    function = inspect.unwrap(target) if callable(target) else target
    function = getattr(function, "func", function)  # functools.partial
    if not hasattr(function, "__code__"):
        function = type(function).__call__
        function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is None:
        return Site(f"<{type(target).__name__}>", 1, 1, 1, 1, type(target).__name__)
    line = code.co_firstlineno
    tree = tree_of(code.co_filename)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first == line and node.name == code.co_name:
                line = node.lineno
                break
    text = linecache.getline(code.co_filename, line).rstrip("\n")
    start = len(text) - len(text.lstrip())
    return Site(
        code.co_filename, line, start + 1, line, max(len(text), start + 1) + 1, code.co_name
    )


def statement_lines(site: Site) -> tuple[int, int]:
    """Return first and last line of the statement at a site, without the body of e.g. an ``if``."""
    for node in enclosing(site):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
            return node.lineno, max(node.lineno, last or node.lineno)
    return site.line, site.end_line
