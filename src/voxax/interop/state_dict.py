"""Load state dicts of other libraries ("peers") into a model, and write a model as a state dict."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax.errors import InputError, listed
from voxax.interop.checkpoint_file import as_numpy, read_checkpoint
from voxax.interop.peer import Form, LayerWeights, Peer, Role, find_layers

StateDict = Mapping[str, Any] | str | os.PathLike[str]
"""Tensors by name, or the path of a file that holds them."""
Names = Mapping[str, str] | Callable[[str], str] | Literal["order"] | None
"""The peer's name for the path of each layer; None if both are the same."""

# Counters of PyTorch (batch norms, averaged models), spconv and OpenPCDet. No layer of voxax has
# such counters.
COUNTERS = ("num_batches_tracked", "n_averaged", "max_num_voxels_during_training", "global_step")


def groups_of(tensors: Iterable[str]) -> dict[str, dict[str, str]]:
    """Group the names of tensors by layer: by the part of a name before its last dot.

    Names that end in one of :data:`COUNTERS`, such as ``num_batches_tracked``, are left out.

    Returns:
      A dict from each prefix to a dict from the last part of a name to the full name.
    """
    groups: dict[str, dict[str, str]] = {}
    for tensor in tensors:
        prefix, _, member = tensor.rpartition(".")
        if member not in COUNTERS:
            groups.setdefault(prefix, {})[member] = tensor
    return groups


def peer_names(
    layers: list[LayerWeights], names: Mapping[str, str] | Callable[[str], str] | None
) -> list[str]:
    """Return the name in the peer of each of ``layers``; ``names`` is as in :func:`from_spconv`.

    Raises:
      InputError: an entry of ``names`` is the path of no layer and of no module with layers, or two
        layers have the same name.
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
                f"known layers: {listed([layer.path for layer in layers])}"
            )
    if len(set(result)) != len(result):
        twice = next(name for i, name in enumerate(result) if name in result[:i])
        paths = [layer.path for layer, name in zip(layers, result, strict=True) if name == twice]
        raise InputError(f"layers {listed(paths)} are all named {twice!r}: each needs its own")
    return result


def bind(
    layers: list[LayerWeights], groups: Mapping[str, Mapping[str, str]], peer: Peer, names: Names
) -> list[str]:
    """Find the tensors of each layer: return, for each of ``layers``, its key in ``groups``.

    ``groups`` is the result of :func:`groups_of` for a state dict. A key is the part that the
    names of a layer's tensors have in common, before the last dot. ``names`` is as in
    :func:`from_spconv`.

    Raises:
      InputError: as in :func:`peer_names`; or a layer has no key, or a key has no layer.
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
            f"no layer of the model takes {listed(left)} of the {peer.name} state dict: give "
            "names= for the layers that should, or remove them from the dict"
        )
    return prefixes


def _renamed(path: str, names: Mapping[str, str], used: set[str]) -> str:
    """Return ``path`` with its longest prefix in ``names`` replaced, or ``path`` if there is none.

    Prefixes end at a dot or at the end of ``path``. ``names`` has the replacement of each prefix.
    The prefix that was replaced is added to ``used``.
    """
    parts = path.split(".")
    for length in range(len(parts), -1, -1):
        head = ".".join(parts[:length])
        if head in names:
            used.add(head)
            return ".".join([*filter(None, [names[head]]), *parts[length:]])
    return path


def _prefix(
    layer: LayerWeights, name: str, groups: Mapping[str, Mapping[str, str]], peer: Peer
) -> str:
    for prefix in (name, *(f"{name}.{wrapper}" for wrapper in peer.wrappers.values())):
        if prefix in groups:
            return prefix
    raise InputError(
        f"layer {layer} has no tensors {name}.* in the {peer.name} state dict, which has "
        f'{listed(groups)}: give names={{"{layer.path}": ...}}, or names="order" where both '
        "define their layers in the same order"
    )


def _in_order(
    layers: list[LayerWeights], groups: Mapping[str, Mapping[str, str]], peer: Peer
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
            f'names="order" they must be as many. Model: {listed([x.path for x in layers], 60)}. '
            f"State dict: {listed(groups, 60)}"
        )
    return list(groups)


def load(state_dict: StateDict, model: nnx.Module, peer: Peer, names: Names) -> dict[str, str]:
    """Load a state dict of the library that ``peer`` describes into ``model``.

    The other arguments and the result are as in :func:`from_spconv`.
    """
    if isinstance(state_dict, str | os.PathLike):
        state_dict = read_checkpoint(state_dict)
    elif not isinstance(state_dict, Mapping):
        raise InputError(
            f"a state dict of {type(state_dict).__name__}: expected a dict of tensors by name, or "
            "the path of a file. For a PyTorch module, pass module.state_dict()"
        )
    layers = _layers_of(model, peer)
    groups = groups_of(state_dict)
    prefixes = bind(layers, groups, peer, names)
    arrays = []
    for layer, prefix in zip(layers, prefixes, strict=True):
        chosen = _choose(layer, prefix, groups[prefix], state_dict, peer)
        arrays += _read(layer, chosen, groups[prefix], state_dict, peer)
    for variable, array in arrays:
        variable.set_value(array)
    return {layer.path: prefix for layer, prefix in zip(layers, prefixes, strict=True)}


