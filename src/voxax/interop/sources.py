"""Load and write weights of published networks in the names and layouts of other codebases."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flax import nnx

from voxax.errors import InputError, check_known, listed
from voxax.interop.checkpoint_file import Location, read_checkpoint
from voxax.interop.peer import Peer
from voxax.interop.state_dict import (
    PartReport,
    check_names,
    dump,
    fitting_peer,
    load,
    load_part,
)

ENTRIES = ("state_dict", "model_state", "model_state_dict", "model")
"""Names of the entry with the state dict in PyTorch files of Pointcept, OpenPCDet and others."""
REFERENCE = 1e-3, 0.99
"""Epsilon and momentum of batch norms in OpenPCDet, Pointcept and their released networks."""
TORCH = 1e-5, 0.9
"""Epsilon and momentum of PyTorch's batch norms; the momentum is the share of the old average."""
MOMENTUM = "momentum"
"""Name of the only setting that does not change what a network computes from its weights."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A module attribute, such as epsilon, that a codebase sets and a file of weights lacks.

    Attributes:
      modules: regular expression that is searched for in the paths of modules.
      name: name of the attribute; modules without this attribute are left out.
      value: value of the attribute in the codebase.
    """

    modules: str
    name: str
    value: Any


def norm_settings(epsilon: float, momentum: float, modules: str = "") -> tuple[Setting, ...]:
    """Return two :class:`Setting` objects, for epsilon and momentum of batch norms.

    Args:
      epsilon: number that is added to the variance.
      momentum: share of the old value in a new running average.
      modules: regular expression of the paths of the modules; empty for all.
    """
    return Setting(modules, "epsilon", epsilon), Setting(modules, MOMENTUM, momentum)


@dataclasses.dataclass(frozen=True)
class Source:
    """How one codebase names, stores and sets up the layers of a network.

    Attributes:
      peer: library whose layouts of weights the codebase uses, such as ``Spconv()``.
      rename: function from the path of a layer in voxax to its name in the codebase.
      unused: names of tensors in the codebase's files that the voxax network does not need.
      settings: attributes of modules that files of weights lack, and that may differ in voxax.
      refusal: the reason, if the weights cannot be loaded because the codebase's network
        computes something else with the same names; else empty.
    """

    peer: Peer
    rename: Callable[[str], str]
    unused: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    refusal: str = ""

    def places(self, model: nnx.Module) -> dict[str, tuple[Any, Setting]]:
        """Return the module attributes of ``model`` that ``settings`` describe, by path.

        Returns:
          A dict from the path of each attribute to its ``(module, setting)``.
        """
        found = {}
        for path, module in nnx.iter_modules(model):
            name = ".".join(map(str, path))
            for setting in self.settings:
                if hasattr(module, setting.name) and re.search(setting.modules, name):
                    found[f"{name}.{setting.name}"] = module, setting
        return found

    def set_up(self, model: nnx.Module) -> None:
        """Set the attributes in ``settings`` on the modules of ``model`` that have them."""
        for module, setting in self.places(model).values():
            setattr(module, setting.name, setting.value)


@runtime_checkable
class Released(Protocol):
    """Interface of networks whose weights other codebases publish: the method ``sources``."""

    def sources(self) -> Mapping[str, Source]:
        """Return a dict from the name of each codebase to how it stores this network's weights.

        :func:`weights_of` takes the first codebase by default.
        """
        ...


def renaming(*rules: tuple[str, str | Callable[[re.Match[str]], str]]) -> Callable[[str], str]:
    """Return a function that renames text by ``re.sub`` with each of ``rules``, in order.

    A rule is ``(pattern, replacement)``.
    """

    def rename(path: str) -> str:
        for pattern, replacement in rules:
            path = re.sub(pattern, replacement, path)
        return path

    return rename


def by_part(**parts: tuple[str, Callable[[str], str]]) -> Callable[[str], str]:
    """Return a function from a layer's path to its name, with different rules for each submodule.

    Args:
      parts: by attribute of the network that holds a submodule: the submodule's name in the
        codebase, and the function that renames paths inside the submodule.
    """

    def rename(path: str) -> str:
        part, _, rest = path.partition(".")
        name, inside = parts[part]
        return f"{name}.{inside(rest)}"

    return rename


