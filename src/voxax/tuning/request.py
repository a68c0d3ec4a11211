"""Requests: the algorithms that a user asks for, read as a filter on the registered ones.

The first of these that is given decides:

1. the argument of the call or of the layer (``fwd_algo``, ``bwd_algo``, ``dgrad_algo``,
   ``wgrad_algo``; of dynamic convolutions ``algorithm``), unless it is None;
2. the overlay around the call (:func:`voxax.algorithms`), the innermost first;
3. the environment, which is read when a function is traced, never at import. A variable for dgrad
   or wgrad alone beats the one for both, and a ``VOXAX_`` one its namesake of WarpConvNet, which
   may name algorithms that voxax does not have: those are skipped with one warning;
4. otherwise every algorithm is admitted, and the tuner chooses.

``docs/algorithms.md`` lists the forms of a request and the variables. A variable that is empty or
blank counts as unset.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import os
import threading
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, get_args

from voxax import _compat
from voxax.errors import AlgorithmError, InputError
from voxax.kernels import names
from voxax.kernels.kernel import Product, WeightKind

Request = str | enum.Enum | Sequence["str | enum.Enum"] | None
"""A name or enum member: that algorithm. A list or tuple: any of it. ``"auto"``: any. ``None``:
what the overlay, then the environment says, else any."""

Resolved = tuple[str, ...]
"""Canonical names, in the user's order, without duplicates: a filter on the search space."""

EVERYTHING = ("auto", "all")

AutotuneMode = Literal["on", "cached", "off"]
"""``on``: measure what the cache does not know. ``cached``: choose from caches and defaults,
measure nothing. ``off``: neither measure nor read caches."""

LOGGER = logging.getLogger("voxax.tuning")
# The level that the variable asked for last, and the handler that was added for it.
_configured: tuple[str, logging.Handler | None] = "", None
_LEVELS = {"off": logging.CRITICAL + 1, "info": logging.INFO, "debug": logging.DEBUG}

_ARGUMENTS: dict[Product, str] = {
    "forward": "fwd_algo",
    "dgrad": "dgrad_algo (or bwd_algo)",
    "wgrad": "wgrad_algo (or bwd_algo)",
}
# By kind of weight and product: the overlay's field, and the middles of the variables' names, the
# one that decides first in front. Grouped weights are dense here.
_DEPTHWISE_BACKWARD = "depthwise_backward", ("DEPTHWISE_CONV_BWD",)
_DYNAMIC_BACKWARD = "dynamic_backward", ("DYNAMIC_CONV_BWD",)
_SETTINGS: dict[tuple[WeightKind, Product], tuple[str, tuple[str, ...]]] = {
    ("dense", "forward"): ("forward", ("FWD",)),
    ("dense", "dgrad"): ("dgrad", ("DGRAD", "BWD")),
    ("dense", "wgrad"): ("wgrad", ("WGRAD", "BWD")),
    ("depthwise", "forward"): ("depthwise_forward", ("DEPTHWISE_CONV_FWD",)),
    ("depthwise", "dgrad"): _DEPTHWISE_BACKWARD,
    ("depthwise", "wgrad"): _DEPTHWISE_BACKWARD,
    ("dynamic", "forward"): ("dynamic_forward", ("DYNAMIC_CONV_FWD",)),
    ("dynamic", "dgrad"): _DYNAMIC_BACKWARD,
    ("dynamic", "wgrad"): _DYNAMIC_BACKWARD,
}


class Admitted(NamedTuple):
    """The algorithms that a request admits.

    Attributes:
      names: canonical, in the user's order.
      origin: the argument or setting that asks, e.g. ``fwd_algo`` or
        ``VOXAX_FWD_ALGO_MODE=implicit_gemm``; empty where no user asked.
    """

    names: Resolved
    origin: str = ""

    @property
    def stated(self) -> bool:
        """Return whether a user asked, also by ``"auto"``."""
        return bool(self.origin)


