"""Which tensors of a state dict belong to which layer of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from voxax.errors import InputError
from voxax.interop.forms import Peer
from voxax.interop.layers import Layer

Names = Mapping[str, str] | Callable[[str], str] | Literal["order"] | None
"""The peer's name by the path of a layer; None where both are the same."""

# Counters, which no layer here has.
_IGNORED = ("num_batches_tracked", "max_num_voxels_during_training")


def groups_of(tensors: Iterable[str]) -> dict[str, dict[str, str]]:
    """Tensor names by their last part, by what comes before it; counters left out."""
    groups: dict[str, dict[str, str]] = {}
    for tensor in tensors:
        prefix, _, member = tensor.rpartition(".")
        if member not in _IGNORED:
            groups.setdefault(prefix, {})[member] = tensor
    return groups


def peer_names(
    layers: list[Layer], names: Mapping[str, str] | Callable[[str], str] | None
) -> list[str]:
    """The peer's name of each layer.

    Raises:
      InputError: an entry of ``names`` for no layer, or one name for two layers.
    """
    if names is None:
        result = [layer.path for layer in layers]
    elif callable(names):
        result = [names(layer.path) for layer in layers]
    else:
        used: set[str] = set()
        result = [_renamed(layer.path, names, used) for layer in layers]
        if unused := sorted(set(names) - used):
            raise InputError(
                f"names has {unused[0]!r}, which is no layer of the model and contains none; "
                f"known layers: {_listed([layer.path for layer in layers])}"
            )
    if len(set(result)) != len(result):
        twice = next(name for i, name in enumerate(result) if name in result[:i])
        paths = [layer.path for layer, name in zip(layers, result, strict=True) if name == twice]
        raise InputError(f"layers {_listed(paths)} are all named {twice!r}: each needs its own")
    return result


def bind(
    layers: list[Layer], groups: Mapping[str, Mapping[str, str]], peer: Peer, names: Names
) -> list[str]:
    """The prefix in ``groups`` of each layer; every group is used once.

    Raises:
      InputError: as :func:`peer_names`; a layer without a group, a group without a layer.
    """
    if isinstance(names, str):
        if names != "order":
            raise InputError(f'names={names!r} must be None, a dict, a function, or "order"')
        prefixes = _in_order(layers, groups, peer)
    else:
        wanted = peer_names(layers, names)
        prefixes = [_prefix(*pair, groups, peer) for pair in zip(layers, wanted, strict=True)]
    if left := [prefix for prefix in groups if prefix not in set(prefixes)]:
        raise InputError(
            f"no layer of the model takes {_listed(left)} of the {peer.name} state dict: give "
            "names= for the layers that should, or remove them from the dict"
        )
    return prefixes


def _renamed(path: str, names: Mapping[str, str], used: set[str]) -> str:
    """``path`` with its longest part that ``names`` has replaced."""
    parts = path.split(".")
    for length in range(len(parts), -1, -1):
        head = ".".join(parts[:length])
        if head in names:
            used.add(head)
            return ".".join([*filter(None, [names[head]]), *parts[length:]])
    return path


def _prefix(layer: Layer, name: str, groups: Mapping[str, Mapping[str, str]], peer: Peer) -> str:
    for prefix in (name, *(f"{name}.{wrapper}" for wrapper in peer.wrappers)):
        if prefix in groups:
            return prefix
    raise InputError(
        f"layer {layer} has no tensors {name}.* in the {peer.name} state dict, which has "
        f'{_listed(groups)}: give names={{"{layer.path}": ...}}, or names="order" where both '
        "define their layers in the same order"
    )


def _in_order(
    layers: list[Layer], groups: Mapping[str, Mapping[str, str]], peer: Peer
) -> list[str]:
    if merged := [layer.path for layer in layers if not layer.in_order]:
        raise InputError(
            f'names="order" needs the model as its constructor left it: the attributes of '
            f"{merged[0]!r} are sorted by name, as nnx.merge, nnx.clone, nnx.jit and "
            "jax.tree.map leave them. Convert first, or give names="
        )
    if len(layers) != len(groups):
        raise InputError(
            f"the model has {len(layers)} layers, the {peer.name} state dict {len(groups)}: with "
            f'names="order" they must be as many. Model: {_listed([x.path for x in layers], 60)}. '
            f"State dict: {_listed(groups, 60)}"
        )
    return list(groups)


def _listed(items: Iterable[str], most: int = 6) -> str:
    shown = [repr(item) for item in items]
    more = f", and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more