@dataclasses.dataclass(frozen=True)
class PartReport:
    """Report of :func:`load_part`: which layers were loaded.

    Attributes:
      taken: number of layers that were loaded.
      kept: one text for each layer that was not loaded: the layer's path, and what the file has in
        place of its tensors.
      left: names of the file's tensors that were loaded into no layer.
    """

    taken: int
    kept: tuple[str, ...]
    left: tuple[str, ...]


def load_part(
    state_dict: Mapping[str, Any], model: nnx.Module, peer: Peer, names: Callable[[str], str]
) -> PartReport:
    """Load the layers of ``model`` whose tensors all exist in the right shapes; return a report.

    A layer for which ``state_dict`` has further tensors, such as a bias that the layer lacks, is
    not loaded. Layers that are not loaded do not change. ``names`` is a function from a layer's
    path in ``model`` to its name in ``state_dict``.
    """
    layers = _layers_of(model, peer)
    groups = groups_of(state_dict)
    arrays, kept, used = [], [], set()
    for layer, name in zip(layers, peer_names(layers, names), strict=True):
        prefixes = (name, *(f"{name}.{wrapper}" for wrapper in peer.wrappers.values()))
        prefix = next((p for p in prefixes if p in groups), None)
        if prefix is None:
            kept.append(f"{layer.path} (no {name})")
            continue
        try:
            chosen = _choose(layer, prefix, groups[prefix], state_dict, peer)
        except InputError:
            shapes = {m: list(np.shape(state_dict[t])) for m, t in groups[prefix].items()}
            has = ", ".join(f"{member} {shape}" for member, shape in shapes.items())
            kept.append(f"{layer} ({prefix} has {has})")
            continue
        arrays += _read(layer, chosen, groups[prefix], state_dict, peer)
        used.add(prefix)
    for variable, array in arrays:
        variable.set_value(array)
    left = [t for prefix, members in groups.items() if prefix not in used for t in members.values()]
    return PartReport(len(used), tuple(kept), tuple(left))


def _read(
    layer: LayerWeights,
    chosen: Mapping[Role, Form],
    members: Mapping[str, str],
    state_dict: Mapping[str, Any],
    peer: Peer,
) -> list[tuple[nnx.Variable, jax.Array]]:
    """Return the variables of a layer, each with its new value from the state dict.

    ``chosen`` is the result of :func:`_choose` for the layer, and ``members`` is as there.
    """
    arrays = []
    for role, form in chosen.items():
        name = members[form.member]
        tensor = as_numpy(name, state_dict[name])
        if not jnp.issubdtype(tensor.dtype, jnp.floating):
            raise InputError(
                f"{name!r} of the {peer.name} state dict is {tensor.dtype}: weights are real "
                "floating-point numbers. Convert it first, or take the file that has them"
            )
        arrays.append((layer.arrays[role], _on_device(name, form.read(tensor))))
    return arrays


def dump(
    model: nnx.Module, peer: Peer, names: Names, like: Mapping[str, Any] | None
) -> dict[str, np.ndarray]:
    """Return the arrays of ``model`` as a state dict of the library that ``peer`` describes.

    The other arguments are as in :func:`to_spconv`.
    """
    layers = _layers_of(model, peer)
    written: dict[str, np.ndarray] = {}
    if like is None:
        if isinstance(names, str):
            raise InputError(f"names={names!r} has no names to write: give like=peer.state_dict()")
        for layer, name in zip(layers, peer_names(layers, names), strict=True):
            prefix = ".".join(filter(None, [name, peer.wrapper_of(layer)]))
            for role, (form, *_) in peer.forms(layer).items():
                tensor = ".".join(filter(None, [prefix, form.member]))
                written[tensor] = _on_host(layer, role, form)
        return written
    groups = groups_of(like)
    for layer, prefix in zip(layers, bind(layers, groups, peer, names), strict=True):
        for role, form in _choose(layer, prefix, groups[prefix], like, peer).items():
            written[groups[prefix][form.member]] = _on_host(layer, role, form)
    return {name: written[name] for name in like if name in written}


