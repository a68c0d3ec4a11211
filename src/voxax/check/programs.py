"""Find what makes ``jax.jit`` compile more than one program, and count programs by compiling.

For example, ``jit`` compiles one program for a Python number and another for an array of the same
dtype, because the number has a weak type and the array has none.
"""

from __future__ import annotations

import ast
import dataclasses
import threading
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from voxax import _compat_tracing
from voxax.check.advice import ADVICE
from voxax.check.findings import Finding, Verdict
from voxax.check.hazards import equations
from voxax.check.inputs import parameters
from voxax.check.source import Place, Site, described, library_of, place, tree_of
from voxax.check.static_report import Report
from voxax.check.subject import Arguments, Leaf, Subject, module_of_scope, staged

# Filters of warnings and `warnings.showwarning` belong to the process: one thread at a time.
WARNINGS = threading.RLock()


def signature(arguments: Arguments, held: frozenset[str]) -> tuple[Any, ...]:
    """Return a hashable key of the arguments: ``jit`` compiles one program for each key.

    Leaves whose names are in `held` count as static.
    """
    return (arguments.structure, *(_kind(leaf, held) for leaf in arguments.leaves))


def _kind(leaf: Leaf, held: frozenset[str]) -> Any:
    if leaf.kind == "static" or leaf.name in held:
        try:
            hash(leaf.value)
        except TypeError:
            return (leaf.name, id(leaf.value))
        return (leaf.name, type(leaf.value), leaf.value)
    return (leaf.name, *_type(leaf))


def _type(leaf: Leaf) -> tuple[Any, ...]:
    if leaf.kind == "tensor":  # of PyTorch
        return tuple(leaf.value.shape), str(leaf.value.dtype), False
    return _kind_of(jax.typeof(_canonical(leaf.value)))


def _canonical(value: Any) -> Any:
    return jax.numpy.asarray(value) if isinstance(value, np.ndarray | np.generic) else value


def programs(examples: Sequence[Arguments], held: frozenset[str]) -> int:
    """Return how many programs ``jit`` compiles for `examples`, with leaves in `held` static."""
    return len({signature(a, held) for a in examples})


def differences(
    first: Arguments, others: Sequence[Arguments], site: Site, held: frozenset[str]
) -> list[Finding]:
    """Report arguments in `others` whose shape, dtype or structure differs from that in `first`.

    Static leaves and the leaves named in `held` are not compared. The findings are at `site`.
    """
    found = []
    shapes: dict[str, set[str]] = {}
    types: dict[str, set[str]] = {}
    for other in others:
        if other.structure != first.structure:
            text = f"the examples have arguments of different structure: {_apart(first, other)}"
            found.append(Finding("VX204", site, text, fix=ADVICE["VX204"]))
            continue
        for a, b in zip(first.leaves, other.leaves, strict=True):
            if "static" in (a.kind, b.kind) or a.name in held:
                continue
            one, two = _type(a), _type(b)
            if one[0] != two[0]:
                shapes.setdefault(a.name, {str(one[0])}).add(str(two[0]))
            if one[1:] != two[1:]:
                types.setdefault(a.name, {typed(one)}).add(typed(two))
    for name, seen in shapes.items():
        text = f"argument `{name}` comes in {len(seen)} shapes: {', '.join(sorted(seen))}"
        found.append(Finding("VX202", site, text, arguments=(name,), fix=ADVICE["VX202"]))
    for name, seen in types.items():
        text = f"argument `{name}` comes as {' and as '.join(sorted(seen))}"
        found.append(Finding("VX203", site, text, arguments=(name,), fix=ADVICE["VX203"]))
    return found


def _apart(first: Arguments, other: Arguments) -> str:
    """Describe in words how the argument structures of two examples differ."""
    one, two = ([leaf.name for leaf in example.leaves] for example in (first, other))
    alone = {"the first": set(one) - set(two), "another": set(two) - set(one)}
    if not any(alone.values()):
        return f"{first.structure} and {other.structure}"
    return " and ".join(
        f"only {which} has {', '.join(f'`{name}`' for name in sorted(names))}"
        for which, names in alone.items()
        if names
    )


def typed(kind: tuple[Any, ...]) -> str:
    """Return words for the type ``(shape, dtype, is weak)``: the dtype, and whether it is weak."""
    return f"{kind[1]}{' of weak type (a Python number)' if kind[2] else ''}"


def unrepeatable(one: Any, two: Any, own: str | None) -> list[Finding]:
    """Report the first source line at which two traces (closed jaxprs) of one function differ.

    The list is empty if there is no such line, or if a trace is None. Code of the library `own`, if
    any, counts as the user's.
    """
    if one is None or two is None:
        return []
    for a, b in _pairs(one, two):
        where = place(_compat_tracing.frames_of(a), own)
        if where is not None and not _same_operation(a, b):
            return [_unrepeatable(where)]
    shorter, longer = sorted((one.jaxpr.eqns, two.jaxpr.eqns), key=len)
    for equation in longer[len(shorter) :]:  # a loop that Python unrolls more often in one trace
        where = place(_compat_tracing.frames_of(equation), own)
        if where is not None:
            return [_unrepeatable(where)]
    return []


