"""Suggestions for PyTorch: the module is static with them, and computes the same."""

import pytest

import voxax as vx
from check.corpus import cases_of, load
from check.test_suggestions import with_suggestions
from voxax.cli import main

pytestmark = [
    pytest.mark.torch,
    pytest.mark.lax_promotion,
    # Of PyTorch itself, when it is imported and when it exports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

CASES = cases_of("torch_cases.py")
HEAD = "import torch\nbound = 16\n"


@pytest.mark.parametrize(
    "name",
    [
        *("branch_tensor", "branch_scalar", "slice_tensor", "slice_scalar"),
        *("loop_tensor", "loop_scalar", "choice_of_two", "and_or_not_torch"),
    ],
)
def test_torch_suggestion_is_static_and_equal(name, tmp_path):
    import torch

    case, path = CASES[name], CASES[name].alone(tmp_path)
    model = load(path).model
    new = with_suggestions(path, vx.check_static(model, *case.inputs()), tmp_path, HEAD)
    if isinstance(model, torch.nn.Module):
        new.model.load_state_dict(model.state_dict())
    again = vx.check_static(new.model, *case.inputs(), verify=True)
    assert again.verdict == "static", str(again)
    assert not again.findings, str(again)
    assert again.verification.holds, str(again)
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        x, *others = case.inputs()
        x = torch.randn(x.shape, generator=generator)
        for changed in (
            others,
            [type(o)(o) * 0 if not torch.is_tensor(o) else o * 0 for o in others],
        ):
            plain, ours = model(x, *changed), new.model(x, *changed)
            if "slice" in name:
                assert not ours[len(plain) :].any()
                ours = ours[: len(plain)]
            torch.testing.assert_close(ours, plain)


def written(tmp_path, body, parameters="x"):
    path = tmp_path / "case.py"
    path.write_text(f"import torch\n\n\ndef model({parameters}):\n    {body}\n")
    return path


def test_torch_slices_from_the_end(tmp_path):
    import torch

    path = written(tmp_path, "return x[: int(n)].sum()", "x, n")
    case, x = load(path), torch.arange(6.0)
    report = vx.check_static(case.model, x, torch.tensor(2))
    new = with_suggestions(path, report, tmp_path, HEAD)
    for n in range(-8, 9):
        torch.testing.assert_close(new.model(x, torch.tensor(n)), case.model(x, n))


def test_torch_slice_by_a_number_of_another_line(tmp_path):
    import torch

    path = written(tmp_path, "n = int(factor * 5)\n    return x[:n]", "x, factor")
    case, x = load(path), torch.arange(24.0).reshape(8, 3)
    report = vx.check_static(case.model, x, torch.tensor(0.75))
    (finding,) = report.findings
    assert (finding.code, finding.line) == ("VX104", 5)
    assert finding.suggestion.startswith("n = torch.as_tensor(factor * 5).to(torch.int64)\n")
    new = with_suggestions(path, report, tmp_path, HEAD)
    for factor in (0.0, 0.5, 1.7, -0.5):
        plain, ours = case.model(x, factor), new.model(x, torch.tensor(factor))
        torch.testing.assert_close(ours[: len(plain)], plain)
        assert not ours[len(plain) :].any()


def test_torch_mask_is_suggested(tmp_path, capsys):
    path = tmp_path / "case.py"
    path.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x, n):\n"
        "        return x[x > 0].sum() * n\n"
    )
    command = ["check", f"{path}:Model", "--inputs", "f32[2,3]", "i64[]"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "VX105" in out
    assert "return torch.where(x > 0, x, 0).sum() * n" in out
    path.write_text(path.read_text().replace("x[x > 0]", "torch.where(x > 0, x, 0)"))
    assert main([*command, "--verify"]) == 0
    assert "1 program for 5 inputs" in capsys.readouterr().out


def test_checking_leaves_the_module_and_the_random_state(tmp_path):
    import torch

    path = tmp_path / "case.py"
    path.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.norm = torch.nn.BatchNorm1d(3)\n"
        "        self.drop = torch.nn.Dropout()\n\n    def forward(self, x):\n"
        "        if x.sum() > 0:\n            x = x * 2\n        return self.drop(self.norm(x))\n"
        "\n\nmodel = Model()\n\n\n"
        "def inputs():\n    return (torch.ones(4, 3),)\n"
    )
    case, state = load(path), torch.get_rng_state()
    before = {k: v.clone() for k, v in case.model.state_dict().items()}
    report = vx.check_static(case.model, *case.inputs())
    assert [f.suggestion for f in report.findings] == ["x = torch.where(x.sum() > 0, x * 2, x)"]
    assert all(torch.equal(v, before[k]) for k, v in case.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
