"""The report: ignores, formats, submodules, examples that differ, verification."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from check.test_corpus import CASES
from voxax.check import CODES, static_report
from voxax.cli import main

pytestmark = pytest.mark.lax_promotion


def checked(name, **options):
    return vx.check_static(CASES[name].build(), *CASES[name].inputs(), **options)


def test_ignores_keep_their_reason():
    report = checked("ignored")
    assert [f.ignored for f in report.findings] == ["runs eagerly, once a day", "this too"]
    assert report.verdict == "static"
    assert not report.fails("note")


def test_finding_says_all():
    (finding,) = checked("branch_on_sum_tensor").findings
    assert finding.column == 8
    text, caret = finding.excerpt().splitlines()
    assert text[7 : 7 + caret.count("^")] == "jnp.sum(output) > 0"
    assert finding.arguments == ("x",)
    assert finding.depends_on[-1] == "argument x"
    first = CASES["branch_on_sum_tensor"].first
    assert f"line {first + 3}" in finding.depends_on  # the product in `linear`
    assert "jax.lax.cond" in finding.suggestion


def test_formats():
    report = checked("many_faults")
    (plain,) = json.loads(static_report.as_json([report]))
    assert plain["verdict"] == "not static"
    assert [f["code"] for f in plain["findings"]] == [f.code for f in report.findings]
    log = json.loads(static_report.as_sarif([report, checked("ignored")]))
    assert log["version"] == "2.1.0"
    results = log["runs"][0]["results"]
    rules = [rule["id"] for rule in log["runs"][0]["tool"]["driver"]["rules"]]
    assert all(rules[result["ruleIndex"]] == result["ruleId"] for result in results)
    assert sum("suppressions" in result for result in results) == 2
    lines = static_report.as_github([report]).splitlines()
    assert len(lines) == len(report.findings)
    assert lines[0].startswith("::error file=")
    assert f"line={report.findings[0].line}" in lines[0]


class Gate(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)

    def __call__(self, x):
        y = self.linear(x)
        return y if jnp.sum(y) > 0 else x  # the fault


class Host(nnx.Module):
    def __call__(self, x):
        return jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(3, 3, rngs=rngs)
        self.gates = nnx.List([Gate(rngs), Gate(rngs)])
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.host = Host()

    def __call__(self, x):
        x = self.first(x)
        for gate in self.gates:
            x = gate(x)
        return self.host(self.norm(x))


def test_submodules_have_verdicts():
    network = Network(nnx.Rngs(0))
    before = jax.tree.map(np.array, nnx.state(network))
    report = vx.check_static(network, np.ones((2, 3), np.float32))
    assert report.verdict == "not static"
    assert report.modules["gates.0"] == "not static"
    assert report.modules["first"] == "static"
    assert report.modules["gates.0.linear"] == "static"
    assert report.modules["norm"] == "static"
    by_code = {f.code: f for f in report.findings}
    assert by_code["VX101"].module.startswith("gates.")
    assert by_code["VX302"].module == "host"
    after = jax.tree.map(np.array, nnx.state(network))
    jax.tree.map(np.testing.assert_array_equal, before, after)
    assert type(network.gates[0]) is Gate


def test_examples_that_differ():
    def model(x, y):
        return x["a"] * y

    first = ({"a": np.ones(3, np.float32)}, jnp.float32(1))
    shape = ({"a": np.ones(4, np.float32)}, jnp.float32(1))
    weak = ({"a": np.ones(3, np.float32)}, 1.0)
    structure = ({"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}, jnp.float32(1))
    report = vx.check_static(model, *first, also=[shape, weak, structure])
    assert {f.code for f in report.findings} == {"VX202", "VX203", "VX204"}
    assert "x['a']" in next(f for f in report.findings if f.code == "VX202").message
    assert report.programs == 4
    assert report.verdict == "static"


def test_programs_per_value():
    case = CASES["loop_count_scalar"]
    x, _ = case.inputs()
    report = vx.check_static(case.build(), x, 3, also=[(x, 4), (x, 3)])
    assert report.static_arguments == ("reps",)
    assert report.programs == 2


def test_command_line(tmp_path, capsys):
    path = CASES["loop_count_tensor"].alone(tmp_path)
    path.write_text(f"{path.read_text()}\n\ndef inputs():\n    return jnp.ones(4), jnp.int32(3)\n")
    assert main(["check", f"{path}:model", "--inputs", "f32[4]", "3"]) == 0
    assert "static per value" in capsys.readouterr().out
    assert main(["check", f"{path}:model", "--inputs", "@inputs"]) == 1
    out = capsys.readouterr().out
    assert "VX103" in out
    assert "jax.lax.fori_loop" in out
    command = ["check", f"{path}:model", "--inputs", "@inputs", "--format", "json"]
    assert main(command) == 1
    assert json.loads(capsys.readouterr().out)[0]["findings"][0]["code"] == "VX103"


def test_mistakes_are_told(capsys):
    path = CASES["loop_count_tensor"].path
    assert main(["check", "nowhere.py:model"]) == 2
    assert main(["check", f"{path}:absent"]) == 2
    assert main(["check", f"{path}:loop_count_tensor", "--inputs", "f33[2]"]) == 2
    assert "f33" in capsys.readouterr().err
    with pytest.raises(vx.InputError, match="example inputs are values"):
        vx.check_static(jnp.sin, jax.ShapeDtypeStruct((3,), jnp.float32))
    with pytest.raises(vx.InputError, match="a function or a module"):
        vx.check_static(3)


def test_every_code_is_documented(request):
    pages = request.config.rootpath / "docs" / "check"
    assert {page.stem for page in pages.glob("VX*.md")} == set(CODES)


def written(tmp_path):
    path = tmp_path / "case.py"
    path.write_text("def model(x):\n    return x\n")
    return ["check", f"{path}:model", "--inputs", "f32[3]"]


def test_the_source_is_never_edited(tmp_path, capsys):
    assert main(written(tmp_path)) == 0
    with pytest.raises(SystemExit) as status:
        main([*written(tmp_path), "--fix"])
    assert status.value.code == 2
    assert "--fix" in capsys.readouterr().err


def test_mistake_of_the_checker_has_its_own_status(tmp_path, monkeypatch, capsys):
    def fails(*args, **kwargs):
        raise RuntimeError("a mistake")

    monkeypatch.setattr("voxax.check.check_static", fails)
    assert main(written(tmp_path)) == 3
    assert "a mistake of the checker" in capsys.readouterr().err
    for also in ([3], [jnp.ones(3)], "ab"):
        with pytest.raises(vx.InputError, match=r"also.*write"):
            vx.check_static(jnp.sin, jnp.ones(3), also=also)


def test_inputs_larger_than_memory(capsys):
    target = f"{CASES['loop_count_tensor'].path}:loop_count_tensor"
    assert main(["check", target, "--inputs", "f32[100000000000000]", "0.5"]) == 2
    said = capsys.readouterr().err
    assert "the input f32[100000000000000]" in said
    assert "a smaller shape checks the same program" in said
