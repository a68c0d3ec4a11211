"""Example inputs of a check: the arguments of one call, by position and by name."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from voxax.check.advice import ADVICE
from voxax.errors import InputError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The arguments of one call: positional arguments in order, named arguments by name."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def call(self, function: Callable[..., Any]) -> Any:
        """Call ``function`` with these arguments and return its result."""
        return function(*self.positional, **self.named)


def examples_of(
    function: Callable[..., Any],
    positional: Sequence[Any],
    named: Mapping[str, Any],
    also: Sequence[Sequence[Any] | Mapping[str, Any]],
) -> list[Inputs]:
    """Return the inputs of all examples: `positional` with `named`, then each example in `also`.

    An example in `also` is a sequence that replaces `positional`, or a dict of changed arguments.
    """
    first = _bound(function, positional, named)
    names = parameters(function)[: len(first.positional)]
    found = [first]
    for other in also:
        if not isinstance(other, Mapping | list | tuple):
            raise InputError(
                f"an example of also= is a tuple of arguments, or a dict of them by name, got "
                f"{type(other).__name__}: write also=[(argument, ...)]"
            )
        if isinstance(other, Mapping):
            values = [
                other.get(names[i], value) if i < len(names) else value
                for i, value in enumerate(first.positional)
            ]
            rest = {name: value for name, value in other.items() if name not in names}
            found.append(_bound(function, values, {**first.named, **rest}))
        else:
            found.append(_bound(function, other, named))
    return found


def _bound(
    function: Callable[..., Any], positional: Sequence[Any], named: Mapping[str, Any]
) -> Inputs:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # Python does not know the parameters
        signature = None
    if named and signature is not None:
        try:
            signature.bind_partial(*positional, **named)
        except TypeError as error:
            has = ", ".join(f"`{p}`" for p in signature.parameters) or "none"
            raise InputError(f"the inputs do not fit: {error}; the arguments are {has}") from None
    return Inputs(tuple(positional), dict(sorted(named.items())))


def forward_of(target: Any) -> Any:
    """Return the ``forward`` of a PyTorch module, and any other target unchanged."""
    torch = sys.modules.get("torch")
    is_module = torch is not None and isinstance(target, torch.nn.Module)
    return target.forward if is_module else target


def parameters(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's positional parameters, or [] if its signature is unknown."""
    return [p.name for p in _known(function) if p.kind in _POSITIONAL]


def position_names(function: Callable[..., Any], count: int) -> list[str]:
    """Return names for the first `count` positional arguments of a call of `function`.

    A name is the one of the parameter, such as ``x``, or ``sizes[0]`` for ``*sizes``. Arguments
    without a known parameter are ``args[0]`` and so on.
    """
    names = parameters(function)[:count]
    rest = [p.name for p in _known(function) if p.kind is inspect.Parameter.VAR_POSITIONAL]
    first = len(names) if rest else 0
    variadic = rest[0] if rest else "args"
    return names + [f"{variadic}[{i - first}]" for i in range(len(names), count)]


def lacking(function: Callable[..., Any], named: Collection[str]) -> str:
    """Return advice on required keyword arguments of `function` that `named` lacks, or ``""``."""
    missing = [
        p.name
        for p in _known(function)
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in named
    ]
    if not missing:
        return ""
    given = ", ".join(f"{name!r}: ..." for name in missing)
    tokens = " ".join(f"{name}=VALUE" for name in missing)
    return ADVICE["VX191 by name"].format(given=given, tokens=tokens)


def as_static(function: Callable[..., Any], leaves: Iterable[tuple[str, str]]) -> str:
    """Return advice on how to make leaves of the arguments static for ``jax.jit``.

    A leaf is given as ``(name of the leaf, name of the argument that contains it)``.
    """
    known = {p.name: p for p in _known(function)}
    order = list(known)
    names, numbers, parts = [], [], []
    for leaf, argument in sorted(leaves):
        plain = argument.split("[")[0]
        kind = known[plain].kind if plain in known else None
        if leaf != argument:
            parts.append(leaf)
        elif kind in _BY_NAME or kind is inspect.Parameter.VAR_KEYWORD or kind is None:
            names.append(argument)
        elif kind is inspect.Parameter.POSITIONAL_ONLY:
            numbers.append(order.index(plain))
        else:  # of `*rest`
            numbers.append(order.index(plain) + int(argument.split("[")[1][:-1]))
    options = []
    if names:
        options.append(f"static_argnames={tuple(names)}")
    if numbers:
        options.append(f"static_argnums={tuple(numbers)}")
    ways = [f"jax.jit(f, {', '.join(options)})"] if options else []
    if parts:
        listed = ", ".join(f"`{part}`" for part in parts)
        ways.append(f"make {listed} an argument of its own, which jit can hold static")
    return "; ".join(ways)


def _known(function: Callable[..., Any]) -> Sequence[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return []
