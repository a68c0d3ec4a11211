"""Check that no target, file or argument breaks the checker."""

import dataclasses
import functools
import io
import itertools
import json
import sys
import threading
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import voxax as vx
from check.corpus import load
from voxax.check import recording, static_report, time_limit
from voxax.check.programs import vary
from voxax.check.source import Site, place, raised_frames, relative
from voxax.cli import main

pytestmark = pytest.mark.lax_promotion

X = np.ones(3, np.float32)


def codes(report):
    return [f.code for f in report.findings]


def test_what_is_below_jit_is_checked():
    def row(x):
        return x * 2 if x.shape == () else x[:0].reshape(3, 3)  # only sound for single values

    assert vx.check_static(jax.jit(jax.vmap(row)), X).verdict == "static"

    def loss(x):
        return jnp.sum(jnp.sqrt(x))

    report = vx.check_static(jax.jit(jax.value_and_grad(loss)), X)
    assert report.verdict == "static"
    assert report.arguments.leaves[0].name == "x"

    def branching(function):
        @functools.wraps(function)
        def outer(x):
            return function(x) if x.sum() > 0 else x

        return outer

    assert codes(vx.check_static(jax.jit(branching(loss)), X)) == ["VX101"]


class Scaled:
    @functools.partial(jax.jit, static_argnums=(0, 2))
    def power(self, x, n):
        return sum([x] * n)


def test_jitted_method():
    assert vx.check_static(Scaled().power, X, 3).static_arguments == ("n",)


@dataclasses.dataclass
class Options:  # neither a pytree nor hashable
    power: int = 2


def test_undeclared_static_arguments_are_told():
    def model(x, mode, activation):
        return activation(x) if mode == "double" else x

    report = vx.check_static(model, X, "double", jnp.tanh)
    assert report.verdict == "static per value"
    assert report.static_arguments == ("activation", "mode")

    report = vx.check_static(lambda x, options: x**options.power, X, Options())
    assert codes(report) == ["VX190"]
    assert "Options" in report.findings[0].message
    assert report.verdict == "not static"


def test_arguments_are_not_written_into():
    def model(x, y):
        x[0] = 5.0
        y = y + 1
        return jnp.concatenate([x, y]).reshape(2, 2)

    x, y = np.zeros(3, np.float32), np.zeros(3, np.float32)
    report = vx.check_static(model, x, y)
    np.testing.assert_array_equal(x, 0)
    assert codes(report)[0] == "VX113"


def test_loops_that_need_jit_are_no_fault_of_the_function():
    def model(x):
        if x.sum() > 0:
            x = x + 1
        raise ValueError("this fails with disable_jit, and not otherwise")

    assert "VX191" not in codes(vx.check_static(model, X))


def branches(x):
    for _ in range(8):
        x = x + 1 if x.sum() > 0 else x - 1
    if x[0] > 0:
        x = x + 1
    if x[1] > 0:
        x = x + 1
    return x


def spins(x):
    turns = 0
    while turns >= 0:  # asks nothing of JAX
        turns = turns + 0
    return x


def grows_for_ever(x):
    while True:
        x = x + 1


def spins_by_number(x, n):
    while n > 0:
        try:
            n = n + 0 * sum(range(9))
        except Exception:
            n = 1
    return x


ENDLESS = [(spins, (X,)), (grows_for_ever, (X,)), (spins_by_number, (X, 2))]


@pytest.mark.parametrize(("function", "inputs"), ENDLESS, ids=lambda v: getattr(v, "__name__", ""))
def test_endless_loops_end_in_time(function, inputs):
    begin = time.monotonic()
    report = vx.check_static(function, *inputs, seconds=1.5)
    assert time.monotonic() - begin < 20  # of which 1.5 are allowed; the machine may be busy
    assert report.verdict == "not static"
    (last,) = (f for f in report.findings if f.code == "VX191")
    assert last.file == __file__
    assert "takes longer than 1.5 s" in last.message
    first_line = function.__code__.co_firstlineno
    assert first_line < last.line < first_line + 10


@pytest.mark.parametrize(
    ("error", "file"), [(time_limit.RanAway(), __file__), (ValueError(), "/site-packages/hooks.py")]
)
def test_a_limit_in_an_audit_hook_is_the_users_line(error, file):
    """Installed packages have such hooks, and JAX does what Python calls them for."""
    scope = {"error": error}
    exec(compile("def hook(_):\n    raise error\n", "/site-packages/hooks.py", "exec"), scope)
    with pytest.raises(type(error)) as raised:
        jax.tree.map(scope["hook"], [1])
    assert place(raised_frames(raised.value)).site.file == file


def test_a_loop_that_ignores_exceptions_ends_in_silence(capsys):
    def spin():
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            pass

    class Slow:
        def __del__(self):  # Python ignores what is raised in here, and prints it
            spin()

    def deletes(x):
        while True:
            Slow()
            spin()

    reported = sys.unraisablehook
    report = vx.check_static(deletes, X, seconds=0.5)
    assert "takes longer than 0.5 s" in report.findings[-1].message
    assert sys.unraisablehook is reported
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), "3"])
def test_time_limit_is_positive(seconds):
    with pytest.raises(vx.InputError, match="positive"):
        vx.check_static(jnp.sin, X, seconds=seconds)


