"""Every PyTorch case's faults are found at their lines, and nothing else; see ``test_corpus``."""

import dataclasses
import time

import numpy as np
import pytest

import voxax as vx
from check.corpus import cases_of
from voxax.check.source import tree_of

pytestmark = [
    pytest.mark.torch,
    pytest.mark.lax_promotion,
    # Of PyTorch itself, when it is imported and when it exports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

CASES = cases_of("torch_cases.py")
# Exporting five times takes seconds: what is called static, and one of each other verdict.
VERIFIED = ("branch_tensor", "boolean_mask", "loop_scalar", "slice_tensor", "single_index")


@pytest.mark.parametrize("name", CASES)
def test_torch_case(name):
    case = CASES[name]
    expected = case.expected()
    verify = (not expected and name != "ignored_torch") or name in VERIFIED
    report = vx.check_static(case.build(), *case.inputs(), verify=verify)
    found = sorted((f.line, f.code) for f in report.counted)
    assert found == expected, str(report)
    assert all(f.file == str(case.path) for f in report.findings)
    assert report.verdict == case.verdict, str(report)
    assert report.static_arguments == case.static, str(report)
    assert report.framework == "torch"
    if report.verification is not None:
        assert report.verification.holds, str(report)
    assert all(f.excerpt() and f.fix and f.why for f in report.counted)
    assert tree_of(str(case.path)) is not None


def test_modules_are_not_changed():
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(5, 4)
    given, state = x.clone(), torch.get_rng_state()
    report = vx.check_static(model, x)
    assert report.verdict == "static"
    assert report.modules == {"0": "static", "1": "static"}
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    np.testing.assert_array_equal(x, given)
    assert torch.equal(torch.get_rng_state(), state)


def test_endless_loop_of_torch_ends_in_time():
    import torch

    class Spins(torch.nn.Module):
        def forward(self, x):
            turns = 0
            while turns >= 0:
                turns = turns + 0
            return x

    class Grows(torch.nn.Module):
        def forward(self, x):
            while True:
                x = x + 1

    vx.check_static(
        torch.nn.Identity(), torch.ones(3)
    )  # PyTorch imports much when it first exports
    for model in (Spins(), Grows()):
        begin = time.monotonic()
        report = vx.check_static(model, torch.ones(3), seconds=1.5)
        assert time.monotonic() - begin < 20
        assert report.verdict == "not static"
        (finding,) = report.findings
        assert (finding.code, finding.file) == ("VX191", __file__)


def test_lazy_module_stays_lazy():
    import torch

    layers = torch.nn.LazyLinear(2), torch.nn.LazyBatchNorm1d(), torch.nn.LazyInstanceNorm1d()
    for model in (*layers, torch.nn.Sequential(*layers[:2])):
        before = [torch.nn.parameter.is_lazy(t) for t in (*model.parameters(), *model.buffers())]
        rows = torch.arange(24.0).reshape(2, 3, 4) if model is layers[2] else torch.ones(3, 4)
        assert vx.check_static(model, rows).verdict == "static"
        after = [torch.nn.parameter.is_lazy(t) for t in (*model.parameters(), *model.buffers())]
        assert before == after
    assert any(before)


def test_lazy_module_that_cannot_be_copied_is_refused():
    import torch

    model = torch.nn.LazyLinear(2)
    model.source = (row for row in range(3))
    with pytest.raises(vx.errors.InputError, match="call it once"):
        vx.check_static(model, torch.ones(3, 4))
    assert torch.nn.parameter.is_lazy(model.weight)


def test_what_verify_holds_fixed_is_not_confirmed():
    import torch
    import torch.nn.functional as F

    def resized(x, scale):
        return F.interpolate(x, scale_factor=scale)

    report = vx.check_static(resized, torch.ones(1, 1, 4, 4), 2.0, verify=True)
    assert report.verdict == "static per value"
    assert report.verification.holds
    from voxax.check import torch_verify

    # As if the checker had overlooked the number.
    missed = dataclasses.replace(report, verdict="static", static_arguments=(), findings=())
    verification = torch_verify.verify(missed)
    assert not verification.holds
    assert "another value" in verification.error


def test_advice_for_torch_names_an_argument_that_the_function_has():
    import torch

    def model(labels, counts):
        return torch.repeat_interleave(labels, counts), torch.bincount(labels)

    labels = torch.tensor([1, 0, 2])
    spread, histogram = vx.check_static(model, labels, labels).findings
    assert "output_size=" in spread.fix
    assert "no upper bound" in histogram.fix


def test_torch_submodules_have_verdicts():
    case = CASES["in_a_submodule"]
    report = vx.check_static(case.build(), *case.inputs())
    assert report.modules == {"0": "not static", "1": "static", "2": "static"}
    (finding,) = report.findings
    assert finding.module == "0"
    assert finding.arguments == ("input",)


def test_torch_finding_says_all():
    case = CASES["branch_scalar"]
    (finding,) = vx.check_static(case.build(), *case.inputs()).findings
    text, caret = finding.excerpt().splitlines()
    start = caret.index("^")
    assert text[start : start + caret.count("^")] == "torch.sum(output) > threshold"
    assert finding.arguments == ("linear.bias", "linear.weight", "threshold", "x")
    assert f"output (line {finding.line - 1})" in finding.depends_on


def test_torch_examples_that_differ():
    import torch

    def model(x, reps):
        for _ in range(reps):
            x = x * 2
        return x

    x = torch.ones(3)
    report = vx.check_static(model, x, 2, also=[(x, 3), (torch.ones(4), 2), (x.double(), 2)])
    assert [f.code for f in report.findings] == ["VX202", "VX203", "VX201"]
    assert report.programs == 4
    assert report.static_arguments == ("reps",)


def test_refused_by_export(request):
    from check.test_pages import BLOCK

    page = request.config.rootpath / "docs" / "check" / "VX192.md"
    shown = {}
    exec("\n".join(BLOCK.findall(page.read_text())), shown)
    wrong = vx.check_static(shown["wrong"], shown["x"])
    assert "VX192" in {f.code for f in wrong.findings}, str(wrong)
    right = vx.check_static(shown["right"], shown["x"])
    assert right.verdict == "static", str(right)
    assert not right.findings, str(right)


def test_mistakes_of_the_model():
    import torch

    report = vx.check_static(lambda x: x @ torch.ones(7, 7), torch.ones(3, 4))
    assert [f.code for f in report.findings] == ["VX191"]
    assert report.verdict == "not static"


def test_flags_that_pytorch_takes_only_from_python():
    import torch

    def model(x, keepdim, names):
        return x.sum(dim=0, keepdim=keepdim) * len(names)

    report = vx.check_static(model, torch.ones(3, 4), True, "ab")
    assert report.static_arguments == ("keepdim", "names")
    assert report.verdict == "static per value"
    assert [f.code for f in report.findings] == ["VX201"]