def admitted(request: Request, *, kind: WeightKind, product: Product) -> Admitted:
    """The algorithms that may execute a product, and the origin of the request.

    Args:
      request: the call's own, or None.
      kind: says which names are known.
      product: forward, dgrad or wgrad.

    Raises:
      AlgorithmError: an unknown name (lists the known ones), an empty list, or a value
        that is no request; the message opens with where it was written.
    """
    field, stems = _SETTINGS["dense" if kind == "grouped" else kind, product]
    overlay = dict(_compat.overlay.value).get(field)
    if request is not None:
        origin = "algorithm" if kind == "dynamic" else _ARGUMENTS[product]
    elif overlay is not None:
        request, origin = overlay, f"vx.algorithms({field}=)"
    else:
        # Other libraries define no variable for dynamic convolution.
        libraries = ("VOXAX",) if kind == "dynamic" else ("VOXAX", "WARPCONVNET")
        variables = (f"{library}_{stem}_ALGO_MODE" for library in libraries for stem in stems)
        name = next(filter(_read, variables), None)
        if name is None:
            return Admitted(names(kind))
        request = _read(name)
        origin = f"{name}={request}"
        if not name.startswith("VOXAX_"):
            return Admitted(_of_peer(name, request, kind), origin)
    return Admitted(parse(request, kind, origin), origin)


def parse(request: Request, kind: WeightKind, origin: str) -> Resolved:
    """The algorithms that a request admits; ``origin`` is where it was written, for messages."""
    return _expanded(frozen(request, kind, origin) or (), names(kind))


def frozen(request: Request, kind: WeightKind, origin: str) -> Resolved | None:
    """A request in one hashable spelling, its names checked; None stays None.

    ``"auto"`` stays a word: what it stands for depends on the kind of the weight. Arguments and
    errors are those of :func:`parse`.
    """
    if request is None:
        return None
    known = names(kind)
    listed = ", ".join((*known, *EVERYTHING))
    entries = request if isinstance(request, list | tuple) else (request,)
    texts = [_text(entry, origin, listed).strip() for entry in entries]
    if entries is not request:
        (text,) = texts
        opens, ends = text.startswith("["), text.endswith("]")
        if opens != ends:
            raise AlgorithmError(f"{origin}: unbalanced brackets in {text!r}: write [a,b]")
        if opens:
            inner = text[1:-1]
            texts = [part.strip() for part in inner.split(",")] if inner.strip() else []
        elif "," in text:
            raise AlgorithmError(
                f"{origin}: {text!r} names several algorithms: put them in brackets, [{text}]"
            )
    if not texts:
        raise AlgorithmError(f"{origin}: an empty list admits no algorithm; known: {listed}")
    words: dict[str, None] = {}
    for text in texts:
        word = _canonical(text, known)
        if word is None:
            raise AlgorithmError(f"{origin}: unknown algorithm {text!r}; known: {listed}")
        words[word] = None
    return tuple(words)


def _text(entry: Any, origin: str, listed: str) -> str:
    """The string of a name or of an enum member, this library's or another's."""
    text = entry.value if isinstance(entry, enum.Enum) else entry
    if isinstance(text, str):
        return text
    what = f"{entry!r} of type {type(entry).__name__}"
    if isinstance(entry, list | tuple):
        what = f"the list {entry!r} inside a list"
    raise AlgorithmError(
        f"{origin}: {what} names no algorithm: give a name, an enum member or a flat list of "
        f"them; known: {listed}"
    )


def _canonical(text: str, known: Resolved) -> str | None:
    """The known name, or ``"auto"``, that a text stands for; None for an unknown one."""
    word = text.lower()
    if word in EVERYTHING:
        return EVERYTHING[0]
    other = word.removesuffix("_gemm") if word.endswith("_gemm") else f"{word}_gemm"
    return next((name for name in (word, other) if name in known), None)


def _expanded(words: Iterable[str], known: Resolved) -> Resolved:
    """The names that frozen words stand for."""
    every = (known if word == EVERYTHING[0] else (word,) for word in words)
    return tuple(dict.fromkeys(name for some in every for name in some))


class Overlay(contextlib.ContextDecorator):
    """Requests by field, for the calls inside ``with``; made by :func:`algorithms`.

    It may be entered many times, inside itself and in several threads, and is also a decorator.
    Its value is part of the key of ``jax.jit``'s caches: a jitted function that is called inside is
    traced anew for a new overlay and found again for an old one, also when it was compiled outside
    before.
    """

    def __init__(self, fields: tuple[tuple[str, Resolved], ...]) -> None:
        self._fields = fields
        self._entered = threading.local()

    def __enter__(self) -> Overlay:
        merged = dict(_compat.overlay.value) | dict(self._fields)
        # Sorted, so that the same requests give the same key however they were nested.
        context = _compat.overlay(tuple(sorted(merged.items())))
        context.__enter__()
        self._entered.__dict__.setdefault("contexts", []).append(context)
        return self

    def __exit__(self, *error: object) -> None:
        self._entered.contexts.pop().__exit__(*error)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={list(names)}" for name, names in self._fields)
        return f"voxax.algorithms({fields})"


