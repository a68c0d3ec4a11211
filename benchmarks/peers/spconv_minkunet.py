"""MinkUNet built from spconv's modules: the same network as ``voxax.models.MinkUNet``, on CPU.

    model = build(voxax_model, in_channels, classes)     # or a state dict, or None
    logits = run(model, coords, features)                # torch.Tensor [N, classes], input order

``build`` takes a voxax MinkUNet; or what ``voxax.interop.to_spconv`` returns of one, so that a
process without JAX can have it from an ``.npz``; or None for a MinkUNet18 with weights of a fixed
seed. Widths, and the number of blocks at each stage, are read off the weights. The result is in
evaluation mode. ``run`` takes ``int32[N, 1 + 3]`` NumPy coordinates (batch index first, distinct
rows, negative ones allowed) and ``float32[N, C]`` features; ``prepare`` is its first half, for
timing the network alone. Kernel maps ("indice pairs") are made anew in every call of the model.

On CPU spconv 2.3.8 is right with one thread only (``torch.set_num_threads(1)``). With two, a few
rows of the outputs of SubMConv3d and SparseInverseConv3d and of the gradients of features are
wrong, others in every run: 3 to 10 of 616 rows of a SubMConv3d, by up to the size of the values
(AMD EPYC, PyTorch 2.13; its users report the same). So results are compared with one thread; a time
taken with more is that of a wrong result.

Where spconv and voxax differ, and what is done about it:

- spconv's coordinates are not negative and lie in a grid of given shape. They are shifted here by
  a multiple of the network's total stride, 16, so that every level has the same cells, and the
  grid is a multiple of 16: a grid of odd shape would lose the voxels of its last plane when halved.
- With kernel 2 and stride 2 both then have the same output voxels. With kernel 3 and stride 2,
  which this network does not use, spconv's output is every site that a tap reaches; voxax's is
  ``floor(coords / 2)`` unless ``generative=True``.
- The rows of deeper levels are in spconv's own order; on the way up ``SparseInverseConv3d``
  restores those of the level, and the output has the input's order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import spconv.pytorch as spconv
import torch
from benchmarks import minkunet
from torch import nn

LEVELS = 4
# From names of voxax's layers to those of ``minkunet.MinkUNet``, one after the other.
_NAMES = (
    (r"^stem\.", "stem.0."),
    (r"^stem_second\.", "stem.1."),
    (r"(blocks\.\d+\.\d+)\.norm\.", r"\1.branch.4."),
    (r"first\.conv\.", "branch.0."),
    (r"first\.norm\.", "branch.1."),
    (r"second\.", "branch.3."),
    (r"shortcut\.layers\.", "shortcut."),
    (r"\.conv\.", ".0."),
    (r"\.norm\.", ".1."),
)


def build(state: Mapping[str, np.ndarray] | Any | None, in_channels: int, classes: int) -> Any:
    """The network with the weights of ``state``, in evaluation mode. See the top of the file."""
    let_backward_run_on_cpu()
    layers = minkunet.Spconv(spconv)
    if state is None:
        model = minkunet.MinkUNet(layers, in_channels, classes, *minkunet.MINKUNET18)
        minkunet.draw(model)
        return model.eval()
    if not isinstance(state, Mapping):
        from voxax.interop import to_spconv

        state = to_spconv(state)
    stages = [("down_blocks", i) for i in range(LEVELS)] + [("up_blocks", i) for i in range(LEVELS)]
    model = minkunet.MinkUNet(
        layers,
        in_channels,
        classes,
        minkunet.MINKUNET18[0],
        [_number_of_blocks(state, f"{part}.{i}.") for part, i in stages],
        stem=len(state["stem.norm.weight"]),
        planes=[len(state[f"{part}.{i}.0.norm.weight"]) for part, i in stages],
    )
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    found = {}
    for name, value in state.items():
        for pattern, replacement in _NAMES:
            name = re.sub(pattern, replacement, name)
        # Products of rows are layers of 1x1x1 here, whose memory is [C_in, C_out].
        given = np.ascontiguousarray(value.T if value.ndim == 2 else value)
        found[name] = torch.from_numpy(given).reshape(shapes.get(name, given.shape))
    model.load_state_dict(found)
    return model.eval()


def _number_of_blocks(state: Mapping[str, Any], stage: str) -> int:
    return sum(name.startswith(stage) and name.endswith(".second.weight") for name in state)


def prepare(coords: np.ndarray, features: np.ndarray) -> spconv.SparseConvTensor:
    """``int32[N, 4]`` coordinates and ``float32[N, C]`` features as spconv wants them."""
    coords = np.asarray(coords, np.int32)
    total = 2**LEVELS
    low = coords[:, 1:].min(0, initial=0) // total * total
    shifted = np.column_stack([coords[:, :1], coords[:, 1:] - low]).astype(np.int32)
    shape = (shifted[:, 1:].max(0, initial=0) // total + 1) * total
    scenes = int(coords[:, 0].max(initial=0)) + 1
    rows = torch.from_numpy(np.ascontiguousarray(features, np.float32))
    return spconv.SparseConvTensor(rows, torch.from_numpy(shifted), shape.tolist(), scenes)


def run(model: nn.Module, coords: np.ndarray, features: np.ndarray) -> torch.Tensor:
    """Logits ``[N, classes]`` in the order of ``coords``; in evaluation without gradients."""
    with torch.set_grad_enabled(model.training):
        return model(prepare(coords, features))


def let_backward_run_on_cpu() -> None:
    """spconv 2.3.8 asks for the CUDA stream in every backward pass, also on CPU, where PyTorch
    raises because there is none; its CPU kernels do not use it."""
    if not torch.cuda.is_available():
        from spconv.pytorch import ops

        ops.get_current_stream = lambda: 0