def test_what_follows_from_an_answer_depends_on_something():
    def model(x, y):
        n = int(x.argmax())
        if jnp.zeros(n + 1).sum() > 0:  # its size is the answer
            x = x + 1
        return x + y

    by_line = {f.line: f for f in vx.check_static(model, X, X).findings}
    assert not [f for f in by_line.values() if "depends on no argument" in f.message]

    def constant(x):
        if jnp.zeros(3).sum() > 0:
            x = x + 1
        return x if jnp.ones(2).sum() > 0 else -x

    found = vx.check_static(constant, X).findings
    assert len(found) == 2
    assert all("depends on no argument" in f.message for f in found)


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (lambda x, n: jnp.repeat(x, n), "total_repeat_length="),
        (lambda x, n: jnp.bincount(n), "length="),
        (lambda x, n: jax.ops.segment_sum(x, n), "num_segments="),
        (lambda x, n: jnp.unique(n), "size="),
        (lambda x, n: jnp.union1d(n, n), "size="),
    ],
)
def test_advice_names_an_argument_that_the_function_has(call, argument):
    (finding,) = vx.check_static(call, X, np.array([1, 0, 2], np.int32)).findings
    assert f"the argument {argument} with a bound" in finding.fix
    assert ("fill_value=" in finding.fix) == (argument == "size=")


def test_incomplete_search_is_told(monkeypatch):
    assert vx.check_static(branches, X).incomplete == ""
    monkeypatch.setattr(recording, "MOST_PASSES", 2)
    report = vx.check_static(branches, X)
    assert "combinations" in report.incomplete
    assert report.incomplete in str(report)
    assert json.loads(static_report.as_json([report]))[0]["incomplete"] == report.incomplete


def test_time_limit_binds_inside_a_pass():
    def endless(x):
        while True:
            x = x + 1
            time.sleep(0.01)
            if x.sum() < 0:
                return x

    started = time.monotonic()
    subject = vx.check.subject.subject_of(endless)
    arguments = vx.check.subject.take_apart(subject, vx.check.inputs.Inputs((X,), {}))
    with time_limit.within(0.5):
        *_, incomplete = recording.record_all(endless, arguments)
    assert time.monotonic() - started < 10
    assert "longer" in incomplete


def test_unrolled_more_often_one_time():
    turns = itertools.count(1)

    def model(x):
        for _ in range(next(turns)):
            x = x + 1
        return x

    assert codes(vx.check_static(model, X)) == ["VX205"]


KEPT = []


def keeps(x):
    y = jnp.sin(x)
    KEPT.append(y + 1)
    return y


def keeps_in_vmap(x):
    return jax.vmap(keeps)(x)


def keeps_and_branches(x):
    return keeps(x) if x.sum() > 0 else x


@pytest.mark.parametrize("model", [keeps, keeps_in_vmap, keeps_and_branches])
def test_leaks_are_found_at_their_line(model):
    KEPT.clear()
    found = [f for f in vx.check_static(model, X).findings if f.code == "VX301"]
    KEPT.clear()
    assert [f.line - keeps.__code__.co_firstlineno for f in found] == [2]
    assert "by the global `KEPT`" in found[0].message


def test_ignored_beside_another_comment(tmp_path):
    path = tmp_path / "case.py"
    path.write_text(
        "def model(x):\n    if x.sum() > 0:  # noqa: E501  # voxax: ignore[VX101] why\n"
        "        x = x * 2\n    return x\n"
    )
    (finding,) = vx.check_static(load(path).model, X).findings
    assert finding.ignored == "why"


def test_functions_of_the_host_have_no_twin():
    def saves(x):
        np.save(io.BytesIO(), x)
        return x

    (finding,) = [f for f in vx.check_static(saves, X).findings if f.code == "VX109"]
    assert "jnp.save" not in finding.fix
    (finding,) = vx.check_static(lambda x: x + np.asarray(x), X).findings
    assert finding.fix.startswith("jnp.asarray computes the same")


def test_integers_are_not_mixed():
    coords = np.arange(30, dtype=np.int32).reshape(10, 3)
    for seed in range(3):
        np.testing.assert_array_equal(vary(coords, seed), coords)
        np.testing.assert_array_equal(vary(coords > 4, seed), coords > 4)
    features = np.arange(9, dtype=np.float32)
    assert not np.array_equal(vary(features, 1), features)


def test_warnings_of_other_threads_are_shown(monkeypatch):
    shown, inside, done = [], threading.Event(), threading.Event()

    def model(x):
        inside.set()
        done.wait(10)
        warnings.warn("of the function itself", UserWarning, stacklevel=1)
        return x

    def other():
        inside.wait(10)
        warnings.warn("of another thread", UserWarning, stacklevel=1)
        done.set()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", lambda m, *_, **__: shown.append(str(m)))
        thread = threading.Thread(target=other)
        thread.start()
        assert vx.check_static(model, X).verdict == "static"
        thread.join()
        assert {"of another thread", "of the function itself"} <= set(shown)