def algorithms(
    forward: Request = None,
    backward: Request = None,
    dgrad: Request = None,
    wgrad: Request = None,
    depthwise_forward: Request = None,
    depthwise_backward: Request = None,
    dynamic_forward: Request = None,
    dynamic_backward: Request = None,
) -> Overlay:
    """Request algorithms for every convolution inside ``with`` whose call requests none.

    An overlay beats the environment; a ``fwd_algo=`` or ``bwd_algo=`` of the layer beats the
    overlay. An inner overlay beats an outer one, request by request; ``"auto"`` takes an
    outer one back. Threads that are started inside do not inherit it.

    Args:
      forward, dgrad, wgrad: requests for the three products of dense and grouped
        convolutions; None leaves what holds outside.
      backward: for dgrad and wgrad, where they are not given themselves.
      depthwise_forward, depthwise_backward: the same for depthwise convolutions.
      dynamic_forward, dynamic_backward: the same for ``dynamic_conv``, whose argument is
        ``algorithm``.

    Returns:
      A context manager, which may be entered again; also a decorator.

    Raises:
      AlgorithmError: a request that is not understood; at once, not when a layer runs.

    Examples:
      >>> layer = modules.SubMConv3d(4, 8, rngs=nnx.Rngs(0))
      >>> with vx.algorithms(forward="explicit_gemm"):
      ...     y = layer(voxels)
    """
    requests = {
        "forward": ("forward", forward),
        "dgrad": ("backward", backward) if dgrad is None else ("dgrad", dgrad),
        "wgrad": ("backward", backward) if wgrad is None else ("wgrad", wgrad),
        "depthwise_forward": ("depthwise_forward", depthwise_forward),
        "depthwise_backward": ("depthwise_backward", depthwise_backward),
        "dynamic_forward": ("dynamic_forward", dynamic_forward),
        "dynamic_backward": ("dynamic_backward", dynamic_backward),
    }
    kinds: dict[str, WeightKind] = {field: kind for (kind, _), (field, _) in _SETTINGS.items()}
    fields = []
    for field, (argument, request) in requests.items():
        words = frozen(request, kinds[field], f"vx.algorithms({argument}=)")
        if words is not None:
            fields.append((field, words))
    return Overlay(tuple(fields))


def autotune_mode(platform: str = "", ruled: bool = False) -> AutotuneMode:
    """``VOXAX_AUTOTUNE`` in lower case; where unset ``cached`` on TPUs and by rule, else ``on``.

    A TPU's compiler takes seconds for each candidate, and choices predicted for TPUs come with
    voxax: they are taken at once, until ``vx.tune`` measures. By rule nothing is measured either,
    so such runs have the same bits.

    Args:
      platform: that a product runs on, ``tpu`` for one.
      ruled: nothing is requested, and a kernel is :attr:`Kernel.decisive`.

    Raises:
      InputError: another value.
    """
    value = _read("VOXAX_AUTOTUNE").lower() or ("cached" if ruled or platform == "tpu" else "on")
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
    global _configured
    value = _read("VOXAX_AUTOTUNE_LOG").lower()
    if value and value not in _LEVELS:
        raise InputError(f"VOXAX_AUTOTUNE_LOG={value}: expected one of {', '.join(_LEVELS)}")
    before, handler = _configured
    if value == before:
        return
    if handler is not None:
        LOGGER.removeHandler(handler)
        handler = None
    LOGGER.setLevel(_LEVELS.get(value, logging.NOTSET))
    if value not in ("", "off") and not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
        LOGGER.addHandler(handler)
    _configured = value, handler


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


_epoch = 0


def epoch() -> int:
    """The number of times that this process was told to forget what its job agreed on.

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
    """The algorithms that a string written for another library admits; warns of unknown words."""
    known = names(kind)
    inner = value[1:-1] if value.startswith("[") and value.endswith("]") else value
    words = {word: _canonical(word, known) for word in map(str.strip, inner.split(","))}
    admitted = _expanded((word for word in words.values() if word is not None), known)
    unknown = tuple(word for word, found in words.items() if found is None)
    if unknown:
        _warn_of_peer(name, value, unknown, known, bool(admitted))
    return admitted or known


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
