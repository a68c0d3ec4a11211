"""Check that broken algorithms never win, whether measured, shipped or predicted."""

import dataclasses

import pytest
from fake_algorithms import (
    PROBLEM,
    Timer,
    fake,
    nans,
    raising,
    registered,
    remember,
    right,
    start_anew,
    wrong,
    zeros,
)

from voxax import _native
from voxax.errors import AlgorithmError
from voxax.tuning import cache as cache_module
from voxax.tuning import choose, foresee, tuner
from voxax.tuning.entry import key_of
from voxax.tuning.space import reference_of

BOTH = ("explicit_gemm", "implicit_gemm")


@pytest.fixture(autouse=True)
def _on(monkeypatch, tmp_path):
    start_anew(monkeypatch, tmp_path)


@pytest.fixture
def timer(monkeypatch):
    return Timer(monkeypatch)


def shipped(monkeypatch, made, problem=PROBLEM):
    store = {(key_of(problem), made.filed_under): made}
    monkeypatch.setattr(cache_module, "shipped", lambda device: store)


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        (wrong, "rejected", "differs from explicit_gemm"),
        (nans, "rejected", "1 of 192 values are not finite"),
        (zeros, "rejected", "returned zeros only"),
        (raising, "failed", "ValueError: not on this machine"),
    ],
)
def test_a_broken_algorithm_never_wins(change, verdict, reason):
    """Measured for real, among a right one and im2col."""
    im2col = (("formulation", "im2col"),)
    with registered(fake("broken", change), fake("right")):
        choice = choose(PROBLEM, ("broken", "right"))
    assert choice.algorithm == "right"
    (found,) = (m for m in choice.entry.measured if m.algorithm == "broken")
    assert (found.verdict, found.seconds) == (verdict, None)
    assert reason in found.reason
    assert reference_of(PROBLEM).parameters == im2col


def test_nothing_but_broken_ones_is_an_error_with_their_reasons(timer):
    timer.seconds = {"broken": "returned zeros only", "worse": "differs from explicit_gemm"}
    with registered(fake("broken", zeros), fake("worse", wrong)):
        for _ in range(2):
            with pytest.raises(AlgorithmError) as caught:
                choose(PROBLEM, ("broken", "worse"))
            assert "broken: rejected, returned zeros only" in str(caught.value)
            assert "worse: rejected, differs" in str(caught.value)


@pytest.mark.parametrize("mode", ["on", "cached"])
def test_a_shipped_choice_is_checked_first(mode, monkeypatch, timer, caplog):
    monkeypatch.setenv("VOXAX_AUTOTUNE", mode)
    checks = []

    def check(problem, candidate, reference, sample):
        checks.append(str(candidate))
        return "returned zeros only" if candidate.kernel.name == "broken" else None

    monkeypatch.setattr(tuner, "check", check)
    with registered(fake("broken", zeros), fake("right")):
        request = ("broken", "right")
        shipped(monkeypatch, remember(source="shipped", right=1e-3, broken=2e-3))
        choice = choose(PROBLEM, request)
        assert (choice.algorithm, choice.source, choice.seconds) == ("right", "shipped", 1e-3)
        assert choose(PROBLEM, request) == choice
        assert checks == ["right"], "checked once"
        assert foresee(PROBLEM, request) == choice

        shipped(monkeypatch, remember(source="shipped", right=1e-3, broken=1e-4))
        timer.seconds["broken"] = "returned zeros only"
        refused = choose(PROBLEM, request)
        assert refused.algorithm == "right"
        assert refused.source == {"on": "measured", "cached": "predicted"}[mode]
    assert "shipped choice broken for forward dense" in caplog.text
    assert "is not used: it returned zeros only" in caplog.text


def test_what_was_predicted_is_taken_where_nothing_can_be_measured(monkeypatch, timer, caplog):
    """Checked first, and without a time, since none was measured."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", "cached")
    broken = {"broken": "returned zeros only"}
    monkeypatch.setattr(tuner, "check", lambda p, c, *_: broken.get(c.kernel.name))
    with registered(fake("broken", zeros), fake("right"), fake("other")):
        request = ("other", "broken", "right")
        made = remember(source="shipped", broken=1e-4, other=1e-3)
        shipped(monkeypatch, dataclasses.replace(made, source="predicted"))
        assert choose(PROBLEM, request).algorithm == "other"
        remember(source="predicted", right=1e-3, broken=2e-3, other=3e-3)
        for found in (choose(PROBLEM, request), foresee(PROBLEM, request)):
            assert (found.algorithm, found.source, found.seconds) == ("right", "predicted", None)
            assert found.entry.predicted
    assert "predicted choice broken for forward dense" in caplog.text
    assert timer.asked == []


@pytest.mark.parametrize("revised", [False, True])
def test_a_prediction_of_other_kernels_says_nothing(revised, monkeypatch):
    """Then the one candidate that is still as it was would win whatever it takes."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", "cached")
    with registered(fake("first"), fake("slow")):
        remember(source="predicted", first=1e-3, slow=1.0)
    with registered(fake("first", revision=1 + revised), fake("slow")):
        for found in (choose(PROBLEM, ("first", "slow")), foresee(PROBLEM, ("first", "slow"))):
            assert (found.algorithm, found.source) == ("first", "predicted")


