"""Frozen results of spconv 2.3.8 on a GPU, and how they are compared.

Rows of sparse results are compared in the order of their coordinates: on a GPU spconv's own order
is not defined. Every difference has the tolerance that is stored with the result, which comes from
the noise of spconv's own repeated runs.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import voxax.torch.spconv as spconv
from voxax.torch.spconv import algo, conv, pool


def load(folder: Path, name: str) -> dict:
    """Return the cases of one file by name."""
    path = folder / "golden" / name
    if not path.exists():
        pytest.skip(f"no golden data at {path}")
    return {case["id"]: case for case in torch.load(path, weights_only=True)["cases"]}


def api(folder: Path) -> dict:
    path = folder / "golden" / "golden_api.json"
    if not path.exists():
        pytest.skip(f"no golden data at {path}")
    return json.loads(path.read_text())


def sparse(given: dict, features: torch.Tensor | None = None) -> spconv.SparseConvTensor:
    features = given["features"].clone() if features is None else features
    shape = given["spatial_shape"], given["batch_size"]
    return spconv.SparseConvTensor(features, given["indices"], *shape)


def layer(spec: dict, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Make a layer from its class, arguments and weights."""
    name = spec["cls"]
    if name == "SparseSequential":
        return spconv.SparseSequential(*(layer(child, dtype) for child in spec["children"]))
    if name.startswith("nn."):
        made = getattr(nn, name[3:])(**spec["ctor"])
    else:
        homes = [home for home in (spconv, conv, pool) if hasattr(home, name)]
        enums = {"algo": algo.ConvAlgo, "act_type": algo.Activation}
        arguments = {
            key: enums[key][value] if key in enums and isinstance(value, str) else value
            for key, value in spec["ctor"].items()
        }
        made = getattr(homes[0], name)(**arguments)
    made = made.to(dtype)
    with torch.no_grad():
        for key, value in (spec.get("params") or {}).items():
            if value is not None:
                getattr(made, key).copy_(value)
    return made


def by_coordinates(indices: torch.Tensor, shape: list[int]) -> torch.Tensor:
    """Return the rows in lexicographic order of their coordinates."""
    key = indices[:, 0].long()
    for axis, size in enumerate(shape):
        key = key * size + indices[:, axis + 1]
    return torch.argsort(key)


def near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype
    difference = (found.detach().double() - expected.double()).abs().max().item()
    assert difference <= tolerance


def same_rows(out: spconv.SparseConvTensor, expected: dict) -> torch.Tensor:
    """Compare coordinates and features; returns the order of the rows."""
    assert out.spatial_shape == expected["out_spatial_shape"]
    order = by_coordinates(out.indices, out.spatial_shape)
    assert torch.equal(out.indices[order], expected["out_indices"])
    near(out.features[order], expected["out_features"], expected["atol_out"])
    return order


def same_gradients(
    out: spconv.SparseConvTensor, x: torch.Tensor, modules: nn.Module, expected: dict
) -> None:
    """Run backward from the stored gradient of the result, and compare all gradients."""
    order = by_coordinates(out.indices, out.spatial_shape)
    upstream = torch.empty_like(out.features)
    upstream[order] = expected["grad_out"].to(upstream.dtype)
    out.features.backward(upstream)
    assert x.grad is not None
    near(x.grad, expected["grad_input"], expected["atol_grad_input"])
    grads = {name: p.grad for name, p in modules.named_parameters()}
    assert set(grads) == set(expected["grad_params"])
    for name, stored in expected["grad_params"].items():
        near(grads[name], stored["grad"], stored["atol"])
