"""Where nothing is requested, a kernel that is known to win is taken and nothing is measured."""

import numpy as np
import pytest

import problems
import voxax as vx
from problems import needs_native
from voxax.kernels import names
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import admitted, choose, foresee, measure, record_choices, tuner

pytestmark = needs_native


class Measuring(Exception):
    """Raised in place of a measurement."""


@pytest.fixture(autouse=True)
def refuse(monkeypatch, tmp_path):
    """An empty cache, no setting, and no measurements."""

    def measured(*arguments):
        raise Measuring

    for name in ("VOXAX_AUTOTUNE", "VOXAX_AUTOTUNE_BUDGET", "VOXAX_FWD_ALGO_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "_spent", 0.0)
    monkeypatch.setattr(tuner, "_objection", lambda *_: None)
    # Not _measure itself, whose failures lead to the default.
    monkeypatch.setattr(tuner, "allowance", measured)


def problem(product="forward"):
    sizes = 300, 300, 27, 8, 8, 1
    return problems.make_problem(product, "dense", *sizes, "float32", "highest", False, "cpu")


@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
def test_without_a_request_the_rule_decides(product):
    choice = choose(problem(product), names("dense"), stated=False)
    assert (choice.algorithm, choice.source) == ("implicit_gemm", "predicted")
    assert str(foresee(problem(product), names("dense"), stated=False)) == str(choice)


def test_stated_requests_are_measured():
    with pytest.raises(Measuring):
        choose(problem(), names("dense"), stated=True)


def test_autotune_on_measures_without_a_request(monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "on")
    with pytest.raises(Measuring):
        choose(problem(), names("dense"), stated=False)


def test_without_a_rule_problems_are_measured(portable):
    with pytest.raises(Measuring):
        choose(problem(), names("dense"), stated=False)


def test_auto_is_a_request_wherever_it_is_stated(monkeypatch):
    asked = {"kind": "dense", "product": "forward"}
    assert not admitted(None, **asked).stated
    assert admitted("auto", **asked).stated
    with vx.algorithms(forward="auto"):
        assert admitted(None, **asked).stated
    monkeypatch.setenv("VOXAX_FWD_ALGO_MODE", "auto")
    assert admitted(None, **asked).stated
    assert not admitted(None, kind="dense", product="wgrad").stated


def test_a_layer_tells_what_was_requested():
    points = np.random.default_rng(0).uniform(0, 3, (60, 3)).astype(np.float32)
    voxels = vx.voxelize(points, None, 0.5)
    weight = np.ones((27, 1, 4), np.float32)
    with record_choices() as choices:
        spatially_sparse_conv(voxels, weight, kernel_size=3)
    assert [choice.source for choice in choices] == ["predicted"]
    with pytest.raises(Measuring):
        spatially_sparse_conv(voxels, weight, kernel_size=3, fwd_algo="auto")


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_fits_80_columns_and_comes_every_few_seconds(terminal, monkeypatch, capsys):
    monkeypatch.setattr(measure, "_told", float("-inf"))
    monkeypatch.setattr(measure.sys.stderr, "isatty", lambda: terminal, raising=False)
    for _ in range(3):
        with measure.progress("forward dense float32 highest K27 " + "x" * 90, 4):
            pass
    shown = capsys.readouterr().err
    lines = [line for line in shown.replace("\r\x1b[K", "\n").split("\n") if line]
    assert len(lines) == (3 if terminal else 2)
    assert max(map(len, lines)) < 80
    assert all(line.startswith("voxax measures") for line in lines)
    assert lines[-1].endswith("s so far)")
