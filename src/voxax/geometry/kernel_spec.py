"""KernelSpec: the static description of a convolution's spatial relation."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence

import numpy as np

from voxax.coords import box_offsets, is_point_symmetric
from voxax.errors import InputError


def per_axis(value: int | Sequence[int], ndim: int, name: str) -> tuple[int, ...]:
    """Broadcast an int, or check a sequence, to ``ndim`` positive integers."""
    try:
        values = (operator.index(value),) * ndim  # type: ignore[arg-type]
    except TypeError:
        values = tuple(operator.index(v) for v in value)  # type: ignore[union-attr]
    if len(values) != ndim:
        raise InputError(f"{name}={values} has {len(values)} entries for {ndim} spatial axes")
    if any(v < 1 for v in values):
        raise InputError(f"{name}={values} must be at least 1 along every axis")
    return values


@dataclasses.dataclass(frozen=True)
class KernelSpec:
    """Hashable and static: which output sites see which input sites, through which tap.

    ``weight[k]`` multiplies the input at ``out * stride + offsets[k] * dilation``
    (cross-correlation). With ``transposed`` the same relation is read backwards.

    Attributes:
      offsets: K tuples of D integers, lexicographic, last axis fastest.
      stride: D integers >= 1.
      dilation: D integers >= 1.
      transposed: inputs are the coarse side, outputs the fine one.
      generative: outputs are every site that a tap reaches.
    """

    offsets: tuple[tuple[int, ...], ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool = False
    generative: bool = False

    @classmethod
    def make(
        cls,
        ndim: int,
        kernel_size: int | Sequence[int] = 3,
        stride: int | Sequence[int] = 1,
        dilation: int | Sequence[int] = 1,
        transposed: bool = False,
        generative: bool = False,
    ) -> KernelSpec:
        """A box kernel. Integers are broadcast to all ``ndim`` axes.

        Raises:
          InputError: a size below 1, or a sequence of another length than ``ndim``.
        """
        size = per_axis(kernel_size, ndim, "kernel_size")
        strides = per_axis(stride, ndim, "stride")
        return cls(
            box_offsets(size, strides),
            strides,
            per_axis(dilation, ndim, "dilation"),
            bool(transposed),
            bool(generative),
        )

    @property
    def ndim(self) -> int:
        return len(self.stride)

    @property
    def num_offsets(self) -> int:
        return len(self.offsets)

    @property
    def keeps_coords(self) -> bool:
        """Stride 1 and not generative: the output set is the input set."""
        return not self.generative and all(s == 1 for s in self.stride)

    @property
    def symmetric(self) -> bool:
        """Reversing the taps negates every offset, so on one set the map is self-adjoint."""
        return is_point_symmetric(self.offsets)

    @property
    def dilated_offsets(self) -> np.ndarray:
        """``int[K, D]``: offsets times dilation."""
        return np.asarray(self.offsets) * np.asarray(self.dilation)

    def adjoint(self) -> KernelSpec:
        """The same relation read in the other direction."""
        return dataclasses.replace(self, transposed=not self.transposed)

    def __str__(self) -> str:
        size = np.ptp(np.asarray(self.offsets), axis=0) + 1
        box = "x".join(map(str, size))
        words = [box if np.prod(size) == self.num_offsets else f"{self.num_offsets} taps in {box}"]
        words += [f"stride {self.stride}"] if any(s != 1 for s in self.stride) else []
        words += [f"dilation {self.dilation}"] if any(d != 1 for d in self.dilation) else []
        words += ["transposed"] if self.transposed else []
        words += ["generative"] if self.generative else []
        return ", ".join(words)
