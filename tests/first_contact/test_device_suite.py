"""The suite that runs every kernel on a TPU, rehearsed on the CPU, and compiled for TPUs."""

import dataclasses
import functools
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from benchmarks.tpu import device_cases, device_results, device_suite
from benchmarks.tpu.demo_step import devices
from benchmarks.tpu.device_cases import Case, Scale, cases
from benchmarks.tpu.program import facts

from problems import needs_libtpu
from samples import slow_unless
from voxax.errors import InputError
from voxax.hardware import HardwareInfo
from voxax.hardware.info import facts_from
from voxax.hardware.pallas_checks import VARIABLE
from voxax.kernels.registry import kernels
from voxax.predict import TOPOLOGIES, compile_for

CHIP = HardwareInfo.from_facts(
    facts_from(
        "this test", platform="tpu", device_kind="TPU v5 lite", model="TPU v5e", cores=1,
        vmem_bytes=2**27, smem_bytes=2**20, matrix_unit=(128, 128),
    )
)  # fmt: skip
"""What the tests need of one, without a process that describes it."""


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """As in a fresh process: options set variables."""
    for name in ("VOXAX_AUTOTUNE", VARIABLE, "JAX_PLATFORMS"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    monkeypatch.setattr("voxax.hardware.describe", lambda which=None: CHIP)


@pytest.fixture
def run(tmp_path):
    """Run the suite with these options: its status."""

    def run(*options, out="device.json"):
        return device_suite.main(["--rehearse", "--out", str(tmp_path / out), *options])

    return run


@pytest.fixture
def fakes(monkeypatch):
    """Make the suite's cases some that add 1, by name; what each does on the way."""
    ran = []

    def make(**does):
        def one(name, do):
            def run(x):
                def called(x):
                    ran.append(name)
                    return x + np.float32(do(ran.count(name)) or 1)

                return jax.pure_callback(called, jax.ShapeDtypeStruct((2,), "float32"), x)

            return Case(
                name, f"code of {name}", run, (jax.ShapeDtypeStruct((2,), "float32"),),
                lambda: (np.zeros(2, np.float32),), lambda operands: operands[0] + 1,
                device_cases._unequal,
            )  # fmt: skip

        made = [one(name, do) for name, do in does.items()]
        monkeypatch.setattr(device_cases, "cases", lambda scale: made)
        ran.clear()
        return made

    make.ran = ran
    return make


def fine(turn):
    pass


def rows(tmp_path, name="device.json"):
    return device_results.read(tmp_path / name)["rows"]


def states(tmp_path):
    return {name: row["state"] for name, row in rows(tmp_path).items()}


def order(ran):
    return list(dict.fromkeys(ran))


def test_a_killed_run_goes_on_with_what_is_left(fakes, run, tmp_path, monkeypatch):
    """What ended the process comes last, after what failed."""

    def fails():
        raise ValueError("a bar | in it")

    def dying(case, *arguments, **more):
        if case.name == "second":
            raise KeyboardInterrupt
        return checked(case, *arguments, **more)

    made = fakes(first=fine, wrong=fine, second=fine, third=fine)
    made[1] = dataclasses.replace(made[1], make=fails)
    checked = device_suite._checked
    monkeypatch.setattr(device_suite, "_checked", dying)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert states(tmp_path) == {"first": "passed", "wrong": "failed", "second": "begun"}
    assert "a bar / in it" in (tmp_path / "device.md").read_text()
    monkeypatch.setattr(device_suite, "_checked", checked)
    fakes(first=fine, second=fine, wrong=fine, third=fine)
    assert run() == 0
    assert order(fakes.ran) == ["third", "wrong", "second"]
    assert set(states(tmp_path).values()) == {"passed"}
    assert all(row["seconds"] > 0 for row in rows(tmp_path).values())
    fakes.ran.clear()
    assert run() == 0
    assert fakes.ran == []


@pytest.mark.parametrize("changes", [{"code": "another"}, {"versions": "jax 0.1"}], ids=str)
def test_what_changed_runs_again(changes, fakes, run, tmp_path):
    fakes(first=fine, second=fine)
    assert run() == 0
    known = json.loads((tmp_path / "device.json").read_text())
    known["rows"]["second"] |= changes
    (tmp_path / "device.json").write_text(json.dumps(known))
    fakes.ran.clear()
    assert run() == 0
    assert order(fakes.ran) == ["second"]


def test_results_that_are_wrong_or_differ_fail(fakes, run, tmp_path, capsys):
    fakes(right=fine, wrong=lambda turn: 2, changing=lambda turn: 1 if turn == 1 else 3)
    assert run() == device_suite.FAILURES
    found = rows(tmp_path)
    assert "2 of 2 integers" in found["wrong"]["note"]
    assert found["changing"]["note"] == "two runs differ"
    assert "seconds" not in found["wrong"]
    assert "3 cases: 1 passed, 2 failed, 0 left" in capsys.readouterr().out


def test_checked_runs_have_rows_of_their_own(fakes, run, tmp_path):
    seen = []
    fakes(first=lambda turn: seen.append(os.environ[VARIABLE]))
    assert run() == run("--bounds-checks") == 0
    assert set(seen[:2]) == {""}
    assert seen[-1] == "on"
    found = rows(tmp_path)
    assert "seconds" in found["first"]
    assert "seconds" not in found["first" + device_suite.CHECKED]


def test_no_case_begins_after_its_time(fakes, run, tmp_path, capsys):
    fakes(first=fine, second=fine)
    assert run("--seconds", "-1") == 0
    assert "no time is left for 2 cases; start again" in capsys.readouterr().out


def test_a_case_that_does_not_end_ends_the_process(tmp_path):
    script = (
        "import time\n"
        "from benchmarks.tpu import device_suite\n"
        "with device_suite._ending_process(0.2, 'a kernel'):\n"
        "    time.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == device_suite.STUCK
    assert "a kernel did not end within 0.2 s: start again" in done.stderr


def test_without_a_tpu(capsys):
    if jax.default_backend() == "tpu":
        pytest.skip("this machine has a TPU")
    assert device_suite.main([]) == device_suite.NO_TPU
    said = capsys.readouterr().err
    for part in ("No TPU: JAX runs on", "voxax[tpu]", "--rehearse"):
        assert part in said


@pytest.mark.parametrize(
    ("options", "content", "said"),
    [
        (["--rehearse", "v3"], None, "TPU 'v3' is unknown: give v4, v5e"),
        (["--only", "no such"], None, "--only 'no such' leaves no case"),
        ([], '{"format": 1, "dev', "is no JSON"),
        ([], '{"format": 99}', "has the format 99, this version reads 1"),
        ([], "[]", "has the format list"),
        ([], '{"format": 1, "device": {}}', "has no hardware"),
        ([], {"device": {"kind": "TPU v6 lite"}}, "is of {'kind': 'TPU v6 lite'}, this is"),
        ([], {"rows": {"a": {"code": 1}}}, "row 'a': code is 1, expected str"),
    ],
    ids=str,
)
def test_mistakes_are_told(options, content, said, fakes, run, tmp_path, capsys):
    fakes(first=fine)
    if isinstance(content, dict):
        known = {"format": 1, "device": {}, "hardware": CHIP.to_json(), "rows": {}}
        content = json.dumps(known | content)
    if content is not None:
        (tmp_path / "device.json").write_text(content)
    assert run(*options) == device_suite.MISTAKE
    assert said in capsys.readouterr().err
    if content is not None:
        assert (tmp_path / "device.json").read_text() == content


def test_results_that_cannot_be_written(fakes, run, capsys):
    fakes(first=fine)
    assert run(out="no/folder.json") == device_suite.MISTAKE
    assert "cannot write results" in capsys.readouterr().err


GOOD = {"code": "a", "versions": "b", "state": "passed", "seconds": 1.0, "passes": 3}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seconds": float("nan")}, "seconds is nan, expected a finite number"),
        ({"seconds": -1.0}, "seconds is -1.0"),
        ({"seconds": "1"}, "seconds is '1', expected int or float"),
        ({"passes": True}, "passes is True"),
        ({"state": "fine"}, "state is 'fine', expected begun, passed"),
        ({"state": None}, "state is None"),
        ({"more": 1}, "unknown fields more"),
    ],
    ids=str,
)
def test_rows_are_validated(changes, said, tmp_path):
    path, known = tmp_path / "device.json", {"format": 1, "device": {}, "hardware": CHIP.to_json()}
    path.write_text(json.dumps(known | {"rows": {"a": GOOD}}))
    assert device_results.read(path)["rows"] == {"a": GOOD}
    path.write_text(json.dumps(known | {"rows": {"a": GOOD | changes}}))
    with pytest.raises(InputError, match=r"row 'a'") as error:
        device_results.read(path)
    assert said in str(error.value)


