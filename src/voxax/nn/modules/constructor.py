"""Base classes of the modules, which check constructor arguments and show their signatures."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax._foreign_arguments import refuse_foreign
from voxax._fork import check_process
from voxax.errors import InputError
from voxax.nn.modules.keys import rngs_of

_NUMBERS = (
    "bank", "channels", "coarse_from", "hidden", "in_channels", "k", "key_channels", "num_features",
    "num_heads", "num_kernel_points", "num_weights", "out_channels", "patch_size", "skip_channels",
)  # fmt: skip
_SIZES = ("kernel_size", "stride", "dilation", "factor")  # one for each axis


# A plain Python counter, which tracing does not affect: keys differ under jit and eval_shape too.
_made = itertools.count(1)
_SEED, _STEP = 0x5EED1E55, 0x9E3779B1  # an odd step reaches every number of 31 bits once


def own_rngs(rngs: nnx.Rngs | None) -> nnx.Rngs:
    """Return ``rngs``. If it is None, return new streams with a key that no other layer gets.

    The default seed is fixed, so the weights depend only on the order in which layers are built.
    """
    return rngs_of((_SEED + next(_made) * _STEP) % 2**31) if rngs is None else rngs


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function with ``**options: Unpack[...]`` expanded into its keys.

    Each key has the default ``...``, because the layer that receives it defines the real default.
    """
    written = inspect.signature(function)
    found = []
    for parameter in written.parameters.values():
        options = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if options is None:
            found.append(parameter)
            continue
        known = function.__globals__[options[1]].__annotations__
        found += [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=...,
                annotation=getattr(annotation, "__forward_arg__", annotation),
            )
            for name, annotation in known.items()
        ]
    return written.replace(parameters=found)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def with_signature(function: _Function) -> _Function:
    """Decorate a function to show the keys of ``**options: Unpack[...]`` in its signature."""
    function.__signature__ = _signature(function)  # pyright: ignore[reportFunctionMemberAccess]
    return function


@functools.lru_cache(maxsize=256)
def _constructor(cls: type) -> inspect.Signature:
    if cls.__init__ is object.__init__:
        return inspect.Signature()
    whole = _signature(cls.__init__)
    return whole.replace(parameters=[*whole.parameters.values()][1:])


class _ConstructorSignature:
    """Attribute ``__signature__`` that makes ``inspect.signature(cls)`` show the constructor.

    Without it, the signature is that of flax's metaclass, which has no parameter names.
    """

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        if instance is not None:  # an instance has the signature of its __call__
            raise AttributeError("__signature__")
        return _constructor(owner)


class Module(nnx.Module):
    """Base of modules and networks. ``inspect.signature`` shows the constructor's arguments."""

    if not TYPE_CHECKING:
        __signature__ = _ConstructorSignature()


class CheckedModule(Module):
    """Base class of modules whose constructors refuse unknown arguments and impossible values."""

    _may_be_zero: ClassVar[tuple[str, ...]] = ()

    if not TYPE_CHECKING:  # type checkers would allow any arguments

        def __new__(cls, *args: Any, **options: Any) -> Any:
            check_process()
            parameters = _constructor(cls).parameters
            refuse_foreign(cls.__name__, options, parameters)
            _check(cls, {**dict(zip(parameters, args, strict=False)), **options})
            return super().__new__(cls)


def _check(cls: type[CheckedModule], given: Mapping[str, Any]) -> None:
    module = cls.__name__
    for name, value in given.items():
        if value is None:
            continue
        if name in _NUMBERS or name in _SIZES:
            several = name in _SIZES or not np.isscalar(value)
            least = 0 if name in cls._may_be_zero else 1
            if not all(_is_whole(n, least) for n in (_listed(value) if several else (value,))):
                axes = ", or one for each axis" if name in _SIZES else ""
                raise InputError(
                    f"{module} of {name}={value!r}: give an integer of at least {least}{axes}"
                )
        elif name in ("dtype", "param_dtype"):
            try:
                jnp.dtype(value)
            except TypeError as error:
                raise InputError(
                    f"{module} of {name}={value!r}: give a dtype such as jnp.float32"
                ) from error
        elif name == "rngs" and isinstance(value, int | np.generic | np.ndarray | jax.Array):
            raise InputError(f"{module} of rngs={value!r}: give nnx.Rngs(0), or leave it out")


def _listed(value: Any) -> tuple[Any, ...]:
    several = isinstance(value, Iterable) and not isinstance(value, str)
    return tuple(value) if several and np.ndim(value) else (value,)  # type: ignore[arg-type]


def _is_whole(value: Any, least: int) -> bool:
    try:
        return operator.index(value) >= least
    except TypeError:
        return False
