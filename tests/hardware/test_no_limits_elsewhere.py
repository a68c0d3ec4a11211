"""Limits of chips, and their names, are in `hardware` alone."""

import ast
import re
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "voxax"

CHIPS = re.compile(
    r"\bTPU ?v?\d|\bv[2-8](e|p|i|x)\b|\btpu7x?\b"
    r"|\b[ABHV]\d{3}\b|\bsm_\d{2}|\b(EPYC|Xeon|Graviton)\b"
)
LIMITS = re.compile(
    r"(^|_)(vmem|smem|cmem|hbm|sublanes?|lanes?|warp|mxu|shared_memory|l[123]_cache|num_cores|"
    r"tensor_cores|sparse_cores|memory_bandwidth|clock_hz)(_|$)",
    re.IGNORECASE,
)


def docstrings(tree):
    """The nodes that are documentation, which may name chips: a cost was measured somewhere."""
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, owners) or (hasattr(node, "body") and isinstance(node.body, list)):
            for child in node.body:
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    yield child.value


def is_number(node):
    """A number, or arithmetic on numbers such as ``16 * 1024 * 1024``; 0 and 1 are no limits."""
    if isinstance(node, ast.BinOp):
        return is_number(node.left) or is_number(node.right)
    constant = isinstance(node, ast.Constant) and type(node.value) in (int, float)
    return constant and node.value not in (0, 1)


def named_values(tree):
    """(name, value) of assignments, keyword arguments and defaults."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield getattr(target, "id", getattr(target, "attr", "")), node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            yield getattr(node.target, "id", getattr(node.target, "attr", "")), node.value
        elif isinstance(node, ast.keyword):
            yield node.arg or "", node.value
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            given = positional[len(positional) - len(node.defaults) :]
            yield from ((a.arg, d) for a, d in zip(given, node.defaults, strict=True))
            pairs = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from ((a.arg, d) for a, d in pairs if d is not None)


def offences(source):
    tree = ast.parse(source)
    documentation = {id(node) for node in docstrings(tree)}
    for node in ast.walk(tree):
        text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if text and id(node) not in documentation and CHIPS.search(node.value):
            yield node.lineno, f"names a chip: {node.value!r}"
    for name, value in named_values(tree):
        if LIMITS.search(name) and is_number(value):
            yield value.lineno, f"a limit of hardware: {name} = {ast.unparse(value)}"


def test_no_limits_outside_of_hardware():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {what}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "hardware"
        for line, what in offences(path.read_text())
    ]
    assert found == []
