"""How codebases name and store the layers of a published network."""

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
"""Entries of PyTorch files that are the state dict: Pointcept's, OpenPCDet's, others'."""
REFERENCE = 1e-3, 0.99
"""Epsilon and momentum of batch norms in OpenPCDet, Pointcept, and what is released of these."""
TORCH = 1e-5, 0.9
"""PyTorch's defaults, in our terms."""
MOMENTUM = "momentum"
"""The only setting that does not change what a network computes from its weights."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What a file of weights does not hold: an attribute that modules have in a codebase.

    Attributes:
      modules: regular expression, searched in the paths of modules.
      name: name of the attribute; modules without it are left out.
      value: what it is there.
    """

    modules: str
    name: str
    value: Any


def norm_settings(epsilon: float, momentum: float, modules: str = "") -> tuple[Setting, ...]:
    """Return the settings of batch normalizations; ``momentum`` is of the running statistics."""
    return Setting(modules, "epsilon", epsilon), Setting(modules, MOMENTUM, momentum)


@dataclasses.dataclass(frozen=True)
class Source:
    """One codebase's form of a network.

    Attributes:
      peer: how it stores each layer.
      rename: from the path of a layer here to its name there.
      unused: names that its files may have, for what the network here does not do.
      settings: what the codebase has beside the weights, where it may differ from a network here.
      refusal: why its weights cannot be loaded, where its network computes something else with
        the same names.
    """

    peer: Peer
    rename: Callable[[str], str]
    unused: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    refusal: str = ""

    def places(self, model: nnx.Module) -> dict[str, tuple[Any, Setting]]:
        """Return the modules of a model that have settings here, by the attributes' paths."""
        found = {}
        for path, module in nnx.iter_modules(model):
            name = ".".join(map(str, path))
            for setting in self.settings:
                if hasattr(module, setting.name) and re.search(setting.modules, name):
                    found[f"{name}.{setting.name}"] = module, setting
        return found

    def set_up(self, model: nnx.Module) -> None:
        """Give the modules of a model the codebase's settings."""
        for module, setting in self.places(model).values():
            setattr(module, setting.name, setting.value)


@runtime_checkable
class Released(Protocol):
    """A network of which codebases have weights."""

    def sources(self) -> Mapping[str, Source]:
        """Return the forms by the name of the codebase; the first is written by default."""
        ...


def renaming(*rules: tuple[str, str | Callable[[re.Match[str]], str]]) -> Callable[[str], str]:
    """Return a function that replaces regular expressions in a name, one after the other."""

    def rename(path: str) -> str:
        for pattern, replacement in rules:
            path = re.sub(pattern, replacement, path)
        return path

    return rename


def by_part(**parts: tuple[str, Callable[[str], str]]) -> Callable[[str], str]:
    """Return a function that renames the layers of each part of a network by its own rules.

    Args:
      parts: by the attribute that holds the part, its name there, and what renames the paths in it.
    """

    def rename(path: str) -> str:
        part, _, rest = path.partition(".")
        name, inside = parts[part]
        return f"{name}.{inside(rest)}"

    return rename


def torch_pointcloud_sources(
    peer: Peer, rename: Callable[[str], str], norms: str = ""
) -> dict[str, Source]:
    """Return torch-pointcloud's two forms: its classes' defaults, and the weights that it releases.

    Args:
      peer, rename: as of :class:`Source`.
      norms: regular expression of the modules whose batch norms differ.
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
    """Set all parameters and statistics of ``model`` to those of a file; return the source.

    Nothing is changed unless everything fits. The model's arrays take the dtypes of the file, and
    its modules the :class:`Setting` values of the source.

    Args:
      model: a network with :class:`Source` forms; changed in place.
      path: as of :func:`read_checkpoint`.
      source: the codebase that wrote the file; None finds it by the names, and warns where several
        have these names and other settings.
      key: the entry of the file that is the state dict; None looks for the usual ones.
      set_up: whether the modules take the settings of the source.

    Raises:
      InputError: another network or other sizes: lists the names that are missing, unexpected
        and misshapen. A model without sources, an unknown source.
      FileFormatError, FileNotFoundError, MissingExtraError: as :func:`read_checkpoint`.
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
    """Set the layers of ``model`` that a file has in their shapes; return the source and a report.

    Arguments and errors are those of :func:`load_weights`; a file without any such layer is one.
    """
    found = _found(model, path, source, key)
    report = load_part(found.named, model, found.form.peer, found.rename)
    if not report.taken:
        raise InputError(f"{path}: no layer fits: {listed(report.kept)}")
    found.set_up(model, path)
    return found.source, report


@dataclasses.dataclass(frozen=True)
class _Found:
    """A file's state dict, and the form in which it has the layers of a model."""

    source: str
    form: Source
    named: Mapping[str, np.ndarray]
    prefix: str
    doubt: str

    def rename(self, layer: str) -> str:
        return self.prefix + self.form.rename(layer)

    def set_up(self, model: nnx.Module, path: Location) -> None:
        """Give the model the settings of the source; warn where it may be another."""
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
    """Return how sources with the same names differ from the chosen one; empty if they do not."""
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
    """Return the arrays of ``model`` by the names, and in the layouts, of a codebase.

    Args:
      model: a network with :class:`Source` forms.
      source: the codebase; None takes the network's first.

    Returns:
      NumPy arrays of the shapes that the codebase has.

    Raises:
      InputError: a model without sources, an unknown source.
    """
    name, form = _source_of(model, source)
    if form.refusal:
        raise InputError(f"{name!r} {form.refusal}")
    return dump(model, form.peer, form.rename, None)


def set_up(model: nnx.Module, source: str) -> None:
    """Set what a codebase has beside the weights in a network, see :class:`Setting`.

    Raises:
      InputError: a model without sources, an unknown source.
    """
    _source_of(model, source)[1].set_up(model)


def check_settings(model: nnx.Module, source: str | None = None) -> None:
    """Warn where modules of ``model`` have other settings than a codebase.

    Args:
      model: a network with :class:`Source` forms.
      source: the codebase; None takes the network's first.
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
    """Return how many names belong to the network, and their common prefix.

    Wrappers put a prefix in front: ``module.`` of data-parallel training, ``backbone.`` of a task.
    """
    expected = dump(model, form.peer, form.rename, None)
    first = next(iter(expected))
    prefixes = {name.removesuffix(first) for name in state if name.endswith(first)} | {""}

    def number(prefix: str) -> int:
        return sum(prefix + name in state for name in expected)

    best = max(sorted(prefixes, key=len), key=number)
    return number(best), best
