"""Users' requests for algorithms, which limit the algorithms that the tuner may choose from.

The first of these sources that contains a request is used:

1. the argument of the call or of the layer (``fwd_algo``, ``bwd_algo``, ``dgrad_algo``,
   ``wgrad_algo``; for dynamic convolutions ``algorithm``), unless it is None;
2. the enclosing ``with`` :func:`voxax.algorithms`, the innermost first;
3. the environment, which is read when a function is traced, never at import. A variable for only
   dgrad or wgrad takes precedence over the variable for both, and a ``VOXAX_`` variable over the
   same variable of WarpConvNet. A variable of WarpConvNet may name algorithms that voxax does not
   have; they are skipped with one warning;
4. without any request, every algorithm is admitted, and the tuner chooses.

``docs/algorithms.md`` lists the forms of a request and the variables. An empty variable is unset.
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
"""The algorithms that a user admits: a name or enum member, or a list or tuple of them; ``"auto"``
admits all. None takes the request of the enclosing :func:`voxax.algorithms` or the environment."""

Resolved = tuple[str, ...]
"""Names of the admitted algorithms as in the registry, in the user's order, without duplicates."""

EVERYTHING = ("auto", "all")

AutotuneMode = Literal["on", "cached", "off"]
"""Value of ``VOXAX_AUTOTUNE``. ``on``: measure problems that the cache does not contain.
``cached``: choose by caches and defaults, and measure nothing. ``off``: use defaults only."""

LOGGER = logging.getLogger("voxax.tuning")
# The last value of the variable, and the handler that was added for it.
_configured: tuple[str, logging.Handler | None] = "", None
_LEVELS = {"off": logging.CRITICAL + 1, "info": logging.INFO, "debug": logging.DEBUG}

_ARGUMENTS: dict[Product, str] = {
    "forward": "fwd_algo",
    "dgrad": "dgrad_algo (or bwd_algo)",
    "wgrad": "wgrad_algo (or bwd_algo)",
}
# For each kind of weight and product: the argument of `algorithms`, and the middle parts of the
# environment variables' names, by precedence. Grouped weights count as dense.
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
    """The algorithms that a user's request admits for one product (forward, dgrad or wgrad).

    Attributes:
      names: canonical names, in the user's order.
      origin: name of the argument or setting with the request, such as ``fwd_algo`` or
        ``VOXAX_FWD_ALGO_MODE=implicit_gemm``; empty if there is no request.
    """

    names: Resolved
    origin: str = ""

    @property
    def stated(self) -> bool:
        """Whether the user made a request, including ``"auto"``."""
        return bool(self.origin)


def admitted(request: Request, *, kind: WeightKind, product: Product) -> Admitted:
    """Return the algorithms that may execute a product, and where the request comes from.

    Args:
      request: argument of the call or of the layer. None takes the request of the enclosing
        :func:`voxax.algorithms`, or of the environment variable.
      kind: kind of the weight, ``dense``, ``grouped``, ``depthwise`` or ``dynamic``; each kind has
        its own algorithms.
      product: forward, dgrad or wgrad.

    Raises:
      AlgorithmError: an unknown name, an empty list, or a value that is not a request. The message
        begins with the origin of the request and lists the known names.
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
    """Return the algorithms that a request admits for a `kind` of weight.

    Error messages begin with `origin`, the name of the argument or setting with the request.
    """
    return _expanded(frozen(request, kind, origin) or (), names(kind))


def frozen(request: Request, kind: WeightKind, origin: str) -> Resolved | None:
    """Check a request, and return its algorithm names as a tuple; return None if it is None.

    `kind` is the kind of the weight, which determines the known names. The name ``"auto"`` is
    returned as it is; :func:`parse` replaces it by all known names. Error messages begin with
    `origin`, the name of the argument or setting with the request.
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
    """Return the name of an algorithm, an entry of a user's request, as a string.

    For the error message, `origin` is the name of the argument or setting with the request, and
    `listed` is a text with the known names.

    Raises:
      AlgorithmError: `entry` is neither a string nor an enum member with a string as its value.
    """
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
    """Return the algorithm's name in `known` that a user means by `text`; None if it is unknown.

    Case is ignored, and the suffix ``_gemm`` may be missing or superfluous. For ``"auto"`` and
    ``"all"``, which mean all algorithms, the result is ``"auto"``.
    """
    word = text.lower()
    if word in EVERYTHING:
        return EVERYTHING[0]
    other = word.removesuffix("_gemm") if word.endswith("_gemm") else f"{word}_gemm"
    return next((name for name in (word, other) if name in known), None)


def _expanded(words: Iterable[str], known: Resolved) -> Resolved:
    """Return `words` with ``"auto"`` replaced by all `known` names, and without duplicates."""
    every = (known if word == EVERYTHING[0] else (word,) for word in words)
    return tuple(dict.fromkeys(name for some in every for name in some))


