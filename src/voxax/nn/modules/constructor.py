"""What the constructors of all modules refuse."""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax._fork import check_process
from voxax.errors import InputError
from voxax.geometry.call_checks import refuse_foreign
from voxax.nn.modules.keys import rngs_of

_NUMBERS = (
    "bank", "channels", "coarse_from", "hidden", "in_channels", "k", "key_channels", "num_features",
    "num_heads", "num_kernel_points", "num_weights", "out_channels", "patch_size", "skip_channels",
)  # fmt: skip
_SIZES = ("kernel_size", "stride", "dilation", "factor")  # one for each axis


# A plain counter: traces have no part in it, so keys differ under jit and eval_shape too.
_made = itertools.count(1)
_SEED, _STEP = 0x5EED1E55, 0x9E3779B1  # an odd step reaches every number of 31 bits once


def own_rngs(rngs: nnx.Rngs | None) -> nnx.Rngs:
    """Return ``rngs``, or streams that no other layer has, from a default stream of the process.

    Its seed is fixed, so weights follow from the order in which layers are built.
    """
    return rngs_of((_SEED + next(_made) * _STEP) % 2**31) if rngs is None else rngs


class CheckedModule(nnx.Module):
    """Base of modules. Arguments of other libraries, and values of no sense, are told at once."""

    _may_be_zero: ClassVar[tuple[str, ...]] = ()

    def __new__(cls, *args: Any, **options: Any) -> Any:
        check_process()
        names = _names(cls)
        refuse_foreign(cls.__name__, options, names)
        _check(cls, {**dict(zip(names, args, strict=False)), **options})
        return super().__new__(cls)


@functools.lru_cache(maxsize=256)
def _names(cls: type) -> tuple[str, ...]:
    """Arguments of a constructor, those by position first."""
    named = (p for p in inspect.signature(cls.__init__).parameters.values())
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return tuple(p.name for p in named if p.kind not in variadic)[1:]


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