def test_what_was_predicted_is_measured_first_and_then_gone(timer):
    remember(source="predicted", explicit_gemm=2e-3, implicit_gemm=1e-3)
    timer.seconds = {"explicit_gemm": 1e-3, "implicit_gemm": 2e-3}
    choice = choose(PROBLEM, BOTH)
    assert (choice.algorithm, choice.source) == ("explicit_gemm", "measured")
    assert timer.asked[0][0][0] == "implicit_gemm"
    again = choose(PROBLEM, BOTH)
    assert (again.algorithm, again.source, again.entry.source) == (
        "explicit_gemm", "cached", "measured"
    )  # fmt: skip


def test_a_broken_heuristic_makes_way_for_the_next(monkeypatch, caplog):
    """Checked for real, against im2col."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", "cached")
    with registered(fake("broken", zeros), fake("right")):
        choice = choose(PROBLEM, ("broken", "right"))
        assert (choice.algorithm, choice.source) == ("right", "predicted")
        assert "the predicted choice broken for forward dense" in caplog.text
        with registered(fake("worse", wrong)), pytest.raises(AlgorithmError) as caught:
            choose(PROBLEM, ("broken", "worse"))
    assert "broken: returned zeros only" in str(caught.value)
    assert "worse: differs from explicit_gemm" in str(caught.value)


@pytest.mark.parametrize("mode", ["on", "cached", "off"])
def test_a_broken_pin_is_an_error_unless_nothing_is_checked(mode, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE", mode)
    with registered(fake("broken", zeros)):
        if mode == "off":
            assert choose(PROBLEM, ("broken",)).source == "pinned"
            return
        with pytest.raises(AlgorithmError, match="returned zeros only"):
            choose(PROBLEM, ("broken",))


def test_where_nothing_can_be_measured_the_program_still_runs(timer, monkeypatch, caplog):
    def measure(*_):
        raise RuntimeError("RESOURCE_EXHAUSTED: out of memory")

    monkeypatch.setattr(tuner, "measure", measure)
    choice = choose(PROBLEM, BOTH)
    assert (choice.algorithm, choice.source) == ("explicit_gemm", "predicted")
    assert "RESOURCE_EXHAUSTED: out of memory" in caplog.text


def decisive(change=right):
    """A kernel that is taken unmeasured, after a check."""
    return dataclasses.replace(fake("sure", change), decisive=lambda problem, hardware: True)


@pytest.fixture
def compared(monkeypatch):
    """The checks made so far; a function starts a new process, as far as the tuner can tell."""
    checks, compare = [], tuner.check

    def counting(problem, candidate, reference, sample):
        checks.append(candidate.identity)
        return compare(problem, candidate, reference, sample)

    def choose_in_new_process():
        monkeypatch.setattr(tuner, "_objections", {})
        choose(PROBLEM, ("sure", "explicit_gemm"), stated=False)
        return len(checks)

    monkeypatch.setenv("VOXAX_AUTOTUNE", "")
    monkeypatch.setattr(tuner, "check", counting)
    return choose_in_new_process


def test_a_later_process_does_not_repeat_a_check(compared, monkeypatch, tmp_path):
    with registered(decisive()):
        assert [compared(), compared()] == [1, 1]
        with monkeypatch.context() as patch:
            patch.setattr(_native, "fingerprint", lambda: "another library")
            assert [compared(), compared()] == [2, 2]
        with monkeypatch.context() as patch:
            patch.setattr(cache_module, "jaxlib_version", lambda: "0.0")
            assert compared() == 3
        cache_module.forget_passed()
        assert compared() == 4
        assert {path.name for path in tmp_path.iterdir()} == {"passed"}


@pytest.mark.parametrize("change", [zeros, right], ids=["it failed", "there is no folder"])
def test_what_was_not_noted_is_checked_again(change, compared, monkeypatch, tmp_path):
    if change is right:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "file"))
    with registered(decisive(change)):
        assert [compared(), compared()] == [1, 2]
