"""Find Python numbers in place of arrays, for which a function is compiled again.

A number has a weak type, an array of the same dtype has not, and ``jit`` tells them apart.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat_tracing
from voxax.check.advice import ADVICE
from voxax.check.findings import Finding
from voxax.check.hazards import equations
from voxax.check.inputs import parameters
from voxax.check.programs import typed
from voxax.check.source import Place, Site, library_of, tree_of
from voxax.check.subject import Arguments, Subject, module_of_scope


def called_with_both(closed: Any, own: str | None) -> list[Finding]:
    """Report calls of a compiled function that differ from an earlier one in weak types alone."""
    calls: dict[str, dict[tuple[Any, ...], tuple[Any, Place]]] = {}
    found = []
    for equation, scope, _, where in equations(closed.jaxpr, own):
        called = _compat_tracing.compiled_function(equation)
        if called is None or where is None or library_of(called.file) not in (None, own):
            continue
        earlier = calls.setdefault(f"{called.name} {called.file}:{called.line}", {})
        types = tuple(_type(variable) for variable in equation.invars)
        for others, (first, place) in earlier.items() if types not in earlier else ():
            names = _weakly(types, others, called.arguments)
            if names:
                numbers = _numbers(names, (first, others), (equation, types))
                line = place.site.line
                before = f"in line {line}" if line != where.site.line else "in an earlier call"
                text = ", ".join(
                    f"`{name}` as {typed(types[i])} here, and as {typed(others[i])} {before}"
                    for i, name in names
                )
                text = f"the compiled function `{called.name}` takes {text}: two programs"
                fix = ADVICE["VX203 call"].format(arrays=numbers)
                found.append(Finding.at(where, "VX203", text, fix, module_of_scope(scope)))
                break
        earlier.setdefault(types, (equation, where))
    return found


def _type(value: Any) -> tuple[Any, ...]:
    aval = getattr(value, "aval", value)
    if not hasattr(aval, "dtype"):
        return (str(aval), "", False)
    return tuple(aval.shape), str(aval.dtype), bool(getattr(aval, "weak_type", False))


def _weakly(
    one: Sequence[Any], two: Sequence[Any], names: Sequence[str | None]
) -> list[tuple[int, str]]:
    """Return the arguments whose types differ, if at each a number stands for an array."""
    if len(one) != len(two):
        return []
    different = [i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if not all(one[i][0] == two[i][0] and (one[i][2] or two[i][2]) for i in different):
        return []
    names = [*names, *[None] * (len(one) - len(names))]
    return [(i, names[i] or f"argument {i}") for i in different]


def _numbers(names: Sequence[tuple[int, str]], *calls: tuple[Any, Sequence[Any]]) -> str:
    """Return the arrays to give in place of numbers."""
    shown = []
    for i, name in names:
        strong = [types[i][1] for _, types in calls if not types[i][2]]
        value = next(
            (
                repr(np.asarray(call.invars[i].val).item())
                for call, types in calls
                if types[i][2] and getattr(call.invars[i], "val", None) is not None
            ),
            name,
        )
        dtype = (strong or ["float32"])[0]
        shown.append(f"jnp.asarray({value}, {dtype!r})")
    return ", ".join(shown)


def fed_back(
    subject: Subject, arguments: Arguments, held: frozenset[str], program: Any, site: Site
) -> list[Finding]:
    """Report state that begins as a number and is returned as an array.

    State is an argument that is returned under its own name, or, if it is a tree of several leaves,
    as such a tree at the same position.
    """
    if subject.first or program.result is None:
        return []
    traced = set(arguments.traced(held))
    given = arguments.unflatten(
        [_Given(leaf, i in traced) for i, leaf in enumerate(arguments.leaves)]
    )
    given = given[0] if arguments.named else given
    result = program.result
    parts = list(result) if type(result) in (tuple, list) else [result]
    names = parameters(subject.called)
    found = []
    for position, argument in enumerate(given):
        leaves = jax.tree.leaves(argument)
        returned = list(_returned(site, names[position])) if position < len(names) else []
        if len(leaves) > 1 and position < len(parts):
            returned.append(position)
        for part in (parts[i] for i in returned if i < len(parts)):
            if not _alike(argument, part):
                continue
            pairs = zip(leaves, jax.tree.leaves(part), strict=True)
            changed = [(a, b) for a, b in pairs if a.traced and a.type != _type(b)]
            if changed and all(a.type[2] for a, _ in changed):
                found += [_state(a.leaf, a.type, _type(b), site) for a, b in changed]
                break
    return found


@dataclasses.dataclass(frozen=True)
class _Given:
    """A leaf of the arguments, and whether it is traced."""

    leaf: Any
    traced: bool

    @property
    def type(self) -> tuple[Any, ...]:
        return _type(jax.typeof(self.leaf.value)) if self.traced else ((), "", False)


def _alike(argument: Any, part: Any) -> bool:
    if jax.tree.structure(argument) != jax.tree.structure(part):
        return False
    pairs = zip(jax.tree.leaves(argument), jax.tree.leaves(part), strict=True)
    return all(a.traced and a.type[0] == _type(b)[0] for a, b in pairs)


def _returned(site: Site, name: str) -> Iterator[int]:
    """Yield the positions at which a function returns the value of a name."""
    tree = tree_of(site.file)
    for function in ast.walk(tree) if tree is not None else ():
        if not isinstance(function, ast.FunctionDef) or function.lineno != site.line:
            continue
        for node in ast.walk(function):
            value = node.value if isinstance(node, ast.Return) else None
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else [value]
            for position, part in enumerate(parts):
                if isinstance(part, ast.Name) and part.id == name:
                    yield position


def _state(leaf: Any, given: tuple[Any, ...], made: tuple[Any, ...], site: Site) -> Finding:
    array = f"jnp.asarray({leaf.value!r}, {made[1]!r})"
    if leaf.kind != "number":
        array = f"jnp.asarray({leaf.name}, {made[1]!r})"
    return Finding(
        "VX203",
        site,
        f"argument `{leaf.name}` comes as {typed(given)}, and the function returns it as "
        f"{typed(made)}: given its own result, it is compiled again",
        arguments=(leaf.name,),
        fix=ADVICE["VX203 state"].format(array=array),
    )
