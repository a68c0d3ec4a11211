"""How codebases name and store the layers of a published network."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from flax import nnx

from voxax.errors import InputError, check_known, listed
from voxax.interop.checkpoint_file import Location, read_checkpoint
from voxax.interop.peer import Peer
from voxax.interop.state_dict import check_names, dump, load

ENTRIES = ("state_dict", "model_state", "model_state_dict", "model")
"""Entries of PyTorch files that are the state dict: Pointcept's, OpenPCDet's, others'."""


@dataclasses.dataclass(frozen=True)
class Source:
    """One codebase's form of a network.

    Attributes:
      peer: how it stores each layer.
      rename: from the path of a layer here to its name there.
      unused: names that its files may have, for what the network here does not do.
    """

    peer: Peer
    rename: Callable[[str], str]
    unused: tuple[str, ...] = ()


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


def load_weights(
    model: nnx.Module,
    path: Location,
    *,
    source: str | None = None,
    key: str | None = None,
) -> None:
    """Set all parameters and statistics of ``model`` to those of a file.

    Nothing is changed unless everything fits. The model's arrays take the dtypes of the file.

    Args:
      model: a network with :class:`Source` forms; changed in place.
      path: as of :func:`read_checkpoint`.
      source: the codebase that wrote the file; None finds it by the names.
      key: the entry of the file that is the state dict; None looks for the usual ones.

    Raises:
      InputError: another network or other sizes: lists the names that are missing, unexpected
        and misshapen. A model without sources, an unknown source.
      FileFormatError, FileNotFoundError, MissingExtraError: as :func:`read_checkpoint`.
    """
    state = read_checkpoint(path, ENTRIES if key is None else key)
    sources = _sources_of(model)
    if source is not None:
        check_known("source", source, tuple(sources))
        sources = {source: sources[source]}
    fits = {name: _prefix(state, model, form) for name, form in sources.items()}
    best = max(fits, key=lambda name: fits[name][0])
    number, prefix = fits[best]
    if not number:
        raise InputError(
            f"{path} has no name of a {type(model).__name__} of {' or '.join(sources)}, but "
            f"{len(state)} others: {listed(state)}. Is it another network's? "
            "voxax.interop.from_spconv and its like take names= of your own"
        )
    form = sources[best]
    unused = {prefix + name for name in form.unused}
    named = {name: value for name, value in state.items() if name not in unused}

    def rename(layer: str) -> str:
        return prefix + form.rename(layer)

    try:
        check_names(named, model, form.peer, rename)
        load(named, model, form.peer, rename)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


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
    sources = _sources_of(model)
    name = next(iter(sources)) if source is None else source
    check_known("source", name, tuple(sources))
    return dump(model, sources[name].peer, sources[name].rename, None)


def _sources_of(model: nnx.Module) -> Mapping[str, Source]:
    if not isinstance(model, Released):
        raise InputError(
            f"{type(model).__name__} has no released weights: give a network of voxax.models, or "
            "use voxax.interop.from_spconv and its like, which take any model"
        )
    return model.sources()


def _prefix(state: Mapping[str, Any], model: nnx.Module, form: Source) -> tuple[int, str]:
    """Return how many names are the network's, and what precedes all of these.

    Wrappers put a prefix in front: ``module.`` of data-parallel training, ``backbone.`` of a task.
    """
    expected = dump(model, form.peer, form.rename, None)
    first = next(iter(expected))
    prefixes = {name.removesuffix(first) for name in state if name.endswith(first)} | {""}

    def number(prefix: str) -> int:
        return sum(prefix + name in state for name in expected)

    best = max(sorted(prefixes, key=len), key=number)
    return number(best), best
