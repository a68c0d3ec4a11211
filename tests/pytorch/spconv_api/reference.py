"""Public networks of PyTorch, in a process of their own, which networks of JAX are compared with.

    python reference.py FOLDER spconv|voxax NAME

``FOLDER/SCAN.npz`` has the inputs, as for ``networks.py``, which makes the networks. For
each scan it writes ``FOLDER/NAME.SCAN.reference.pt``: the state dict, the outputs in float32 in
evaluation and in training mode, and in float64 the gradient of a loss (:func:`loss_of`) with
respect to every weight in both modes, and the outputs in training mode.

With ``voxax`` spconv's door of voxax takes the place of spconv.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import networks
import torch


def compared(name: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the outputs that the networks of JAX have too, in one order."""
    left_out = {"SECOND": ("out.batch_cls", "out.batch_box")}.get(name, ())
    return {key: tensors[key] for key in sorted(tensors) if key not in left_out}


def loss_of(outputs: dict[str, Any]) -> Any:
    """Return the sum of the mean squares: it does not depend on the order of rows and cells."""
    return sum((value**2).mean() for name, value in outputs.items() if "indices" not in name)


def run(name: str, scan: networks.Scan) -> dict[str, Any]:
    network = networks.NETWORKS[name]
    torch.manual_seed(0)
    model = network.build(scan)
    networks.take_statistics(network, model, scan)
    state = {key: value.clone() for key, value in model.state_dict().items()}

    def outputs(dtype: torch.dtype) -> dict[str, torch.Tensor]:
        x = scan.features.to(dtype)
        found = networks.tensors(networks.seeded(lambda: network.call(model, scan, x)))
        return compared(name, found)

    def gradients(dtype: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        model.zero_grad()
        found = outputs(dtype)
        loss_of(found).backward()
        grads = {key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None}
        return {key: value.detach() for key, value in found.items()}, grads

    model.eval()
    if "voxax" not in sys.modules:
        networks.allow_bias(model)
    with torch.no_grad():
        plain = outputs(torch.float32)
    model.double()
    _, plain_grads = gradients(torch.float64)
    model.float().train()
    with torch.no_grad():
        trained = outputs(torch.float32)
    model.load_state_dict(state)
    model.double()
    wide, wide_grads = gradients(torch.float64)
    return {
        "state": state,
        "eval": {"outputs": plain, "grads": plain_grads},
        "train": {"outputs": trained},
        "train64": {"outputs": wide, "grads": wide_grads},
    }


def main() -> None:
    folder, by, name = sys.argv[1:]
    torch.set_num_threads(1 if by == "spconv" else 2)
    if by == "voxax":
        from voxax.torch import spconv

        spconv.install()
    else:
        from spconv.pytorch import ops

        ops.get_current_stream = lambda: 0  # asked for on CPUs too, where PyTorch has none
    networks.PACKAGES[networks.NETWORKS[name].package]()
    for path in sorted(Path(folder).glob("*.npz")):
        result = run(name, networks.read_scan(path))
        torch.save(result, Path(folder, f"{name}.{path.stem}.reference.pt"))


if __name__ == "__main__":
    main()
