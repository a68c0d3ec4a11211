"""Common base of convolutions and poolings: kernel sizes, stored kernel maps, counts and times."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from voxax.torch.core.errors import ArgumentError, check_features, whole
from voxax.torch.core.kernel_map import KernelMap
from voxax.torch.spconv.algo import ConvAlgo
from voxax.torch.spconv.core import (
    ImplicitGemmIndiceData,
    IndiceData,
    Sites,
    SparseConvTensor,
    expand_nd,
)
from voxax.torch.spconv.modules import SparseModule

Size = int | Sequence[int]
_BUFFER = "max_num_voxels_during_training"


class Window(SparseModule):
    """Base of layers that move a window over voxels: convolutions and poolings.

    Arguments that are not listed are as in :class:`voxax.torch.spconv.conv.SparseConvolution`.

    Args:
      sizes: kernel size, stride, padding and dilation, each an integer or one per axis.
      most_taps: largest number of taps for which None as ``algo`` means
        ``ConvAlgo.MaskImplicitGemm``; larger windows get ``ConvAlgo.Native``.
      counts: whether to record the largest number of outputs, in a buffer of the ``state_dict``.
    """

    NDIM: ClassVar[int]

    def __init_subclass__(cls, ndim: int | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if ndim is not None:
            cls.NDIM = ndim

    def __init__(
        self,
        ndim: int,
        sizes: Sequence[Size],
        subm: bool,
        indice_key: str | None,
        algo: ConvAlgo | None,
        most_taps: int,
        counts: bool,
        name: str | None,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(name=name)
        self.ndim = ndim = whole("ndim", ndim)
        each = [expand_nd(ndim, size) for size in sizes]
        self.kernel_size, self.stride, self.padding, self.dilation = each
        self.subm, self.indice_key = subm, indice_key
        few = math.prod(self.kernel_size) <= most_taps
        usual = ConvAlgo.MaskImplicitGemm if few else ConvAlgo.Native
        self.algo = usual if algo is None else algo
        if counts:
            self.register_buffer(_BUFFER, torch.zeros(1, dtype=torch.int32, device=device))
            self.register_load_state_dict_pre_hook(_add_missing)

    def get_max_num_voxels(self) -> Tensor | None:
        """Return the largest number of output voxels so far, ``int32[1]``; None if not recorded."""
        return getattr(self, _BUFFER, None)

    def _count(self, rows: int) -> None:
        if (largest := getattr(self, _BUFFER, None)) is not None:
            largest.clamp_(min=rows)

    def _parameters_for_record(self) -> dict[str, Any]:
        names = ("kernel_size", "stride", "padding", "dilation")
        return {name: getattr(self, name) for name in names}

    def _begin(self, input: Any, kind: str, channels: int | None = None) -> Record:
        """Check the input's type, rows and ``channels``; return a started :class:`Record` of times.

        ``kind`` names the type of layer in that record.
        """
        if not isinstance(input, SparseConvTensor):
            raise ArgumentError(f"{type(input).__name__} where a SparseConvTensor is expected")
        check_features(input.features, input.indices.shape[0], channels)
        return Record(self, input, kind)

    def _left(
        self, input: SparseConvTensor, kernel_map: KernelMap, sites: Sites, out: Sites
    ) -> dict[str, Any]:
        """Return ``input.indice_dict`` plus an entry under this layer's ``indice_key``.

        The entry has the layer's kernel map, its input voxels ``sites``, its output voxels ``out``,
        and the layer's arguments. Without an ``indice_key``, return ``input.indice_dict`` itself.
        """
        if self.indice_key is None:
            return input.indice_dict
        kind = IndiceData if self.algo is ConvAlgo.Native else ImplicitGemmIndiceData
        sizes = self.kernel_size, self.stride, self.dilation, self.padding
        data = kind.of(kernel_map, sites, out, self.subm, self.algo, *sizes)
        return {**input.indice_dict, self.indice_key: data}


class Record:
    """Timer of one layer call; records in ``input.benchmark_record`` if ``input.benchmark``.

    The entry is under the name of ``layer``. ``kind`` is the type of the layer to record.
    """

    def __init__(self, layer: Window, input: SparseConvTensor, kind: str) -> None:
        self.entry = None
        if input.benchmark:
            if layer.name is None:
                raise ArgumentError("benchmark=True needs layers with a name: name=... when made")
            lists = {"indice_gen_time": [], "time": [], "num_points": [], "num_out_points": []}
            fresh = {"type": kind, **lists, "params": layer._parameters_for_record()}
            self.entry = input.benchmark_record.setdefault(layer.name, fresh)
        self.rows, self.start = input.features.shape[0], time.time()

    def found(self) -> None:
        """Record the time since the start of the call as the time to build the kernel map."""
        if self.entry is not None:
            now = time.time()
            self.entry["indice_gen_time"].append(now - self.start)
            self.start = now

    def done(self, out: SparseConvTensor) -> None:
        """Record the time since :meth:`found`, and the numbers of input and output rows.

        ``out`` is the layer's result. If :meth:`found` was not called, the time is that since the
        start of the call.
        """
        if self.entry is not None:
            self.entry["time"].append(time.time() - self.start)
            self.entry["num_points"].append(self.rows)
            self.entry["num_out_points"].append(out.features.shape[0])


def _add_missing(module: nn.Module, state_dict: dict, prefix: str, *rest: Any) -> None:
    """Add the buffer ``max_num_voxels_during_training``, as 0, to a checkpoint that lacks it.

    Otherwise the strict ``load_state_dict`` of PyTorch would reject the checkpoint ``state_dict``.
    """
    del module, rest
    state_dict.setdefault(prefix + _BUFFER, torch.zeros(1, dtype=torch.int32))
