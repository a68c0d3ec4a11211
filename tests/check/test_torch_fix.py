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


WRONG = {
    "dtype": ("if x.sum() > 0:\n        return x.half()\n    return x", "float32 in place of"),
    "shape": ("if x.sum() > 0:\n        return x\n    return torch.zeros(1)", "in place of (1,)"),
    "rare": ("if x.sum() > 1e6:\n        return x.sum()\n    return x", "condition is True"),
    "rare choice": ("return x.sum() if x.sum() > 1e6 else x", "condition is True"),
    "no else": ("if x.sum() < 1e6:\n        x = x[:1]\n    return x", "in place of (1,)"),
    "gradient": ("if x.min() > 0:\n        return x.sqrt()\n    return x * 0", "gradient is NaN"),
    "written": ("if x.sum() > 0:\n        x += 1\n    return x * 1", "in an argument"),
}


@pytest.mark.parametrize("name", WRONG)
def test_torch_what_differs_is_refused(name, tmp_path):
    import torch

    body, reason = WRONG[name]
    path = tmp_path / "case.py"
    path.write_text(
        f"import torch\n\n\ndef model(x):\n    {body}\n\n\n"
        "def inputs():\n    return (torch.ones(3),)\n"
    )
    _, fix = mended(path)
    assert not fix.kept, fix.diff()
    assert reason in fix.refused[0][1]
    assert fix.text == fix.before
    assert torch.is_grad_enabled()


def test_mending_leaves_the_module_and_the_random_state(tmp_path):
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
    fix = mend(report, path, "model", case.model, case.inputs())
    assert len(fix.kept) == 1, fix.refused
    assert all(torch.equal(v, before[k]) for k, v in case.model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


def test_torch_bfloat16_is_mended(tmp_path):
    path = tmp_path / "case.py"
    path.write_text(
        "import torch\n\n\ndef model(x):\n    if x.sum() > 0:\n        x = x * 2\n    return x\n"
        "\n\ndef inputs():\n    return (torch.ones(3, dtype=torch.bfloat16),)\n"
    )
    _, fix = mended(path)
    assert len(fix.kept) == 1, fix.refused


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