def torch_pointcloud_sources(
    peer: Peer, rename: Callable[[str], str], norms: str = ""
) -> dict[str, Source]:
    """Return two :class:`Source` objects of the codebase torch-pointcloud, by name.

    ``torch-pointcloud`` sets the batch norms' epsilon and momentum as in PyTorch, and
    ``torch-pointcloud-released`` as in its released weights.

    Args:
      peer, rename: as in :class:`Source`.
      norms: regular expression of the paths of the batch norms that take these settings; empty for
        all.
    """
    both = {"torch-pointcloud": TORCH, "torch-pointcloud-released": REFERENCE}
    return {n: Source(peer, rename, settings=norm_settings(*v, norms)) for n, v in both.items()}


def load_weights(
    model: nnx.Module,
    path: Location,
    *,
    source: str | None = None,
    key: str | None = None,
    set_up: bool = True,
) -> str:
    """Load all weights of ``model`` from a file; return the name of the codebase that wrote it.

    The model changes only if all names and shapes match. The arrays of the model take the dtypes of
    the file, and its modules take the :class:`Setting` values of the codebase, such as epsilon.

    Args:
      model: a network of :mod:`voxax.models` with published weights; changed in place.
      path: as in :func:`read_checkpoint`.
      source: name of the codebase that wrote the file. None finds the codebase by the names in the
        file, and warns if several codebases have these names and different settings.
      key: entry of the file that is the state dict; None looks for the usual entries.
      set_up: whether the modules take the settings of the codebase.

    Raises:
      InputError: the file is of another network or has other sizes (the message lists tensors that
        are missing, unexpected or of another shape); the model has no published weights; or
        ``source`` is unknown or has a ``refusal``.
      FileFormatError, FileNotFoundError, MissingExtraError: as in :func:`read_checkpoint`.
    """
    found = _found(model, path, source, key)
    try:
        check_names(found.named, model, found.form.peer, found.rename)
        load(found.named, model, found.form.peer, found.rename)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if set_up:
        found.set_up(model, path)
    return found.source


def load_weights_part(
    model: nnx.Module,
    path: Location,
    *,
    source: str | None = None,
    key: str | None = None,
) -> tuple[str, PartReport]:
    """Load those layers of ``model`` that a file has in the right shapes; change no other layer.

    Arguments and errors are as in :func:`load_weights`, except that missing, unexpected or
    misshapen tensors raise InputError only if no layer can be loaded. The modules always take the
    settings of the codebase.

    Returns:
      The name of the codebase that wrote the file, and a report of the layers that were loaded.
    """
    found = _found(model, path, source, key)
    report = load_part(found.named, model, found.form.peer, found.rename)
    if not report.taken:
        raise InputError(f"{path}: no layer fits: {listed(report.kept)}")
    found.set_up(model, path)
    return found.source, report


@dataclasses.dataclass(frozen=True)
class _Found:
    """The state dict of a file, and the codebase whose names and layouts it has.

    ``source`` is the codebase's name, ``form`` its :class:`Source`, ``named`` the state dict
    without unused tensors, and ``prefix`` the prefix that the file adds to all names. ``doubt``
    is the reason why another codebase may have written the file, or "".
    """

    source: str
    form: Source
    named: Mapping[str, np.ndarray]
    prefix: str
    doubt: str

    def rename(self, layer: str) -> str:
        return self.prefix + self.form.rename(layer)

    def set_up(self, model: nnx.Module, path: Location) -> None:
        """Apply the codebase's settings to ``model``; warn if the codebase was not certain."""
        self.form.set_up(model)
        if self.doubt:
            warnings.warn(
                f"{path} is taken for {self.source!r}. Another codebase or version has the same "
                f"names: {self.doubt}. Pass source= to decide",
                stacklevel=4,
            )


def _found(model: nnx.Module, path: Location, source: str | None, key: str | None) -> _Found:
    state = read_checkpoint(path, ENTRIES if key is None else key)
    sources = _sources_of(model)
    if source is not None:
        check_known("source", source, tuple(sources))
        sources = {source: sources[source]}
        if refusal := sources[source].refusal:
            raise InputError(f"{path}: {source!r} {refusal}")
    fits = {name: _prefix(state, model, form) for name, form in sources.items()}
    best = max(fits, key=lambda name: (fits[name][0], not sources[name].refusal))
    number, prefix = fits[best]
    if not number:
        forms: dict[int, str] = {}  # several sources may have the same names
        for name, form in sources.items():
            forms.setdefault(id(form.rename), name)
        raise InputError(
            f"{path} has no name of a {type(model).__name__} of {' or '.join(forms.values())}, but "
            f"{len(state)} others: {listed(state)}. Is it another network's? "
            "voxax.interop.from_spconv and its like take names= of your own"
        )
    form = sources[best]
    equal = {name: sources[name] for name in fits if fits[name] == fits[best]}
    unused = {prefix + name for name in form.unused}
    named = {name: value for name, value in state.items() if name not in unused}
    found = _Found(best, form, named, prefix, _doubt(model, best, equal))
    # Earlier versions of a library have other layouts.
    peer = fitting_peer(named, model, form.peer, found.rename)
    return dataclasses.replace(found, form=dataclasses.replace(form, peer=peer))