def check_names(
    state_dict: Mapping[str, Any], model: nnx.Module, peer: Peer, names: Callable[[str], str]
) -> None:
    """Raise InputError unless a state dict has exactly the tensors that ``model`` needs.

    Counters such as ``num_batches_tracked`` are ignored. ``names`` is a function from a layer's
    path in ``model`` to its name in ``state_dict``.

    Raises:
      InputError: the message lists tensors that are missing, that no layer takes, or that have
        another shape.
    """
    layers = _layers_of(model, peer)
    given = {name: np.shape(value) for name, value in state_dict.items()}
    taken: set[str] = set()
    missing, misshapen = [], []
    for layer, name in zip(layers, peer_names(layers, names), strict=True):
        prefixes = [name, *(f"{name}.{wrapper}" for wrapper in peer.wrappers.values())]
        for forms in peer.forms(layer).values():
            shapes: dict[str, list[tuple[int, ...]]] = {}
            for prefix, form in itertools.product(prefixes, forms):
                shapes.setdefault(f"{prefix}.{form.member}", []).append(form.shape)
            found = next((tensor for tensor in shapes if tensor in given), None)
            if found is None:
                missing.append(next(iter(shapes)))
                continue
            taken.add(found)
            if given[found] not in shapes[found]:
                known = " or ".join(map(str, map(list, shapes[found][:2])))
                misshapen.append(f"{found} is {list(given[found])} and not {known}")
    unexpected = [
        name for name in given if name not in taken and name.rpartition(".")[2] not in COUNTERS
    ]
    if missing or unexpected or misshapen:
        parts = [
            f"{len(found)} {what}: {listed(found)}"
            for what, found in (
                ("missing", missing),
                ("unexpected", unexpected),
                ("of another shape", misshapen),
            )
            if found
        ]
        raise InputError(
            f"the {peer.name} state dict is not that of this {type(model).__name__}. "
            f"{'. '.join(parts)}. Build the model with the sizes of the file (in_channels=, "
            "num_classes=, ...), or take the network that it belongs to"
        )


def fitting_peer(
    state_dict: Mapping[str, Any], model: nnx.Module, peer: Peer, names: Callable[[str], str]
) -> Peer:
    """Return the version of a library whose layout matches the most weights in ``state_dict``.

    The versions are ``peer`` and ``peer.others()``. If several match equally many, the first is
    returned. A weight matches if it has the name and a shape that the version gives to a layer's
    weight. ``names`` is a function from a layer's path in ``model`` to its name in ``state_dict``.
    """
    layers = find_layers(model)
    wanted = peer_names(layers, names)
    given = {name: np.shape(value) for name, value in state_dict.items()}

    def number(version: Peer) -> int:
        return sum(
            given.get(f"{name}.{form.member}") == form.shape
            for layer, name in zip(layers, wanted, strict=True)
            for form in version.forms(layer).get("weight", ())
        )

    return max((peer, *peer.others()), key=number)  # the first of several equals


def _layers_of(model: nnx.Module, peer: Peer) -> list[LayerWeights]:
    layers = find_layers(model)
    for layer in layers:
        if layer.groups > 1 and not peer.grouped:
            raise InputError(
                f"{layer.path!r} has groups={layer.groups}: {peer.name} has no grouped convolution "
                "(groups=1 only)"
            )
    return layers


def _choose(
    layer: LayerWeights,
    prefix: str,
    members: Mapping[str, str],
    state_dict: Mapping[str, Any],
    peer: Peer,
) -> dict[Role, Form]:
    """Return the form in which a state dict stores each array of ``layer``, by role.

    ``members`` is a dict from the last part of a tensor's name to its full name, for the tensors
    whose names begin with ``prefix``.

    Raises:
      InputError: an array of the layer has no tensor, a tensor belongs to no array of the layer, or
        a shape differs.
    """
    chosen: dict[Role, Form] = {}
    for role, forms in peer.forms(layer).items():
        known = [form for form in forms if form.member in members]
        if not known:
            raise InputError(
                f"layer {layer} needs {' or '.join(dict.fromkeys(f.member for f in forms))}, and "
                f"{prefix!r} of the {peer.name} state dict has {', '.join(members)}"
            )
        shapes = {f.member: tuple(np.shape(state_dict[members[f.member]])) for f in known}
        form = next((f for f in known if f.shape == shapes[f.member]), None)
        if form is None:
            member, shape = next(iter(shapes.items()))
            wanted = " or ".join(map(str, dict.fromkeys(f.shape for f in known)))
            raise InputError(
                f"{members[member]!r} of the {peer.name} state dict has shape {shape}; layer "
                f"{layer} takes {wanted}. Build the model with the same sizes, or give names= if "
                "it belongs to another layer"
            )
        chosen[role] = form
    if left := set(members) - {form.member for form in chosen.values()}:
        raise InputError(
            f"layer {layer} has no place for {members[min(left)]!r} of the {peer.name} state "
            "dict: build the layer with it (use_bias=True for a bias), or remove it from the dict"
        )
    return chosen


def _on_device(name: str, array: np.ndarray) -> jax.Array:
    result = jnp.array(array)
    if result.dtype != array.dtype:
        raise InputError(
            f"{name!r} is {array.dtype}, which JAX would turn into {result.dtype}: set "
            'jax.config.update("jax_enable_x64", True), or convert the state dict first'
        )
    return result


def _on_host(layer: LayerWeights, role: Role, form: Form) -> np.ndarray:
    # A copy, because PyTorch warns about read-only arrays such as those of JAX.
    return np.array(form.write(np.asarray(layer.arrays[role][...])), order="C")
