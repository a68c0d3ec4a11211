"""Large modules run without values, as in export, and have the findings of small ones."""

import pytest

import voxax as vx
from check.test_torch_corpus import CASES

pytestmark = [
    pytest.mark.torch,
    pytest.mark.lax_promotion,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

# What Python learns about a tensor without a value, and what it keeps.
NAMES = (
    "branch_tensor", "counts_its_calls", "drawn_by_python", "equal_tensors",
    "fine_caught", "fine_layers", "fine_lazy", "fine_masked_assignment", "fine_random",
    "fine_stored", "grows", "handed_to_the_host", "in_a_hook", "loop_scalar", "many_at_once",
    "packed", "printed", "stored_and_read", "unsafe_where", "widened",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_findings_of_a_large_module(name, monkeypatch):
    from voxax.check import torch_runs

    monkeypatch.setattr(torch_runs, "MOST_COPIED", -1)  # every module is large
    case = CASES[name]
    report = vx.check_static(case.build(), *case.inputs())
    assert sorted((f.line, f.code) for f in report.counted) == case.expected(), str(report)
    assert report.verdict == case.verdict, str(report)


def blocks(depth):
    import torch

    return torch.nn.Sequential(
        *(
            torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
    )


def test_a_large_module_is_neither_copied_nor_computed(monkeypatch):
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    from voxax.check import torch_runs

    monkeypatch.setattr(torch_runs, "MOST_COPIED", 1000)
    model, seen = blocks(3), []
    model.register_forward_hook(lambda module, args, out: seen.append(isinstance(out, FakeTensor)))
    before = {name: value.data_ptr() for name, value in model.named_parameters()}
    passes = []
    usual = torch_runs.Watch
    monkeypatch.setattr(torch_runs, "Watch", lambda *a: passes.append(1) or usual(*a))
    clones = []
    deepcopy = torch.nn.Parameter.__deepcopy__
    monkeypatch.setattr(
        torch.nn.Parameter, "__deepcopy__", lambda p, memo: clones.append(p) or deepcopy(p, memo)
    )
    report = vx.check_static(model, torch.ones(1, 4, 16))
    assert report.verdict == "static", str(report)
    assert not report.findings, str(report)
    assert not clones
    assert len(passes) == 3  # one, and two of one module
    assert {n: v.data_ptr() for n, v in model.named_parameters()} == before
    assert all(not hasattr(v, "_voxax_origin") for v in model.parameters())


def test_a_large_module_that_needs_values_computes_them(monkeypatch):
    import torch

    from voxax.check import torch_runs

    monkeypatch.setattr(torch_runs, "MOST_COPIED", 1000)

    class Gate(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = blocks(1)

        def forward(self, x):
            y = self.blocks(x)
            try:
                scale = float(y.abs().max())  # a caught error would hide it
            except Exception:
                scale = 1.0
            return y / scale

    report = vx.check_static(Gate(), torch.ones(1, 4, 16))
    assert report.verdict == "not static", str(report)
    assert [f.code for f in report.findings] == ["VX108"]