def _doubt(model: nnx.Module, chosen: str, equal: Mapping[str, Source]) -> str:
    """Return, as text, why a file may be from another codebase than ``chosen``, or ``""``.

    ``equal`` has the codebases that match the names in the file. The text is the ``refusal`` of one
    of them, or the first setting whose value differs from that of ``chosen``, except momentum.
    """
    own = equal[chosen].places(model)
    for name, form in equal.items():
        if form.refusal:
            return f"{name!r} {form.refusal}"
        other = form.places(model)
        for place in sorted(own.keys() & other.keys()):
            ours, theirs = own[place][1], other[place][1]
            if ours.name != MOMENTUM and ours.value != theirs.value:
                return f"{ours.name} is {ours.value}, and {theirs.value} in {name!r}"
    return ""


def weights_of(model: nnx.Module, source: str | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of ``model`` with the names and layouts of a codebase.

    Args:
      model: a network of :mod:`voxax.models` with published weights.
      source: name of the codebase; None takes the first codebase of the network.

    Returns:
      A dict from the names to NumPy arrays in the shapes of the codebase.

    Raises:
      InputError: the model has no published weights, or ``source`` is unknown or has a ``refusal``.
    """
    name, form = _source_of(model, source)
    if form.refusal:
        raise InputError(f"{name!r} {form.refusal}")
    return dump(model, form.peer, form.rename, None)


def set_up(model: nnx.Module, source: str) -> None:
    """Set attributes of the modules of ``model``, such as epsilon, to the values in a codebase.

    ``source`` is the name of the codebase.

    Raises:
      InputError: the model has no published weights, or ``source`` is unknown.
    """
    _source_of(model, source)[1].set_up(model)


def check_settings(model: nnx.Module, source: str | None = None) -> None:
    """Warn if attributes of modules of ``model``, such as epsilon, differ from those in a codebase.

    Momentum is not compared, because it does not change what a network computes.

    Args:
      model: a network of :mod:`voxax.models` with published weights.
      source: name of the codebase; None takes the first codebase of the network.
    """
    name, form = _source_of(model, source)
    others = {
        place: (getattr(module, setting.name), setting.value)
        for place, (module, setting) in form.places(model).items()
        if setting.name != MOMENTUM and getattr(module, setting.name) != setting.value
    }
    if others:
        place, (ours, theirs) = next(iter(others.items()))
        warnings.warn(
            f"{place} is {ours} in this {type(model).__name__}, and {theirs} in {name!r}, as are "
            f"{len(others) - 1} other settings that no file holds: give that network ours, or it "
            "computes other numbers",
            stacklevel=3,
        )


def _source_of(model: nnx.Module, source: str | None) -> tuple[str, Source]:
    sources = _sources_of(model)
    name = next(iter(sources)) if source is None else source
    check_known("source", name, tuple(sources))
    return name, sources[name]


def _sources_of(model: nnx.Module) -> Mapping[str, Source]:
    if not isinstance(model, Released):
        raise InputError(
            f"{type(model).__name__} has no released weights: give a network of voxax.models, or "
            "use voxax.interop.from_spconv and its like, which take any model"
        )
    return model.sources()


def _prefix(state: Mapping[str, Any], model: nnx.Module, form: Source) -> tuple[int, str]:
    """Return how many tensor names of the network are in a state dict, and their common prefix.

    ``form`` is the codebase whose names are expected. Wrappers add a prefix to them, such as
    ``module.`` in data-parallel training, or ``backbone.`` in the network of a task.
    """
    expected = dump(model, form.peer, form.rename, None)
    first = next(iter(expected))
    prefixes = {name.removesuffix(first) for name in state if name.endswith(first)} | {""}

    def number(prefix: str) -> int:
        return sum(prefix + name in state for name in expected)

    best = max(sorted(prefixes, key=len), key=number)
    return number(best), best