class Overlay(contextlib.ContextDecorator):
    """Context manager and decorator, made by :func:`algorithms`, that sets requests for algorithms.

    An instance may be entered many times, inside itself and in several threads. The requests are
    part of the key of ``jax.jit``'s caches: a jitted function is traced again when it is first
    called inside a context with other requests, and later calls find the compiled program.

    Args:
      fields: pairs of an argument name of :func:`algorithms` and the request for it.
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
    """Set which algorithms the convolutions inside a ``with`` block may use.

    This setting takes precedence over environment variables. An argument ``fwd_algo=`` or
    ``bwd_algo=`` of a layer takes precedence over this setting. In nested blocks the inner request
    applies; ``"auto"`` admits all algorithms again. Threads that are started inside the block do
    not inherit the requests.

    Args:
      forward, dgrad, wgrad: requests for the output, the input gradient and the weight gradient of
        dense and grouped convolutions: a name, a list of names, or ``"auto"``. None keeps the
        request of the outer block or the environment.
      backward: request for dgrad and wgrad if these are None.
      depthwise_forward, depthwise_backward: requests for depthwise convolutions.
      dynamic_forward, dynamic_backward: requests for ``dynamic_conv`` calls without an argument
        ``algorithm``.

    Returns:
      A context manager that may be entered several times; also a decorator.

    Raises:
      AlgorithmError: a request is invalid. This call raises it, before any layer runs.

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
    """Return the tuner's mode: ``VOXAX_AUTOTUNE`` in lower case, or the default if it is unset.

    The default is ``cached`` on TPUs and if `ruled`, otherwise ``on``. A TPU's compiler takes
    seconds for each candidate, so the predicted choices shipped with voxax are used until
    ``vx.tune`` measures. If `ruled`, nothing is measured, so that all runs give the same bits.

    Args:
      platform: platform that a product runs on, such as ``tpu``.
      ruled: whether the user made no request, and one kernel is known to be the fastest.

    Raises:
      InputError: the value of ``VOXAX_AUTOTUNE`` is unknown.
    """
    value = _read("VOXAX_AUTOTUNE").lower() or ("cached" if ruled or platform == "tpu" else "on")
    for mode in get_args(AutotuneMode):
        if value == mode:
            return mode
    raise InputError(f"VOXAX_AUTOTUNE={value}: expected one of {', '.join(get_args(AutotuneMode))}")


def configure_log() -> None:
    """Set the level of the logger ``voxax.tuning`` from ``VOXAX_AUTOTUNE_LOG``.

    ``info`` logs one line for each tuned problem, ``debug`` one for each candidate too, and ``off``
    nothing, not even warnings. Lines go to stderr if the application has no log handler. The logger
    is unchanged unless the variable is set, or was set at an earlier call.

    Raises:
      InputError: the value of the variable is unknown.
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

    The environment is read when a function is traced, so a compiled function keeps its algorithms.
    voxax's own programs for eager calls keep the value of ``VOXAX_AUTOTUNE`` too. After this call,
    every jitted function of the process is traced again at its next call, in all threads.
    """
    _warn_of_peer.cache_clear()
    next_epoch()
    configure_log()
    _compat.retrace_everything()


_epoch = 0


def epoch() -> int:
    """Return the number of calls of :func:`next_epoch` in this process.

    The processes of a JAX job share each decision under a name that contains this number. They must
    therefore call :func:`reload_environment` and ``vx.tune`` equally often and in the same order.
    """
    return _epoch


def next_epoch() -> None:
    """Increase :func:`epoch` by 1, so that a JAX job's processes do not reuse shared decisions."""
    global _epoch
    _epoch += 1


def _read(name: str) -> str:
    return os.environ.get(name, "").strip()


def _of_peer(name: str, value: str, kind: WeightKind) -> Resolved:
    """Return the algorithms that an environment variable of the library WarpConvNet requests.

    `name` is the variable's name and `value` its text. Algorithms that voxax does not have cause a
    warning. If voxax has none of them, the result is all algorithms for this `kind` of weight.
    """
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
    """Warn that `value`, the text of WarpConvNet's variable `name`, has `unknown` algorithm names.

    Equal warnings are given once. `known` are voxax's algorithms. `some_left` is whether `value`
    also contains a name among `known`.
    """
    rest = "the others are used" if some_left else "none is left, so all algorithms are admitted"
    warnings.warn(
        f"{name}={value}: voxax has no algorithm {', '.join(map(repr, unknown))}; {rest}. Known: "
        f"{', '.join(known)}; VOXAX_{name.removeprefix('WARPCONVNET_')} takes precedence",
        stacklevel=2,
    )
