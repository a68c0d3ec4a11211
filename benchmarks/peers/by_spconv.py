"""spconv on its CPU path, with the kernel map cached under an ``indice_key``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import spconv
import spconv.pytorch as sp
import torch
from benchmarks.peers.by_torch import differentiated
from benchmarks.peers.cases import (
    MINKUNET_CHANNELS,
    MINKUNET_CLASSES,
    OPERATIONS,
    Case,
    Contestant,
    Makers,
)
from spconv.core import ConvAlgo
from spconv.pytorch import ops
from spconv.pytorch.functional import indice_conv, indice_subm_conv

_threads = 1


def setup(threads: int) -> None:
    global _threads
    _threads = threads
    torch.set_num_threads(threads)
    # Backward passes ask for the CUDA stream also on CPU, where PyTorch raises; the CPU kernels
    # do not use it.
    ops.get_current_stream = lambda: 0


def versions() -> dict[str, str]:
    return {"spconv": spconv.__version__, "PyTorch": torch.__version__}


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """spconv 2.3.8 adds rows to its output (``GatherCPU::scatter_add``) with two pointers that all
    OpenMP threads share: with more than one thread some rows are now and then wrong."""
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(_threads)


def contestants(case: Case, arrays: dict[str, np.ndarray]) -> Makers:
    if case.operation == "map3":
        return {"spconv": partial(_map, arrays)}
    make = partial(_minkunet if case.operation == "minkunet18" else _layer, case, arrays)
    return {"spconv": make, "single": lambda: _single(make())}


def _single(contestant: Contestant) -> Contestant:
    """Run on one thread, where results are right."""

    def run() -> Any:
        with one_thread():
            return contestant.run()

    return Contestant(run, contestant.arrays)


def _layer(case: Case, arrays: dict[str, np.ndarray]) -> Contestant:
    what, c = OPERATIONS[case.operation], case.channels
    options = {"bias": False, "indice_key": "map", "algo": ConvAlgo.Native}
    if what.stride == 1:
        module = sp.SubMConv3d(c, c, what.kernel, **options)
    else:
        padding = 0 if what.stride == what.kernel else 1
        module = sp.SparseConv3d(c, c, what.kernel, what.stride, padding, **options)
    kernel = arrays["weight"].reshape(*[what.kernel] * 3, c, c).transpose(4, 0, 1, 2, 3)
    with torch.no_grad():
        module.weight.copy_(torch.from_numpy(np.ascontiguousarray(kernel)))
    module.train(case.trains)
    features = torch.from_numpy(arrays["features"])
    indices = torch.from_numpy(arrays["coords"])
    bare = sp.SparseConvTensor(features, indices, arrays["grid"].tolist(), 1)
    with torch.no_grad():
        made = module(bare)
    data = made.indice_dict["map"]
    pairs = _pairs(data.indice_pair_num.numpy(), what.stride == 1, len(indices))
    if pairs != int(arrays["pairs"]):
        raise ValueError(f"{pairs} pairs instead of {arrays['pairs']}")
    if what.stride == 1:
        rows = np.arange(len(indices))
    else:
        # Its outputs in canonical order, and back.
        rows = np.lexsort(made.indices.numpy().T[::-1])
        if not np.array_equal(made.indices.numpy()[rows], arrays["out_coords"]):
            raise ValueError("the outputs are at other coordinates")
    cotangent = np.empty_like(arrays["cotangent"])
    cotangent[rows] = arrays["cotangent"]

    # What the module does with a map that it finds; strided modules never look for one.
    apply = indice_subm_conv if what.stride == 1 else indice_conv

    def forward(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        pairs, numbers = data.indice_pairs, data.indice_pair_num
        return apply(x, weight, pairs, numbers, len(rows), ConvAlgo.Native)

    inner = differentiated(case, features, module.weight, torch.from_numpy(cotangent), forward)

    def in_order(result: Any) -> dict[str, np.ndarray]:
        found = inner.arrays(result)
        found["out"] = found["out"][rows]
        if "weight_grad" in found:
            grad = found["weight_grad"].transpose(1, 2, 3, 4, 0)
            found["weight_grad"] = grad.reshape(-1, c, c)
        return found

    return Contestant(inner.run, in_order, one_thread)


def _pairs(numbers: np.ndarray, submanifold: bool, rows: int) -> int:
    """A submanifold map keeps the first half of its taps; the middle one is the identity."""
    return 2 * int(numbers[: len(numbers) // 2].sum()) + rows if submanifold else int(numbers.sum())


def _map(arrays: dict[str, np.ndarray]) -> Contestant:
    indices, shape = torch.from_numpy(arrays["coords"]), arrays["grid"].tolist()
    three, one, zero = [3] * 3, [1] * 3, [0] * 3

    def run() -> Any:
        return ops.get_indice_pairs(
            indices, 1, shape, ConvAlgo.Native, three, one, one, one, zero, subm=True
        )

    def pairs(result: Any) -> dict[str, np.ndarray]:
        return {"pairs": np.asarray(_pairs(result[2].numpy(), True, len(indices)))}

    return Contestant(run, pairs)


def _minkunet(case: Case, arrays: dict[str, np.ndarray]) -> Contestant:
    from benchmarks.peers import spconv_minkunet

    mark = "spconv."
    state = {name.removeprefix(mark): v for name, v in arrays.items() if name.startswith(mark)}
    model = spconv_minkunet.build(state, MINKUNET_CHANNELS, MINKUNET_CLASSES)
    ready = spconv_minkunet.prepare(arrays["coords"], arrays["features"])

    def fresh() -> sp.SparseConvTensor:
        """Tensors on the device; the maps, which spconv would keep, are built in every call."""
        return sp.SparseConvTensor(
            ready.features, ready.indices, ready.spatial_shape, ready.batch_size
        )

    if not case.trains:

        def infer() -> torch.Tensor:
            with torch.no_grad():
                return model(fresh())

        return Contestant(infer, lambda logits: {"logits": logits.numpy()}, one_thread)
    model.train()
    labels = torch.from_numpy(arrays["labels"])
    parameters = list(model.parameters())

    def step() -> torch.Tensor:
        logits = model(fresh())
        loss = torch.nn.functional.cross_entropy(logits, labels)
        grads = torch.autograd.grad(loss, parameters)
        # The update goes nowhere, so that every call does the same.
        updated = torch._foreach_add([p.detach() for p in parameters], grads, alpha=-1e-3)
        assert len(updated) == len(parameters)
        return loss.detach()

    return Contestant(step, lambda loss: {"loss": loss.numpy()}, one_thread)