@functools.cache
def rehearsed():
    return cases(Scale(CHIP, rehearsal=True))


PARTS = 48
QUICK = (
    "sort,",
    "kernel map, 768 rows, stride 1",
    "depthwise implicit, forward, bfloat16, 768 x 16",
)


def test_a_rehearsal(run, tmp_path, monkeypatch):
    """Some cases as they are, through the whole suite."""
    quick = [case for name in QUICK for case in rehearsed() if case.name.startswith(name)]
    chosen = list({case.name: case for case in quick if "stride 2" not in case.name}.values())
    monkeypatch.setattr(device_cases, "cases", lambda scale: chosen)
    assert run() == 0
    assert set(states(tmp_path).values()) == {"passed"}
    with pytest.raises(InputError, match="is of a rehearsal"):
        device_results.measurements(tmp_path / "device.json")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_case_rehearsed(part, run, tmp_path, monkeypatch):
    some = rehearsed()[part::PARTS]
    if not some:
        pytest.skip("fewer cases than parts")
    monkeypatch.setattr(device_cases, "cases", lambda scale: some)
    assert run() == 0, rows(tmp_path)


@pytest.mark.slow
def test_several_devices_rehearsed(tmp_path):
    """In a process of its own, as the command starts."""
    out = tmp_path / "device.json"
    command = [sys.executable, device_suite.__file__, "--rehearse", "--only", "each", "--out", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stdout + done.stderr
    (name,) = rows(tmp_path)
    assert name.endswith("on each of 2 devices")


def test_every_kernel_has_cases():
    """Those of the registry, all their products, at sizes where they copy and where they do not."""
    found = cases(Scale(CHIP))
    for kernel in kernels():
        if kernel.platform == "tpu":
            own = [c.name for c in found if c.name.startswith(f"{kernel.kind} {kernel.name}, ")]
            products = {*kernel.products, *(["gradients"] if kernel.fused else [])}
            assert {name.split(", ")[1] for name in own} == products
    dense = [case for case in found if case.name.startswith("dense")]
    copies = {dict(c.parameters)["resident"] for c in dense if "524,288" in c.name}
    small = [dict(c.parameters) for c in dense if "131,072 x 64" in c.name]
    assert {parameters["body"] for parameters in small} == {"windows", "items"}
    kept = {parameters["resident"] for parameters in small if parameters["body"] == "windows"}
    assert (copies, kept) == ({0}, {1})


def test_sizes_are_those_of_the_hardware():
    small = dataclasses.replace(CHIP, vmem_bytes=2**26)
    assert [Scale(CHIP).rows(c) for c in (64, 256)] == [524_288, 131_072]
    assert [Scale(small).rows(c) for c in (64, 256)] == [262_144, 65_536]
    with pytest.raises(InputError, match="vector memory of some is unknown"):
        Scale(HardwareInfo(platform="tpu", device_kind="some")).rows(64)


def test_codes_follow_the_modules():
    codes = {case.name.split(" ")[0]: case.code for case in rehearsed()}
    assert len(set(codes.values())) == len(codes)


@pytest.mark.tpu_compile
@needs_libtpu
@pytest.mark.parametrize(
    ("chip", "part"),
    [slow_unless(part == 0, chip, part) for chip in ("v5e", "v6e", "7x") for part in range(PARTS)],
)
def test_cases_compile_at_their_real_size(chip, part, monkeypatch):
    monkeypatch.undo()  # the chip as it is described
    found = cases(Scale(facts(TOPOLOGIES[chip])))
    assert len(found) <= PARTS
    for case in found[part::PARTS]:
        program = compile_for(TOPOLOGIES[chip], case.run, *case.shapes)
        if case.parameters or "sort" in case.name:
            assert "tpu_custom_call" in program.as_text()


@pytest.mark.slow
@pytest.mark.tpu_compile
@needs_libtpu
@pytest.mark.parametrize("topology", ["v5e:2x4", "v6e:2x2", "tpu7x:2x2x1"])
def test_a_step_on_several_devices_compiles(topology, monkeypatch):
    monkeypatch.undo()
    case = cases(Scale(facts(topology), devices=tuple(devices(topology))))[-1]
    assert case.devices == len(devices(topology))
    text = jax.jit(case.run).lower(*case.shapes).compile().as_text()
    assert "all-reduce" in text
    assert "tpu_custom_call" in text


@pytest.mark.tpu_compile
@needs_libtpu
def test_what_was_measured_is_predicted(tmp_path, monkeypatch, capsys):
    """A file of one case with a made-up time: its prediction, its row, its band."""
    monkeypatch.undo()
    hardware = facts(TOPOLOGIES["v5e"])
    case = next(c for c in cases(Scale(hardware)) if "resident=1" in c.name)
    device = {"kind": hardware.device_kind, "chip": "v5e", "rehearsal": False}
    path = tmp_path / "device.json"
    results = device_results.Results(path, device, hardware)
    row = {"code": case.code, "versions": "any", "state": "passed", "seconds": 1e-3, "passes": 300}
    results.set(case.name, row)
    results.set("gone", row | {"code": "another"})
    assert device_suite.main(["--predict-only", "--out", str(path)]) == 0
    assert f"predicted {case.name}" in capsys.readouterr().out
    predicted = rows(tmp_path)[case.name]["predicted"]
    assert 1e-4 < predicted < 1e-1
    assert "gone" not in [c.what for c in device_results.measurements(path)[0]]
    (found,), others = device_results.measurements(path)
    assert (found.what, found.measured, others) == (case.name, 1e-3, ["gone"])
    assert found.band[0] < 1 < found.band[1]
