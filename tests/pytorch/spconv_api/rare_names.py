"""What code calls of spconv beside its layers, in a process of its own.

    python rare_names.py FILE voxax|spconv

Writes a dict of results. ``spconv`` runs on one thread, where alone it is right on a CPU.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import networks
import numpy as np
import torch

EXPRESSIONS = """
t.dtype, t.shape, t.ndim, t.size, t.device, t.dim(1)
t[1:3], t[0], t[-1], t[:, 1], t[::2], t[:2, 1:], t[..., 0], t[1:3, 0], t[2][1:]
t.clone(), t.cpu(), t.numpy_view()
tv.zeros([2, 3], tv.int32, -1), tv.zeros([2]), tv.zeros([2], np.float64)
tv.empty([2, 2], tv.uint8).shape
[tv.unknown, tv.bool_, tv.float16, tv.float32, tv.float64, tv.bfloat16, tv.tf32]
[tv.int8, tv.int16, tv.int32, tv.int64, tv.uint8, tv.uint16, tv.uint32, tv.uint64]
tv.TENSOR_TO_NPDTYPE_MAP, tv.NPDTYPE_TO_TENSOR_MAP
""".strip().split("\n")


def plain(value: Any) -> Any:
    """Return tensors as arrays, for pickles that both can read."""
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {str(key): str(part) for key, part in value.items()}
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    if type(value).__name__ == "Tensor":
        dense = getattr(value, "is_contiguous", lambda: value.numpy_view().flags.c_contiguous)()
        return value.numpy() if dense else np.array(value.shape)
    return str(value) if isinstance(value, (np.dtype, type)) else value


def of_tensorview() -> dict[str, Any]:
    import cumm.tensorview as tv

    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    t = tv.from_numpy(array)
    found = {text: eval(text, {"t": t, "tv": tv, "np": np}) for text in EXPRESSIONS}
    t[1:3].numpy_view()[...] = 0
    t[3].numpy_view()[...] = 7
    return found | {"written": array}


def clockwise(boxes: np.ndarray) -> np.ndarray:
    """Corners of ``[N, 5]``: center, sizes and angle."""
    x, y, w, h, angle = boxes.T[:, :, None]
    along = np.array([-0.5, -0.5, 0.5, 0.5]) * w
    across = np.array([-0.5, 0.5, 0.5, -0.5]) * h
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([x + cos * along - sin * across, y + sin * along + cos * across], -1)


def random_boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    centers, sizes = rng.uniform(-3, 3, (count, 2)), rng.uniform(0.5, 3, (count, 2))
    return clockwise(np.concatenate([centers, sizes, rng.uniform(-4, 4, (count, 1))], 1))


def of_boxes() -> dict[str, Any]:
    from spconv import utils

    rng, found = np.random.default_rng(0), {}
    for dtype in (np.float32, np.float64):
        a, b = (random_boxes(rng, count).astype(dtype) for count in (30, 20))
        b[:3] = a[:3]  # equal ones
        near = (rng.uniform(size=(30, 20)) > 0.2).astype(dtype)
        name = np.dtype(dtype).name
        found[f"iou {name}"] = utils.rbbox_iou(a, b, near, 0.5)
        found[f"shared {name}"] = utils.rbbox_intersection(a, b, near, 0.5)
        found[f"rows {name}"] = utils.rbbox_iou_loss(a[:20], b)
        ones = np.ones((30, 30), dtype)
        for kind in (np.int32, np.int64):
            order = rng.permutation(30).astype(kind)
            kept = utils.rotate_non_max_suppression_cpu(a, order, ones, 0.1)
            found[f"kept {name} {kind.__name__}"] = kept
    return found


def of_modules(folder: Path) -> dict[str, Any]:
    import spconv
    from spconv.core_cc.csrc.sparse.all import SpconvOps
    from spconv.core_cc.csrc.sparse.all.ops_cpu3d import Point2VoxelCPU
    from spconv.core_cc.csrc.utils.boxops import BoxOps
    from spconv.core_cc.cumm.common import CompileInfo
    from spconv.cppconstants import BUILD_CUMM_VERSION, COMPILED_CUDA_ARCHS, CPU_ONLY_BUILD
    from spconv.debug_utils import spconv_save_debug_data
    from spconv.pytorch import cppcore
    from spconv.pytorch.constants import PYTORCH_VERSION, TORCH_HAS_AMP, is_amp_enabled
    from spconv.utils import Point2VoxelCPU3d

    spconv_save_debug_data((1, "two"))
    saved = pickle.loads((folder / "debug.pkl").read_bytes())
    x = torch.arange(6, dtype=torch.int64).reshape(2, 3)
    seen = cppcore.torch_tensor_to_tv(x)
    seen.numpy_view()[0, 0] = 5
    narrow = x.int()  # spconv does not keep the memory
    views = cppcore.torch_tensor_to_tv(narrow), cppcore.torch_tensor_to_tv(x, shape=[3, 2])
    return {
        "saved": saved,
        "memory": plain([x, views]),
        "facts": [CPU_ONLY_BUILD, BUILD_CUMM_VERSION, len(COMPILED_CUDA_ARCHS)],
        "binary": [SpconvOps.is_cpu_only_build(), SpconvOps.get_int32_max(), BoxOps.has_boost()],
        "architectures": [CompileInfo.get_compiled_cuda_arch()],
        "one class": Point2VoxelCPU is Point2VoxelCPU3d,
        "versions": [spconv.__version__, PYTORCH_VERSION, TORCH_HAS_AMP, is_amp_enabled()],
        "file": Path(spconv.__file__).name,
    }


def of_pairs() -> dict[str, Any]:
    """As code that writes the layers' forward anew, with spconv's functions on pairs."""
    import spconv.pytorch as spconv
    from spconv.core import ConvAlgo
    from spconv.pytorch import functional as fsp
    from spconv.pytorch import ops
    from spconv.pytorch.conv import SparseConvolution, SparseConvolutionBase
    from spconv.pytorch.core import IndiceData

    def written_anew(layer: Any, x: Any) -> Any:
        """Return what the layer does; the pairs stay under its key."""
        sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
        shape = x.spatial_shape
        out_shape = shape if layer.subm else ops.get_conv_output_size(shape, *sizes)
        known, more = x.find_indice_pair(layer.indice_key), x.indice_dict.copy()
        if known is not None:
            layer._check_subm_reuse_valid(x, shape, known)
            places, pairs, numbers = known.out_indices, known.indice_pairs, known.indice_pair_num
        else:
            of = x.indices, x.batch_size, shape, ConvAlgo.Native, *sizes, layer.output_padding
            places, pairs, numbers = ops.get_indice_pairs(*of, layer.subm, layer.transposed)
            made = places, x.indices, pairs, numbers, shape, out_shape
            kinds = {"is_subm": layer.subm, "algo": layer.algo, "ksize": layer.kernel_size}
            rest = {name: getattr(layer, name) for name in ("stride", "dilation", "padding")}
            more[layer.indice_key] = IndiceData(*made, **kinds, **rest)
        function = fsp.SubMConvFunction if layer.subm else fsp.SparseConvFunction
        arguments = pairs, numbers, places.shape[0], layer.algo, x._timer
        features = function.apply(x.features, layer.weight, *arguments)
        out = x.shadow_copy().replace_feature(features)
        out.indices, out.spatial_shape, out.indice_dict = places, out_shape, more
        return out

    class Scaled(spconv.SubMConv3d):
        """Makes its own weight."""

        def forward(self, x: Any) -> Any:
            return self._conv_forward(self.training, x, 2 * self.weight, self.bias)

    class Doubled(spconv.SubMConv3d):
        """Changes what every forward returns."""

        def _conv_forward(self, *args: Any, **options: Any) -> Any:
            out = super()._conv_forward(*args, **options)
            return out.replace_feature(2 * out.features)

    torch.manual_seed(0)
    native = {"algo": ConvAlgo.Native, "bias": False}
    first = spconv.SubMConv3d(3, 4, 3, indice_key="fine", **native)
    second = spconv.SubMConv3d(4, 4, 3, indice_key="fine", **native)
    down = spconv.SparseConv3d(4, 6, 3, 2, 1, indice_key="down", **native)
    back = spconv.SparseInverseConv3d(6, 2, 3, indice_key="down", **native)
    scaled = torch.nn.Sequential(Scaled(2, 3, 3, **native), Doubled(3, 3, 3, **native))
    cells = torch.randperm(8**3)[:150]
    coords = torch.stack([cells * 0, cells // 64, cells // 8 % 8, cells % 8], 1).int()
    features = torch.randn(150, 3, dtype=torch.float64, requires_grad=True)
    layers = torch.nn.ModuleList([first, second, down, back, scaled]).double()
    x = spconv.SparseConvTensor(features, coords, [8, 8, 8], 1)
    fine = written_anew(first, x)
    again = written_anew(second, second(fine))  # by the layer, and anew with its pairs
    low = written_anew(down, again)
    out = scaled(back(low))
    out.features.square().sum().backward()
    other = spconv.SubMConv3d(3, 4, 5, **native)
    try:
        other._check_subm_reuse_valid(x, x.spatial_shape, fine.indice_dict["fine"])
        refused = ""
    except ValueError as error:
        refused = "kernel size" if "kernel size" in str(error) else str(error)
    grads = [parameter.grad for parameter in layers.parameters()]
    return {
        "outputs": [fine.features, again.features, low.features, low.indices, out.features],
        "gradients": [features.grad, *grads],
        "refused": refused,
        "base": issubclass(SparseConvolution, SparseConvolutionBase),
    }


def main() -> None:
    file, by = sys.argv[1:]
    torch.set_num_threads(1)
    folder = Path(file).parent
    os.environ["SPCONV_DEBUG_SAVE_PATH"] = str(folder / "debug.pkl")  # read once
    networks.start(by)
    found = of_modules(folder)
    for part in (of_tensorview, of_boxes, of_pairs):
        found |= part()
    Path(file).write_bytes(pickle.dumps({name: plain(value) for name, value in found.items()}))


if __name__ == "__main__":
    main()
