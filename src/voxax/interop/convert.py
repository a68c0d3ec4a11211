"""State dicts into a model and out of it, for any peer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from voxax.errors import InputError
from voxax.interop.binding import Names, bind, groups_of, peer_names
from voxax.interop.checkpoint_file import read_checkpoint
from voxax.interop.forms import Form, Peer
from voxax.interop.layers import Layer, Role, find_layers
from voxax.interop.tensors import as_numpy


def load(
    state_dict: Mapping[str, Any] | str | os.PathLike[str],
    model: nnx.Module,
    peer: Peer,
    names: Names,
) -> dict[str, str]:
    """Set the arrays of ``model``; see :func:`voxax.interop.from_spconv`."""
    if not isinstance(state_dict, Mapping):
        state_dict = read_checkpoint(state_dict)
    layers = _layers_of(model, peer)
    groups = groups_of(state_dict)
    prefixes = bind(layers, groups, peer, names)
    arrays: list[tuple[nnx.Variable, jax.Array]] = []
    for layer, prefix in zip(layers, prefixes, strict=True):
        for role, form in _choose(layer, prefix, groups[prefix], state_dict, peer).items():
            name = groups[prefix][form.member]
            tensor = as_numpy(name, state_dict[name])
            arrays.append((layer.arrays[role], _on_device(name, form.read(tensor))))
    for variable, array in arrays:
        variable.set_value(array)
    return {layer.path: prefix for layer, prefix in zip(layers, prefixes, strict=True)}


def dump(
    model: nnx.Module, peer: Peer, names: Names, like: Mapping[str, Any] | None
) -> dict[str, np.ndarray]:
    """The arrays of ``model``; see :func:`voxax.interop.to_spconv`."""
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


def _layers_of(model: nnx.Module, peer: Peer) -> list[Layer]:
    layers = find_layers(model)
    for layer in layers:
        if layer.groups > 1 and not peer.grouped:
            raise InputError(
                f"{layer.path!r} has groups={layer.groups}: {peer.name} has no grouped convolution "
                "(groups=1 only)"
            )
    return layers


def _choose(
    layer: Layer,
    prefix: str,
    members: Mapping[str, str],
    state_dict: Mapping[str, Any],
    peer: Peer,
) -> dict[Role, Form]:
    """The form in which each array of ``layer`` is stored; every member of the group is used.

    Raises:
      InputError: an array that is not stored, a tensor that no array takes, another shape.
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
    result = jnp.asarray(array)
    if result.dtype != array.dtype:
        raise InputError(
            f"{name!r} is {array.dtype}, which JAX would turn into {result.dtype}: set "
            'jax.config.update("jax_enable_x64", True), or convert the state dict first'
        )
    return result


def _on_host(layer: Layer, role: Role, form: Form) -> np.ndarray:
    # A copy: PyTorch warns about arrays that cannot be written to, as JAX's are.
    return np.array(form.write(np.asarray(layer.arrays[role][...])), order="C")