def _unrepeatable(where: Place) -> Finding:
    return Finding.at(
        where,
        "VX205",
        "traced twice, this line gives two different programs: a value that Python "
        "computes (a random number, the time, a counter) is frozen into each",
        ADVICE["VX205"],
    )


def _pairs(one: Any, two: Any) -> Iterator[tuple[Any, Any]]:
    constants = dict(zip(one.jaxpr.constvars, one.consts, strict=True))
    others = dict(zip(two.jaxpr.constvars, two.consts, strict=True))
    for a, b in zip(one.jaxpr.eqns, two.jaxpr.eqns, strict=False):
        yield _Applied(a, constants), _Applied(b, others)


class _Applied:
    """An equation of a jaxpr, with the values of its constant operands.

    The argument `constants` has the values of the jaxpr's constant variables. The attribute
    `read` has an entry for each operand: its value if it is constant, otherwise None.
    """

    def __init__(self, equation: Any, constants: dict[Any, Any]):
        self.equation = equation
        self.source_info = equation.source_info
        self.read = [v.val if hasattr(v, "val") else constants.get(v) for v in equation.invars]


def _same_operation(a: _Applied, b: _Applied) -> bool:
    if a.equation.primitive is not b.equation.primitive or len(a.read) != len(b.read):
        return False
    # An error of checkify has a different number in each trace, but nothing depends on it.
    if _compat_tracing.of_checkify(a):
        return True
    for one, two in zip(a.read, b.read, strict=True):
        if (one is None) != (two is None):
            return False
        if one is None or one is two:
            continue
        if _array(one).tobytes() != _array(two).tobytes():  # NaN is the same as NaN
            return False
    for name, one in a.equation.params.items():
        two = b.equation.params.get(name)
        inner, other = _closed(one), _closed(two)
        if inner is not None and other is not None:
            if len(inner.jaxpr.eqns) != len(other.jaxpr.eqns):
                return False
            if not all(_same_operation(*pair) for pair in _pairs(inner, other)):
                return False
        elif _plain(one) and repr(one) != repr(two):  # NaN is the same as NaN here too
            return False
    return True


def _plain(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(part, int | float | str) for part in parts)


def _closed(value: Any) -> Any:
    return value if hasattr(value, "jaxpr") and hasattr(value, "consts") else None


def _array(value: Any) -> Any:
    if _compat_tracing.is_key(value):
        return np.asarray(jax.random.key_data(value))
    return np.asarray(value)


def called_with_both(closed: Any, own: str | None) -> list[Finding]:
    """Report calls of an inner jitted function with a number where another call has an array.

    `closed` is the closed jaxpr of the program that calls it. Code of the library `own`, if any,
    counts as the user's.
    """
    calls: dict[str, dict[tuple[Any, ...], tuple[Any, Place]]] = {}
    found = []
    for equation, scope, _, where in equations(closed.jaxpr, own):
        called = _compat_tracing.compiled_function(equation)
        if called is None or where is None or library_of(called.file) not in (None, own):
            continue
        earlier = calls.setdefault(f"{called.name} {called.file}:{called.line}", {})
        types = tuple(_kind_of(variable) for variable in equation.invars)
        for others, (first, at) in earlier.items() if types not in earlier else ():
            names = _weakly(types, others, called.arguments)
            if names:
                numbers = _numbers(names, (first, others), (equation, types))
                line = at.site.line
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


def _kind_of(value: Any) -> tuple[Any, ...]:
    aval = getattr(value, "aval", value)
    if not hasattr(aval, "dtype"):
        return (str(aval), "", False)
    return tuple(aval.shape), str(aval.dtype), bool(getattr(aval, "weak_type", False))


def _weakly(
    one: Sequence[Any], two: Sequence[Any], names: Sequence[str | None]
) -> list[tuple[int, str]]:
    """Return ``(index, name)`` of arguments that are a number in one call, an array in the other.

    `one` and `two` have ``(shape, dtype, is weakly typed)`` of each argument in the two calls.
    Python numbers are weakly typed. `names` has the names of the arguments, None if unknown. The
    list is empty if the types of any argument differ in another way.
    """
    if len(one) != len(two):
        return []
    different = [i for i, (a, b) in enumerate(zip(one, two, strict=True)) if a != b]
    if not all(one[i][0] == two[i][0] and (one[i][2] or two[i][2]) for i in different):
        return []
    names = [*names, *[None] * (len(one) - len(names))]
    return [(i, names[i] or f"argument {i}") for i in different]


