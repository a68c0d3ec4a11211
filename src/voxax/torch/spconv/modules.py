"""Containers for sparse layers, and normalizations and activations that take sparse tensors."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar

from torch import Tensor, nn

from voxax.torch.core.errors import ArgumentError
from voxax.torch.core.known_calls import has_averages, is_known, know, only_results_count
from voxax.torch.spconv.core import SparseConvTensor


class SparseModule(nn.Module):
    """Base of modules to which :class:`SparseSequential` passes the whole sparse tensor.

    Args:
      name: key of the module in the tensor's ``benchmark_record``; None if not measured.
    """

    IS_CONVOLUTION: ClassVar[bool] = False

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self._sparse_unique_name = ""


class SparseSequential(SparseModule):
    """Sequence of modules: sparse modules get the whole tensor, other modules its features.

    Args:
      args: modules, or one ordered dict of modules.
      kwargs: more modules, by name.
    """

    def __init__(self, *args: Any, **kwargs: nn.Module) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            named = list(args[0].items())
        else:
            named = [(str(index), module) for index, module in enumerate(args)]
        for name, module in [*named, *kwargs.items()]:
            SparseSequential.add(self, module, name)

    def __getitem__(self, idx: int) -> nn.Module:
        if not -len(self) <= idx < len(self):
            raise IndexError(f"index {idx} is out of range for {len(self)} modules")
        return list(self._modules.values())[idx]  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._modules)

    def add(self, module: nn.Module, name: str | None = None) -> None:
        """Append a module named ``name`` or its index; a used name raises :class:`SpconvError`."""
        name = str(len(self._modules)) if name is None else name
        if name in self._modules:
            raise ArgumentError(f"the name {name!r} is taken in this SparseSequential")
        self.add_module(name, module)

    def forward(self, input: Any) -> Any:
        """Apply the modules in order, and return the last result.

        Modules of PyTorch, such as ``BatchNorm1d``, are applied to the features of a sparse tensor,
        and skipped if it has no voxels. If ``input`` is a plain tensor, they are applied to it.

        If gradients are off, a convolution also computes the batch norm in evaluation mode and the
        ReLU that follow it.
        """
        modules = list(self._modules.values())
        while modules:
            module = modules.pop(0)
            if isinstance(input, SparseConvTensor) and is_sparse_conv(module):
                norm, relu = _epilogue_of(module, modules)
                if norm is not None or relu:
                    input = module.with_epilogue(input, norm, relu)  # type: ignore[union-attr]
                    del modules[: (norm is not None) + relu]
                    continue
            if is_spconv_module(module) or not isinstance(input, SparseConvTensor):
                input = module(input)  # type: ignore[misc]
            elif input.indices.shape[0] != 0:
                input = input.replace_feature(module(input.features))  # type: ignore[misc]
        return input


def _epilogue_of(conv: Any, behind: list[Any]) -> tuple[nn.BatchNorm1d | None, bool]:
    """Return which of the next modules ``conv`` can compute itself: a batch norm, and a ReLU.

    ``behind`` has the modules after ``conv``, of which only the first two are considered. The
    results are the batch norm or None, and whether a ReLU is computed. They are None and False
    while gradients, compilation or autocast are on. Modules that may run other code are left out:
    subclasses, and modules with hooks or replaced methods.
    """
    if not only_results_count() or not is_known(conv):
        return None, False
    norm, relu, *_ = *behind[:2], None, None
    if not (
        isinstance(norm, nn.BatchNorm1d)
        and has_averages(norm, conv.weight.dtype)
        and is_known(norm)
        and norm.num_features == conv.out_channels
    ):
        norm, relu = None, norm
    return norm, isinstance(relu, nn.ReLU) and is_known(relu)


class _OnFeatures(nn.Module):
    """Mixin that lets a module class also take a sparse tensor, and change its features only."""

    def forward(self, input: Any) -> Any:
        if isinstance(input, SparseConvTensor):
            return input.replace_feature(super().forward(input.features))
        return super().forward(input)


class SparseBatchNorm(_OnFeatures, nn.BatchNorm1d):
    """``nn.BatchNorm1d`` that also takes sparse tensors and normalizes their features."""


class SparseSyncBatchNorm(_OnFeatures, nn.SyncBatchNorm):
    """``nn.SyncBatchNorm`` that also takes sparse tensors; PyTorch runs it on GPUs only."""


class SparseReLU(_OnFeatures, nn.ReLU):
    """``nn.ReLU`` that also takes sparse tensors and applies to their features."""


class SparseIdentity(_OnFeatures, nn.Identity):
    """``nn.Identity`` that also takes sparse tensors, of which it returns a copy."""


know(SparseBatchNorm, SparseReLU)


class ToDense(SparseModule):
    """Module that turns a sparse tensor into a dense one, ``[B, C, *spatial_shape]``."""

    def forward(self, x: SparseConvTensor) -> Tensor:
        return x.dense()


class RemoveGrid(SparseModule):
    """Module that sets ``x.grid``, which has no effect here, to None and returns ``x``."""

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        x.grid = None
        return x


def is_spconv_module(module: Any) -> bool:
    """Return True if :class:`SparseSequential` passes the whole sparse tensor to the module."""
    return isinstance(module, (SparseModule, _OnFeatures))


def is_sparse_conv(module: Any) -> bool:
    """Return True if the module is a convolution of this package."""
    return isinstance(module, SparseModule) and module.IS_CONVOLUTION


def assign_name_for_sparse_modules(module: nn.Module) -> None:
    """Store in each sparse module inside ``module`` its name in ``module.named_modules()``."""
    for name, found in module.named_modules():
        if isinstance(found, SparseModule):
            found._sparse_unique_name = name
