"""How a peer stores one array of a layer: under which name, in which shape, in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

import numpy as np

from voxax.interop.layers import Layer, Role


@dataclasses.dataclass(frozen=True)
class Form:
    """One way to store an array.

    Attributes:
      member: the last part of the tensor's name.
      shape: of the peer's tensor.
      read: from the peer's tensor to this library's array.
      write: the inverse.
    """

    member: str
    shape: tuple[int, ...]
    read: Callable[[np.ndarray], np.ndarray]
    write: Callable[[np.ndarray], np.ndarray]


class Peer(Protocol):
    """What a library's state dicts look like."""

    @property
    def name(self) -> str: ...

    @property
    def wrappers(self) -> tuple[str, ...]:
        """Names of inner modules in which this library keeps PyTorch's own layers."""
        ...

    def wrapper_of(self, layer: Layer) -> str:
        """The inner module that holds this layer's tensors, or the empty string."""
        ...

    def weight_forms(self, layer: Layer) -> list[Form]:
        """The ways to store a layer's weight; the first is the one to write unless told.

        Raises:
          InputError: the peer has no such layer.
        """
        ...


def reshaped(member: str, shape: tuple[int, ...], own: tuple[int, ...]) -> Form:
    """The same numbers in the same order."""
    return Form(member, shape, lambda x: x.reshape(own), lambda x: x.reshape(shape))


def forms_of(peer: Peer, layer: Layer) -> dict[Role, list[Form]]:
    """The ways in which ``peer`` may store each array of ``layer``; the one to write is first."""
    return {
        role: peer.weight_forms(layer)
        if role == "weight" and layer.kind != "norm"
        else _vector_forms(layer, role)
        for role in layer.arrays
    }


def matrix_form(shape: tuple[int, int]) -> Form:
    """PyTorch's linear layer: ``[out, in]`` for our ``[in, out]``."""
    return Form("weight", shape[::-1], np.transpose, np.transpose)


_MEMBERS: dict[Role, str] = {
    "weight": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}


def _vector_forms(layer: Layer, role: Role) -> list[Form]:
    """One number for each channel: ``[C]``, or ``[1, C]`` as MinkowskiEngine's biases."""
    own = layer.shape(role)
    return [reshaped(_MEMBERS[role], shape, own) for shape in (own, (1, *own))]
