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

    @property
    def grouped(self) -> bool:
        """Whether this library has grouped convolutions."""
        ...

    def wrapper_of(self, layer: Layer) -> str:
        """The inner module that holds this layer's tensors, or the empty string."""
        ...

    def forms(self, layer: Layer) -> dict[Role, list[Form]]:
        """The ways to store each array of a layer; the first is the one to write unless told.

        Raises:
          InputError: the peer has no such layer.
        """
        ...


def reshaped(member: str, shape: tuple[int, ...], own: tuple[int, ...]) -> Form:
    """The same numbers in the same order."""
    return Form(member, shape, lambda x: x.reshape(own), lambda x: x.reshape(shape))


def linear_form(own: tuple[int, ...]) -> Form:
    """PyTorch's linear layer: ``[out, in]`` for our ``[in, out]`` or ``[1, in, out]``."""
    matrix = own[-2:]
    return Form(
        "weight",
        matrix[::-1],
        lambda x: x.transpose().reshape(own),
        lambda x: x.reshape(matrix).transpose(),
    )


def vector_forms(layer: Layer, role: Role, *, as_row: bool = False) -> list[Form]:
    """One number for each channel: ``[C]`` or ``[1, C]``; ``as_row`` puts the latter first."""
    own = layer.shape(role)
    shapes = [own, (1, *own)]
    return [reshaped(_MEMBERS[role], shape, own) for shape in shapes[:: -1 if as_row else 1]]


_MEMBERS: dict[Role, str] = {
    "weight": "weight",
    "bias": "bias",
    "mean": "running_mean",
    "var": "running_var",
}
