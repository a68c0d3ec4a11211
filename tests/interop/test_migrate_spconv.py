"""The page "From spconv", its part on JAX: the network in spconv and the network here agree.

``tests/test_docs.py`` runs the blocks that need no spconv. Here all of that part run, with
random statistics and biases in the network before its weights are carried over.
"""

from pathlib import Path

import numpy as np
import pytest

from test_docs import blocks, without_torch
from voxax.interop import to_spconv

pytestmark = [pytest.mark.torch, pytest.mark.lax_promotion]

PAGE = Path(__file__).resolve().parents[2] / "docs" / "spconv.md"


@pytest.fixture
def torch():
    """PyTorch with one thread: with two, spconv 2.3.8 gets a few rows wrong on CPU."""
    module = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("spconv.pytorch", reason="spconv is not installed: pip install spconv")
    threads = module.get_num_threads()
    yield module
    module.set_num_threads(threads)


def scrambled(torch, network):
    """Random statistics, scales and biases: those of a new network are 0 and 1, and hide errors."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, tensor in network.state_dict().items():
            if tensor.ndim == 1 and tensor.is_floating_point():
                noise = torch.rand(tensor.shape, generator=generator)
                tensor.copy_(0.5 + noise if name.endswith(("1.weight", "var")) else noise - 0.5)


def test_the_page_carries_a_network_over(torch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page: dict = {"__name__": "docs.spconv"}
    for code, line, _ in blocks(without_torch(PAGE.read_text())):
        made = "before" in page
        exec(compile("\n" * line + code, str(PAGE), "exec"), page)
        if "before" in page and not made:
            scrambled(torch, page["before"])
    ours, theirs = page["ours"], page["theirs"]
    assert ours.shape == theirs.shape == (len(page["coords"]), 5)
    assert 0.1 < theirs.std() < 100
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)

    back = to_spconv(page["after"], names=page["peer_name"])
    kept = {name: value for name, value in page["state"].items() if "num_batches" not in name}
    assert set(back) == set(kept)
    for name, value in kept.items():
        np.testing.assert_array_equal(back[name], value.numpy())


def test_outputs_without_generative_are_fewer(torch):
    """Check the page's figures on the outputs of a strided layer."""
    import spconv.pytorch as spconv

    site = torch.tensor([[0, 5, 5, 5]], dtype=torch.int32)
    tensor = spconv.SparseConvTensor(torch.ones(1, 1), site, [8, 8, 8], 1)
    torch.set_num_threads(1)
    with torch.no_grad():
        out = spconv.SparseConv3d(1, 1, 3, stride=2, padding=1)(tensor)
    assert sorted(map(tuple, out.indices[:, 1:].tolist())) == [
        (x, y, z) for x in (2, 3) for y in (2, 3) for z in (2, 3)
    ]
