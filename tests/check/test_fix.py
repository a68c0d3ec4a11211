"""What `--fix` mends is static and computes the same; what would not be the same stays."""

import pytest

import voxax as vx
from check.test_corpus import CASES, load
from voxax.check.fix import mend
from voxax.cli import main

pytestmark = pytest.mark.lax_promotion

BY_NAME = {path.stem: path for path in CASES}
# The three models, each with an array and with a Python number.
MODELS = [
    "branch_on_sum_tensor",
    "branch_on_sum_scalar",
    "slice_by_factor_tensor",
    "slice_by_factor_scalar",
    "loop_count_tensor",
    "loop_count_scalar",
]


def mended(path):
    case = load(path)
    report = vx.check_static(case.model, *case.inputs())
    return mend(report, path, "model", case.model, case.inputs())


@pytest.mark.parametrize("name", MODELS)
def test_model_is_mended(name):
    fix = mended(BY_NAME[name])
    assert not fix.refused
    assert not fix.left
    assert fix.report.verdict == "static", str(fix.report)
    assert fix.diff().startswith("--- a/")


def written(tmp_path, text):
    path = tmp_path / "case.py"
    path.write_text("import jax.numpy as jnp\nimport numpy as np\n\n\n" + text)
    return path


INPUTS = "\n\ndef inputs():\n    return (np.arange(-3, 5, dtype=np.float32),)\n"


def test_what_differs_is_refused(tmp_path):
    # Both sides of `cond` are traced, and the side that is not taken counts too.
    path = written(
        tmp_path,
        "CALLS = []\n\n\ndef counted(x):\n    CALLS.append(1)\n    return x * len(CALLS)\n\n\n"
        "def model(x):\n    if x.sum() > 0:\n        return counted(x)\n    return -counted(x)\n"
        + INPUTS,
    )
    fix = mended(path)
    assert fix.text == fix.before
    assert fix.refused
    assert fix.report is None


def test_command_line_fixes(tmp_path, capsys):
    text = "def model(x):\n    if x.sum() > 0:\n        x = x * 2\n    return x\n"
    path = written(tmp_path, text + INPUTS)
    before = path.read_text()
    command = ["check", f"{path}:model", "--inputs", "@inputs", "--fix"]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "+    x = jax.lax.cond(" in out
    assert "then: static" in out
    assert path.read_text() == before
    assert main([*command, "--write"]) == 0
    assert "import jax\n" in path.read_text()
    assert main(command) == 0
    assert "nothing to mend" in capsys.readouterr().out


def test_options_that_do_not_go_together(tmp_path):
    path = written(tmp_path, "def model(x):\n    return x\n" + INPUTS)
    target = ["check", f"{path}:model", "--inputs", "@inputs"]
    assert main([*target, "--write"]) == 2
    assert main([*target, "--fix", "--format", "json"]) == 2


def test_mistake_of_the_checker_has_its_own_status(tmp_path, monkeypatch, capsys):
    def fails(*args, **kwargs):
        raise RuntimeError("a mistake")

    monkeypatch.setattr("voxax.check.check_static", fails)
    path = written(tmp_path, "def model(x):\n    return x\n" + INPUTS)
    assert main(["check", f"{path}:model", "--inputs", "@inputs"]) == 3
    assert "a mistake of the checker" in capsys.readouterr().err
