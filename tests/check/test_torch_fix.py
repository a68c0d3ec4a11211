"""`--fix` for PyTorch: the mended module is static, and computes the same on inputs of ours."""

from pathlib import Path

import pytest

import voxax as vx
from check.test_corpus import load
from voxax.check.fix import mend
from voxax.cli import main

pytestmark = [
    pytest.mark.torch,
    pytest.mark.lax_promotion,
    # Of PyTorch itself, when it is imported and when it exports.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

FOLDER = Path(__file__).parent / "cases" / "pytorch"


def mended(path):
    case = load(path)
    report = vx.check_static(case.model, *case.inputs())
    return case, mend(report, path, "model", case.model, case.inputs())


def loaded(fix, tmp_path):
    path = tmp_path / "mended.py"
    path.write_text(fix.text)
    return load(path)


@pytest.mark.parametrize(
    "name",
    [
        *("branch_tensor", "branch_scalar", "slice_tensor", "slice_scalar"),
        *("loop_tensor", "loop_scalar", "choice_of_two", "and_or_not_torch"),
    ],
)
def test_torch_model_is_mended(name, tmp_path):
    import torch

    case, fix = mended(FOLDER / f"{name}.py")
    assert not fix.refused, fix.refused
    assert not fix.left
    new = loaded(fix, tmp_path)
    if isinstance(case.model, torch.nn.Module):
        new.model.load_state_dict(case.model.state_dict())
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
            plain, ours = case.model(x, *changed), new.model(x, *changed)
            if "slice" in name:
                assert not ours[len(plain) :].any()
                ours = ours[: len(plain)]
            torch.testing.assert_close(ours, plain)


def test_torch_slices_from_the_end(tmp_path):
    import torch

    path = tmp_path / "case.py"
    path.write_text(
        "import torch\n\n\ndef model(x, n):\n    return x[: int(n)].sum()\n\n\n"
        "def inputs():\n    return torch.arange(6.0), torch.tensor(2)\n"
    )
    case, fix = mended(path)
    assert not fix.refused, fix.refused
    new = loaded(fix, tmp_path)
    for n in range(-8, 9):
        torch.testing.assert_close(
            new.model(torch.arange(6.0), torch.tensor(n)), case.model(torch.arange(6.0), n)
        )


def test_more_turns_than_the_bound_are_nan(tmp_path):
    import torch

    _, fix = mended(FOLDER / "loop_tensor.py")
    new = loaded(fix, tmp_path)
    assert torch.isnan(new.model(torch.ones(3), torch.tensor(1000))).all()


def test_torch_command_line(tmp_path, capsys):
    path = tmp_path / "case.py"
    path.write_text(
        "import torch\n\n\nclass Model(torch.nn.Module):\n    def forward(self, x, n):\n"
        "        return x[x > 0].sum() * n\n"
    )
    command = ["check", f"{path}:Model", "--inputs", "f32[2,3]", "i64[]"]
    assert main(command) == 1
    assert "VX105" in capsys.readouterr().out
    assert main([*command, "--fix", "--write"]) == 0
    assert "torch.where(x > 0, x, 0).sum()" in path.read_text()
    assert main([*command, "--verify"]) == 0
    assert "1 program for 5 inputs" in capsys.readouterr().out
