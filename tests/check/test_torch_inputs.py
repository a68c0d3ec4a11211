"""Example inputs of PyTorch modules by name, as `torch.export` takes them."""

import re

import pytest

import voxax as vx

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


class Cut(torch.nn.Module):
    def forward(self, x, *, count, mask=None, scale=1.0):
        if mask is not None:
            x = x * mask
        return x[:count] * scale


class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.LazyLinear(3)

    def forward(self, *, x):
        return self.linear(x)


def pieces(x, *sizes, **options):
    return [x[:n] for n in sizes], x * options["scale"]


def chosen(x, *, threshold):
    return x * 2 if x.sum() > threshold else x


X = torch.linspace(0, 1, 6)
CASES = [
    (Cut(), (X,), {"count": 3}, "static per value", ["count"]),
    (Cut(), (X,), {"count": torch.tensor(3), "mask": X > 0.5}, "bounded dynamic", []),
    (Cut(), (), {"x": X, "count": 3, "mask": X, "scale": 2.0}, "static per value", ["count"]),
    (Lazy(), (), {"x": X[None]}, "static", []),
    (pieces, (X, 3, 2), {"scale": X}, "static per value", ["sizes[0]", "sizes[1]"]),
    (chosen, (X,), {"threshold": 0.5}, "not static", []),
]


@pytest.mark.parametrize(("target", "inputs", "kwargs", "verdict", "static"), CASES)
def test_verdict(target, inputs, kwargs, verdict, static):
    report = vx.check_static(target, *inputs, kwargs=kwargs, verify=True)
    assert (report.verdict, list(report.static_arguments)) == (verdict, static), str(report)
    assert report.verification.holds, str(report)


def test_missing_names_are_advised():
    (finding,) = vx.check_static(Cut(), X).findings
    assert finding.code == "VX191"
    assert re.findall(r"'(\w+)': \.\.\.", finding.fix) == ["count"]


def test_further_examples():
    also = [{"mask": None}, {"x": X[:4], "mask": X[:4]}]
    report = vx.check_static(Cut(), X, kwargs={"count": 3, "mask": X}, also=also)
    messages = {f.code: f.message for f in report.findings}
    assert set(messages) == {"VX201", "VX202", "VX204"}
    assert "only the first has `mask`" in messages["VX204"]
    assert report.programs == 3


def test_unknown_name():
    with pytest.raises(vx.errors.InputError, match="`x`, `count`, `mask`, `scale`"):
        vx.check_static(Cut(), X, kwargs={"counts": 3})
