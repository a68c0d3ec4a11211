"""What `--fix` mends is static and computes the same; what would not be the same stays."""

import jax
import jax.numpy as jnp
import pytest

import voxax as vx
from check.test_corpus import CASES, load
from voxax.check import gradients
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
    assert bool(fix.notes) == name.startswith("loop")  # which have no reverse mode any more
    assert fix.report.verdict == "static", str(fix.report)
    assert fix.diff().startswith("--- a/")


def test_lost_reverse_mode_is_told(capsys):
    path = BY_NAME["loop_count_tensor"]
    main(["check", f"{path}:model", "--inputs", "@inputs", "--fix"])
    assert "is mended; it has no gradient in reverse mode" in capsys.readouterr().out


def test_gradients_are_compared():
    def old(x):
        return jnp.sum(x**2)

    def new(x):  # the same values, and half of the gradient
        return jnp.sum(jax.lax.stop_gradient(x) * x)

    def unsafe(x):
        return jnp.sum(jnp.where(x == 0, 0.0, jnp.sqrt(x**4)))

    x = [jnp.asarray([0.0, 1.0, -2.0])]
    assert gradients.compare(old, old, x) == ("", "")
    assert gradients.compare(old, new, x) == ("its gradients differ", "")
    assert "NaN" in gradients.compare(old, unsafe, x)[0]
    assert gradients.compare(unsafe, old, x) == ("", "")


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


def tried(tmp_path, text, *inputs):
    path = tmp_path / "case.py"
    path.write_bytes(text.encode())
    case = load(path)
    report = vx.check_static(case.model, *inputs)
    return path, mend(report, path, "model", case.model, inputs)


def test_side_that_no_input_takes_is_compared(tmp_path):
    # Both sides of `cond` are traced: the number of calls, which one side shows, is another.
    text = (
        "SEEN = []\n\n\ndef noted(x):\n    SEEN.append(1)\n    return x * len(SEEN)\n\n\n"
        "def counted(x):\n    SEEN.append(1)\n    return x\n\n\n"
        "def model(x):\n    if x.sum() > 1e6:\n        return noted(x)\n    return counted(x)\n"
    )
    _, fix = tried(tmp_path, text, jnp.ones(3))
    assert not fix.kept, fix.diff()
    assert "if the condition is True" in fix.refused[0][1]


def test_lines_are_counted_as_python_does(tmp_path):
    text = (
        "import jax\r\nTEXT = 'a\x1cb'\r\n\x0c\r\n"
        "def model(x):\r\n    if x.sum() > 0:\r\n        x = x * 2\r\n    return x\r\n"
    )
    path, fix = tried(tmp_path, text, jnp.ones(3))
    assert len(fix.kept) == 1
    fix.write()
    assert path.read_bytes().decode() == text.replace(
        "if x.sum() > 0:\r\n        x = x * 2",
        "x = jax.lax.cond(x.sum() > 0, lambda: x * 2, lambda: x)",
    )


def test_imports_do_not_go_into_docstrings(tmp_path):
    text = '"""As\nfrom the paper."""\n\nimport numpy\n\n\n'
    text += "def model(x):\n    if x.sum() > 0:\n        x = x * 2\n    return x\n"
    _, fix = tried(tmp_path, text, jnp.ones(3))
    assert len(fix.kept) == 1
    assert '"""\n\nimport jax\nimport numpy\n' in fix.text


def test_loop_that_our_inputs_never_leave(tmp_path, monkeypatch):
    monkeypatch.setattr("voxax.check.equal.SECONDS", 1.0)
    text = (
        "def model(x):\n    if x.sum() > 0:\n        x = x * 2\n"
        "    while float(x.sum()) < 10:\n        x = x * 2\n    return x\n"
    )
    _, fix = tried(tmp_path, text, jnp.ones(1))
    assert 1 <= fix.trials < 8


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
