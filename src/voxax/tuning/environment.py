"""What the environment asks of the tuner. Read when a function is traced, never at import.

=====================================  ====================================================
variable                               says
=====================================  ====================================================
``VOXAX_FWD_ALGO_MODE``                request for forward
``VOXAX_BWD_ALGO_MODE``                request for dgrad and wgrad
``VOXAX_DGRAD_ALGO_MODE``              request for dgrad alone; beats ``BWD``
``VOXAX_WGRAD_ALGO_MODE``              request for wgrad alone; beats ``BWD``
``VOXAX_DEPTHWISE_CONV_FWD_ALGO_MODE`` depthwise forward
``VOXAX_DEPTHWISE_CONV_BWD_ALGO_MODE`` depthwise dgrad and wgrad
``VOXAX_DYNAMIC_CONV_FWD_ALGO_MODE``   dynamic convolution on grids, forward
``VOXAX_DYNAMIC_CONV_BWD_ALGO_MODE``   its dgrad and wgrad
``WARPCONVNET_..._ALGO_MODE``          the first six, where no ``VOXAX_`` one decides
``VOXAX_AUTOTUNE``                     ``on``, ``cached`` or ``off``
``VOXAX_AUTOTUNE_BUDGET``              seconds, see :mod:`voxax.tuning.budget`
``VOXAX_AUTOTUNE_LOG``                 ``off``, ``info`` or ``debug``
=====================================  ====================================================

A variable that is empty or blank counts as unset. ``WARPCONVNET_`` variables may name
algorithms that voxax does not have: those are skipped with one warning.
"""

from __future__ import annotations

import functools
import logging
import os
import warnings
from typing import Literal, get_args

from voxax import _compat
from voxax.algorithms.base import Product, WeightKind
from voxax.errors import InputError
from voxax.tuning.grammar import EVERYTHING, Resolved, parse, parse_known

AutotuneMode = Literal["on", "cached", "off"]
"""``on``: measure what the cache does not know. ``cached``: choose from caches and defaults,
measure nothing. ``off``: neither measure nor read caches."""

LOGGER = logging.getLogger("voxax.tuning")

_epoch = 0

_LEVELS = {"off": logging.CRITICAL + 1, "info": logging.INFO, "debug": logging.DEBUG}

# By kind of weight and product, what decides first in front. Grouped weights are dense here.
_VARIABLES: dict[tuple[WeightKind, Product], tuple[str, ...]] = {
    ("dense", "forward"): ("FWD_ALGO_MODE",),
    ("dense", "dgrad"): ("DGRAD_ALGO_MODE", "BWD_ALGO_MODE"),
    ("dense", "wgrad"): ("WGRAD_ALGO_MODE", "BWD_ALGO_MODE"),
    ("depthwise", "forward"): ("DEPTHWISE_CONV_FWD_ALGO_MODE",),
    ("depthwise", "dgrad"): ("DEPTHWISE_CONV_BWD_ALGO_MODE",),
    ("depthwise", "wgrad"): ("DEPTHWISE_CONV_BWD_ALGO_MODE",),
    ("dynamic", "forward"): ("DYNAMIC_CONV_FWD_ALGO_MODE",),
    ("dynamic", "dgrad"): ("DYNAMIC_CONV_BWD_ALGO_MODE",),
    ("dynamic", "wgrad"): ("DYNAMIC_CONV_BWD_ALGO_MODE",),
}
# What no other library has, none has a variable for.
_OF_PEERS = ("dense", "grouped", "depthwise")


def requested(kind: WeightKind, product: Product) -> tuple[Resolved, str] | None:
    """What the environment admits for a product, and the setting that says so.

    Returns:
      ``(names, "VARIABLE=value")``, or None where no variable is set.

    Raises:
      AlgorithmError: a ``VOXAX_`` variable that is no request.
    """
    stems = _VARIABLES["dense" if kind == "grouped" else kind, product]
    for name in (f"VOXAX_{stem}" for stem in stems):
        if value := _read(name):
            return parse(value, kind, f"{name}={value}"), f"{name}={value}"
    for name in (f"WARPCONVNET_{stem}" for stem in stems if kind in _OF_PEERS):
        if value := _read(name):
            return _of_peer(name, value, kind), f"{name}={value}"
    return None


def autotune_mode() -> AutotuneMode:
    """``VOXAX_AUTOTUNE`` in lower case, ``on`` where unset.

    Raises:
      InputError: another value.
    """
    value = _read("VOXAX_AUTOTUNE").lower() or "on"
    for mode in get_args(AutotuneMode):
        if value == mode:
            return mode
    raise InputError(f"VOXAX_AUTOTUNE={value}: expected one of {', '.join(get_args(AutotuneMode))}")


def configure_log() -> None:
    """Make the logger ``voxax.tuning`` as talkative as ``VOXAX_AUTOTUNE_LOG`` says.

    ``info`` is one line for each tuned problem, ``debug`` one for each candidate, ``off`` is
    silence, warnings included. Lines go to stderr where the application has set up no
    handler. While the variable is unset, and never was set, the logger is left alone.

    Raises:
      InputError: another value.
    """
    value = _read("VOXAX_AUTOTUNE_LOG").lower()
    if value and value not in _LEVELS:
        raise InputError(f"VOXAX_AUTOTUNE_LOG={value}: expected one of {', '.join(_LEVELS)}")
    if value:
        _set_level(value)
    elif _configured:
        _set_level(None)


def reload_environment() -> None:
    """Make a changed environment take effect in programs that are already compiled.

    The environment is read when a function is traced, so a jitted one that is compiled
    already keeps its choice; so do voxax's own programs for eager calls, with respect to
    ``VOXAX_AUTOTUNE``. After this call, every jitted function of the process is traced anew
    at its next call, in all threads.
    """
    _warn_of_peer.cache_clear()
    next_epoch()
    configure_log()
    _compat.retrace_everything()


def epoch() -> int:
    """How often this process was told to forget what its job agreed on.

    In a job of several processes all must call :func:`reload_environment` and ``vx.tune`` alike.
    """
    return _epoch


def next_epoch() -> None:
    """Ask the job anew from here on."""
    global _epoch
    _epoch += 1


def _read(name: str) -> str:
    return os.environ.get(name, "").strip()


def _of_peer(name: str, value: str, kind: WeightKind) -> Resolved:
    admitted, unknown = parse_known(value, kind)
    everything = parse(EVERYTHING[0], kind, name)
    if unknown:
        _warn_of_peer(name, value, unknown, everything, bool(admitted))
    return admitted or everything


@functools.lru_cache(maxsize=256)
def _warn_of_peer(
    name: str, value: str, unknown: tuple[str, ...], known: Resolved, some_left: bool
) -> None:
    """Once per setting."""
    rest = "the others are used" if some_left else "none is left, so all algorithms are admitted"
    warnings.warn(
        f"{name}={value}: voxax has no algorithm {', '.join(map(repr, unknown))}; {rest}. Known: "
        f"{', '.join(known)}; VOXAX_{name.removeprefix('WARPCONVNET_')} takes precedence",
        stacklevel=2,
    )


# The level that the variable asked for last, and the handler that was added for it.
_configured: dict[str, logging.Handler | None] = {}


def _set_level(value: str | None) -> None:
    if value in _configured:
        return
    for handler in filter(None, _configured.values()):
        LOGGER.removeHandler(handler)
    _configured.clear()
    LOGGER.setLevel(logging.NOTSET if value is None else _LEVELS[value])
    if value is None:
        return
    handler = None
    if value != "off" and not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOGGER.addHandler(handler)
    _configured[value] = handler