def sarif_location(file):
    finding = vx.check.Finding("VX101", Site(file, 3, 1, 3, 2, "model"), "text")
    report = vx.check_static(lambda x: x, X)
    log = json.loads(static_report.as_sarif([dataclasses.replace(report, findings=(finding,))]))
    (location,) = log["runs"][0]["results"][0]["locations"]
    return location


def test_places_in_sarif(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def uri(file):
        return sarif_location(str(file))["physicalLocation"]["artifactLocation"]["uri"]

    assert uri(tmp_path / "a b" / "ü#.py") == "a%20b/%C3%BC%23.py"
    assert uri("/elsewhere/a b.py") == "file:///elsewhere/a%20b.py"
    assert "physicalLocation" not in sarif_location("<stdin>")
    assert sarif_location("<ipython-input-1>")["logicalLocations"][0]["name"] == "model"


def test_typed_in_by_hand_has_no_file_for_github():
    finding = vx.check.Finding("VX101", Site("<stdin>", 3, 1, 3, 2, "model"), "text")
    report = dataclasses.replace(vx.check_static(lambda x: x, X), findings=(finding,))
    assert static_report.as_github([report]).startswith("::error title=VX101::text")


def test_another_drive(monkeypatch):
    def fails(path):
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr("os.path.relpath", fails)
    assert relative("/a/b.py") == "/a/b.py"


@pytest.mark.parametrize(
    ("text", "inputs", "told"),
    [
        ("import jax\nraise RuntimeError('no device')\n", (), "RuntimeError: no device"),
        ("import sys\nsys.exit(0)\n", (), "SystemExit"),
        ("def model(:\n", (), "SyntaxError"),
        (
            "def given():\n    return 1 / 0\n\n\ndef model(x):\n    return x\n",
            ("--inputs", "@given"),
            "ZeroDivisionError",
        ),
    ],
)
def test_errors_of_the_file_are_status_2(text, inputs, told, tmp_path, capsys):
    (tmp_path / "case.py").write_text(text)
    assert main(["check", f"{tmp_path}/case.py:model", *inputs]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("format", ["json", "sarif"])
def test_what_the_file_prints_is_not_in_the_report(format, tmp_path, capsys):
    (tmp_path / "case.py").write_text(
        "print('imported')\n\n\ndef model(x):\n    print('called')\n    return x\n"
    )
    command = ["check", f"{tmp_path}/case.py:model", "--inputs", "f32[3]", "--format", format]
    assert main(command) == 0
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert "imported" in captured.err
    assert "called" in captured.err


def grows_in_while(x):
    return jax.lax.while_loop(lambda x: x[0] > 0, lambda x: jnp.concatenate([x, x]), x + 1)


def grows_in_fori(x):
    return jax.lax.fori_loop(0, 60, lambda _, x: jnp.concatenate([x, x]), x).sum()


def grows_in_python(x):
    while x.sum() > 0:
        x = jnp.concatenate([x, x]) + 1
    return x


def grows_at_once(x):
    y = jnp.broadcast_to(x + 1, (1 << 38, *x.shape))
    return x if y.sum() > 0 else -x


def memory_kib(name):
    (line,) = [x for x in Path("/proc/self/status").read_text().splitlines() if name in x]
    return int(line.split()[1])


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (grows_in_while, "VX190"),
        (grows_in_fori, "VX190"),
        (grows_in_python, "VX102"),
        (grows_at_once, "VX101"),
    ],
)
def test_values_that_grow_take_no_memory(model, code):
    before = memory_kib("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # Linux forgets the peak so far
    started = time.monotonic()
    report = vx.check_static(model, X, seconds=5)
    assert code in codes(report), str(report)
    assert report.verdict == "not static"
    assert time.monotonic() - started < 20
    assert memory_kib("VmHWM") - before < 6 << 20


def frozen_under_checkify(x):
    def inner(x):
        checkify.check(x.sum() > 0, "no sum")
        return x * np.random.rand()  # noqa: NPY002

    return checkify.checkify(inner)(x)


def test_what_python_draws_under_checkify_is_found():
    report = vx.check_static(frozen_under_checkify, X)
    (finding,) = report.findings
    assert finding.code == "VX205"
    assert "np.random" in finding.excerpt()


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float16", "complex64"])
def test_constants_of_every_dtype_before_a_where(dtype):
    """The sign of a divisor is that of the numbers that were written into the program."""

    def model(x):
        divisor = jnp.sum(jnp.full(3, 1, dtype)).real.astype(jnp.float32)
        keys = jax.random.split(jax.random.key(0), 3)
        drawn = jax.random.uniform(keys[jnp.argmax(x)])
        return jnp.where(x > 0, jnp.sqrt(jnp.maximum(x, 1)) / divisor + drawn, 0.0)

    assert vx.check_static(model, X).verdict == "static"