def _numbers(names: Sequence[tuple[int, str]], *calls: tuple[Any, Sequence[Any]]) -> str:
    """Return code that passes arrays instead of numbers, such as ``jnp.asarray(1, 'int32')``.

    `names` has ``(index of the argument, name)`` for each number. `calls` are two calls of one
    function, as ``(equation, types of its arguments)``; the types are as in :func:`_weakly`. Where
    one call passes a number, the other passes an array, whose dtype the code uses.
    """
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
    """Report state that is a Python number in the first call, but an array in the result.

    State is an argument whose next value the function returns. The second call gets an array, so it
    compiles another program. An argument counts as state if the function returns a variable of the
    argument's name. A tree of several leaves also counts if a tree of its structure is returned at
    the same position. Numbers named in `held` are static and not reported. `program` is the
    :class:`Traced` of the function, and the findings are at `site`.
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
            changed = [(a, b) for a, b in pairs if a.traced and a.type != _kind_of(b)]
            if changed and all(a.type[2] for a, _ in changed):
                found += [_state(a.leaf, a.type, _kind_of(b), site) for a, b in changed]
                break
    return found


@dataclasses.dataclass(frozen=True)
class _Given:
    """A leaf of the example's arguments (an array or another value), and whether JAX traces it."""

    leaf: Any
    traced: bool

    @property
    def type(self) -> tuple[Any, ...]:
        return _kind_of(jax.typeof(self.leaf.value)) if self.traced else ((), "", False)


def _alike(argument: Any, part: Any) -> bool:
    if jax.tree.structure(argument) != jax.tree.structure(part):
        return False
    pairs = zip(jax.tree.leaves(argument), jax.tree.leaves(part), strict=True)
    return all(a.traced and a.type[0] == _kind_of(b)[0] for a, b in pairs)


def _returned(site: Site, name: str) -> Iterator[int]:
    """Yield each index of the returned tuple at which a function returns the variable `name`.

    `site` is the definition of the function. A ``return`` of `name` alone gives 0.
    """
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


INPUTS = 5


@dataclasses.dataclass(frozen=True)
class Verification:
    """The result of compiling and running a function for several inputs of equal shape.

    `inputs` and `programs` count the inputs and the compiled programs. `error` is the error of
    compiling or running, or None. `holds` is whether the result agrees with the report's verdict.
    `differs` is True if the program compiles but computes something else than Python does.
    """

    inputs: int
    programs: int
    error: str | None
    holds: bool
    differs: bool = False

    def __str__(self) -> str:
        state = "verified" if self.holds else "NOT verified"
        if self.error is not None:
            return f"{state}: compiling raises {self.error}"
        if self.differs:
            return f"{state}: the program computes something else than Python does"
        plural = "s" if self.programs != 1 else ""
        return (
            f"{state}: {self.programs} program{plural} for {self.inputs} inputs of equal shape, "
            "static arguments held"
        )


def verify(report: Report) -> Verification:
    """Run the checked function with five inputs, and compare its programs with the verdict."""
    arguments: Arguments = report.arguments
    held = frozenset(report.static_arguments) & arguments.numbers()
    function, values = staged(report.subject, arguments, held)
    compiled = 0

    def counted(*leaves: Any) -> Any:
        nonlocal compiled
        compiled += 1  # Python runs only when a program is made
        return function(*leaves)

    jitted = jax.jit(counted)
    may = report.verdict in (Verdict.STATIC, Verdict.PER_VALUE)
    try:
        # A warning that is an error would hide the programs.
        with WARNINGS, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = [
                jax.block_until_ready(jitted(*(vary(v, seed) for v in values)))
                for seed in range(INPUTS)
            ]
            if not may:  # an error that the function catches
                plain = [function(*(vary(v, seed) for v in values)) for seed in range(INPUTS)]
                differs = not all(map(_same_results, plain, found))
                return Verification(INPUTS, compiled, None, differs, differs)
    except Exception as error:
        return Verification(INPUTS, compiled, described(error), not may)
    return Verification(INPUTS, compiled, None, may and compiled == 1)


def _same_results(one: Any, two: Any) -> bool:
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(two)
    return len(leaves) == len(others) and all(
        np.shape(a) == np.shape(b)
        and np.allclose(np.asarray(a, np.complex128), np.asarray(b), 1e-3, 1e-4, equal_nan=True)
        for a, b in zip(leaves, others, strict=True)
        if not _compat_tracing.is_key(a)
    )


def vary(value: Any, seed: int) -> Any:
    """Return another input of the same type: permuted and scaled floats, or a larger number.

    `seed` selects the input; 0 is the example itself. Arrays of integers and booleans do not
    change, because coordinates must stay sorted and the rows of a kernel map belong together.
    """
    if seed == 0 or _compat_tracing.is_key(value):
        return value
    if isinstance(value, bool):
        return bool(seed % 2)
    if isinstance(value, int | float | complex) and not isinstance(value, np.generic):
        return value + seed
    if not jax.numpy.issubdtype(value.dtype, jax.numpy.inexact):
        return value
    array = np.asarray(value)
    rng = np.random.default_rng(seed)
    mixed = rng.permutation(array.reshape(-1)).reshape(array.shape)
    return jax.numpy.asarray(mixed * array.dtype.type(1 + seed / 16))
