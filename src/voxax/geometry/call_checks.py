"""Check arguments of public functions: names that only other libraries use, and wrong types."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast

from voxax import _compat
from voxax._foreign_arguments import refuse_foreign
from voxax._fork import check_process
from voxax.errors import InputError

_Function = TypeVar("_Function", bound=Callable[..., Any])

# By annotation: two attributes that identify a value of this type, and how to make the value.
_KINDS = {
    "Voxels": (("geometry", "features"), "make them by vx.voxelize(positions, features, size)"),
    "Points": (("batch_index", "features"), "make them by vx.Points.make(positions, features)"),
}


def axes_hint(wanted: int, ndim: int) -> str:
    """Return a hint to append to the error that voxels have ``ndim`` axes instead of ``wanted``.

    The hint is empty unless ``ndim`` is ``wanted + 1``. Then the likely mistake is that the
    positions were given with a column of intensities, which counts as one more axis.
    """
    if ndim != wanted + 1:
        return ""
    return (
        f". Each column of positions is an axis: if the last one is none, but an intensity, make "
        f"the voxels of positions[:, :{wanted}] (of coords[:, :{wanted + 1}]) and give the rest as "
        "features"
    )


def checked_operator(function: _Function, *, on_whole_arrays: bool = True) -> _Function:
    """Decorate a public function so that it checks its arguments before it runs.

    A call raises an error in three cases: the process was forked after JAX was used; an argument
    has a name that only another library uses; or a value is not of its annotated type, if that is
    ``Voxels``, ``Sequence[Voxels]``, ``Points`` or ``Callable``. On a mesh with explicit axes,
    arrays that are split over devices are passed whole, see :func:`voxax._compat.on_whole_arrays`.

    Args:
      function: the function to wrap.
      on_whole_arrays: False passes split arrays as they are, for a function that only passes its
        arguments to operators.
    """
    parameters = inspect.signature(function).parameters
    name, own = function.__name__, frozenset(parameters)
    annotated = ((p, str(q.annotation).removesuffix(" | None")) for p, q in parameters.items())
    places = {p: place for place, p in enumerate(parameters)}
    wanted = tuple(
        (places[p], p, annotation, parameters[p].default is None, _ATTRIBUTES.get(annotation))
        for p, annotation in annotated
        if _CHECKED.fullmatch(annotation)
    )

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        check_process()
        if options and not options.keys() <= own:
            refuse_foreign(name, options, own)
        for place, parameter, annotation, may_be_none, attributes in wanted:
            if place < len(args):
                value = args[place]
            elif parameter in options:
                value = options[parameter]
            else:
                continue
            if value is None and may_be_none:
                continue
            if attributes is None or not (
                hasattr(value, attributes[0]) and hasattr(value, attributes[1])
            ):
                check_kind(name, parameter, value, annotation)
        if on_whole_arrays and _compat.is_on_explicit_mesh(*args, *options.values()):
            return _compat.on_whole_arrays(function, args, options)
        return function(*args, **options)

    return cast("_Function", call)


_ATTRIBUTES = {annotation: attributes for annotation, (attributes, _) in _KINDS.items()}
_CHECKED = re.compile(rf"(Sequence\[)?({'|'.join(_KINDS)})\]?|Callable\[.*")


def check_kind(function: str, name: str, value: Any, annotation: str) -> None:
    """Raise :class:`InputError` if the argument ``name`` is not of the annotated type.

    Args:
      function: name of the function that takes the argument.
      name: name of the argument.
      value: the argument.
      annotation: ``Voxels``, ``Points``, ``Sequence[...]`` of one of them, or ``Callable[...]``.
    """
    if annotation.startswith("Callable"):
        if not callable(value):
            raise InputError(
                f"{function} takes a function or a model as {name}, got {type(value).__name__}: "
                "give it first, then what it is called with"
            )
        return
    kind = annotation.removeprefix("Sequence[").removesuffix("]")
    attributes, way = _KINDS[kind]

    def fits(item: Any) -> bool:
        return all(hasattr(item, attribute) for attribute in attributes)

    several = annotation.startswith("Sequence")
    if several and fits(value):
        raise InputError(f"{function} takes a list as {name}, got one {kind}: write [a, b]")
    items = value if several and isinstance(value, list | tuple) else (value,)
    for item in items:
        if not fits(item):
            shape = getattr(item, "shape", None)
            what = type(item).__name__ if shape is None else f"an array {list(shape)}"
            raise InputError(f"{function} takes vx.{kind} as {name}, got {what}: {way}")
