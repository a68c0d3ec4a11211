"""Check the tuner's choices: each row of its table, requests, time, several processes."""

import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import time

import pytest
from cache_entries import entry, measured
from fake_algorithms import (
    PROBLEM,
    Timer,
    cache,
    candidates,
    fake,
    make_problem,
    registered,
    remember,
    start_anew,
    zeros,
)

from voxax.errors import AlgorithmError, InputError
from voxax.hardware import hardware_of
from voxax.kernels import lookup, names
from voxax.tuning import choose, foresee, record_choices, tuner, unmeasured
from voxax.tuning.entry import NO_TIME, Measured, key_of
from voxax.tuning.space import reference_of

ALL = names("dense")
BOTH = ("explicit_gemm", "implicit_gemm")


@pytest.fixture(autouse=True)
def _on(monkeypatch, tmp_path):
    start_anew(monkeypatch, tmp_path)


@pytest.fixture
def timer(monkeypatch):
    return Timer(monkeypatch)


# The rows of the table.


def test_nothing_that_can_run_is_an_error_with_every_reason(timer):
    with pytest.raises(AlgorithmError) as caught:
        choose(make_problem(dtype="bool"), ALL)
    for name in ALL:
        assert f"{name}: " in str(caught.value)
    with pytest.raises(AlgorithmError, match="cutlass_implicit_gemm: runs on NVIDIA GPUs only"):
        choose(PROBLEM, ("cutlass_implicit_gemm",))
    with pytest.raises(AlgorithmError, match="without the views"):
        choose(PROBLEM, ALL, ())
    assert timer.asked == []


@pytest.mark.parametrize("mode", ["on", "cached", "off"])
def test_a_single_candidate_is_taken_whatever_the_cache_prefers(mode, monkeypatch, timer):
    monkeypatch.setenv("VOXAX_AUTOTUNE", mode)
    remember(explicit_gemm=1e-6, implicit_gemm=1.0)
    choice = choose(PROBLEM, ("implicit_gemm",))
    assert (choice.algorithm, choice.source) == ("implicit_gemm", "pinned")
    assert choice.kernel in lookup("implicit_gemm")
    foreseen = foresee(PROBLEM, ("implicit_gemm",))
    assert foreseen.seconds == (None if mode == "off" else 1.0)
    assert dataclasses.replace(foreseen, seconds=None, entry=None) == choice
    assert timer.asked == []


def test_off_is_the_first_algorithms_heuristic(monkeypatch, timer):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "off")
    remember(explicit_gemm=1.0, implicit_gemm=1e-6)
    for request in (BOTH, BOTH[::-1]):
        choice = choose(PROBLEM, request)
        first = next(
            kernel
            for kernel in lookup(request[0])
            if kernel.platform in ("any", "cpu")
            and kernel.refusal(PROBLEM, hardware_of("cpu")[0]) is None
        )
        assert (choice.algorithm, choice.source) == (request[0], "predicted")
        assert choice.parameters == first.heuristic(PROBLEM, hardware_of("cpu")[0])
        assert choice.seconds is None
    assert timer.asked == []


def test_unmeasured_is_off_for_this_thread(timer):
    with unmeasured():
        assert choose(PROBLEM, BOTH[::-1]).source == "predicted"
    assert timer.asked == []
    assert choose(PROBLEM, BOTH).source == "measured"


@pytest.mark.parametrize("mode", ["on", "cached"])
def test_the_fastest_that_the_cache_knows(mode, monkeypatch, timer):
    monkeypatch.setenv("VOXAX_AUTOTUNE", mode)
    remember(explicit_gemm=3e-3, implicit_gemm=2e-3)
    choice = choose(PROBLEM, ALL)
    assert (choice.algorithm, choice.source, choice.seconds) == ("implicit_gemm", "cached", 2e-3)
    assert choice.entry == cache().get(key_of(PROBLEM))
    assert foresee(PROBLEM, ALL) == choice
    assert timer.asked == []


def test_on_this_platform_all_are_measured_once_and_remembered(timer, caplog):
    timer.seconds = {"implicit_gemm": 1e-4}
    before = foresee(PROBLEM, ALL)
    assert (before.source, before.entry) == ("predicted", None)
    with caplog.at_level(logging.INFO, "voxax.tuning"):
        choice = choose(PROBLEM, ALL)
    assert (choice.algorithm, choice.source, choice.seconds) == ("implicit_gemm", "measured", 1e-4)
    assert timer.asked == [[c.identity for c in candidates()]]
    (line,) = caplog.messages
    assert "implicit_gemm(fwd_block_size=32) 0.1 ms; runner-up explicit_gemm(" in line
    assert "3 candidates" in line
    caplog.clear()
    with caplog.at_level(logging.INFO, "voxax.tuning"):
        again = choose(PROBLEM, ALL)
    assert again == dataclasses.replace(choice, source="cached")
    assert (len(timer.asked), caplog.messages) == (1, [])


@pytest.mark.parametrize("platform", ["tpu", "gpu", "any"])
def test_for_another_platform_nothing_is_measured(platform, timer):
    problem = make_problem(platform=platform)
    choice = choose(problem, BOTH[::-1])
    assert (choice.algorithm, choice.source) == ("implicit_gemm", "predicted")
    assert timer.asked == []


def test_cached_mode_measures_nothing(monkeypatch, timer):
    monkeypatch.setenv("VOXAX_AUTOTUNE", "cached")
    checked = []
    monkeypatch.setattr(tuner, "check", lambda *asked: checked.append(asked[1].identity))
    first = choose(PROBLEM, BOTH[::-1])
    assert (first.algorithm, first.source) == ("implicit_gemm", "predicted")
    assert choose(PROBLEM, BOTH[::-1]) == first
    assert checked == [(first.algorithm, first.parameters, 1)], "checked once"
    assert timer.asked == []


# Requests are filters.


def test_a_list_is_a_filter_on_a_cached_entry(timer):
    with registered(fake("swift"), fake("spare")):
        remember(swift=1e-6, spare=4e-3, explicit_gemm=3e-3, implicit_gemm=2e-3)
        for request, winner in (
            (("swift", *BOTH), "swift"),
            (BOTH, "implicit_gemm"),
            (BOTH[::-1], "implicit_gemm"),
            (("spare", "explicit_gemm"), "explicit_gemm"),
            (("explicit_gemm",), "explicit_gemm"),
        ):
            choice = choose(PROBLEM, request)
            assert (choice.algorithm, choice.source) == (winner, "cached")
    assert timer.asked == []


def test_one_algorithm_over_its_parameters_is_measured_too(timer):
    choice = choose(PROBLEM, ("explicit_gemm",))
    assert choice.source == "measured"
    assert {name for name, *_ in timer.asked[0]} == {"explicit_gemm"}
    assert len(timer.asked[0]) == 2


def test_what_is_unknown_here_is_ignored(timer):
    """Foreign names and parameters, and another revision, however fast."""
    revision = lookup("explicit_gemm")[0].revision
    strangers = (
        measured("other_gemm", 1e-9),
        measured("implicit_gemm", 1e-9, revision=1, fwd_block_size=3),
        measured("explicit_gemm", 1e-9, revision=revision, formulation="of another day"),
        measured("implicit_gemm", 1e-9, revision=revision + 1, fwd_block_size=32),
    )
    remember(explicit_gemm=3e-3, implicit_gemm=2e-3, more=strangers)
    choice = choose(PROBLEM, ALL)
    assert (choice.algorithm, choice.seconds, choice.source) == ("implicit_gemm", 2e-3, "cached")
    assert timer.asked == []


def test_an_entry_that_lacks_a_candidate_is_completed(timer):
    remember(explicit_gemm=3e-3)
    assert choose(PROBLEM, ("explicit_gemm",)).source == "cached"
    assert timer.asked == []
    timer.seconds = {"implicit_gemm": 1e-4}
    choice = choose(PROBLEM, BOTH)
    assert (choice.algorithm, choice.source) == ("implicit_gemm", "measured")
    assert len(timer.asked) == 1


def test_another_revision_is_measured_again(timer):
    one, two = fake("moving", revision=1), fake("moving", revision=2)
    with registered(one):
        remember(moving=1e-6, explicit_gemm=1e-3)
        assert choose(PROBLEM, ("moving", "explicit_gemm")).source == "cached"
    timer.seconds = {"moving": 1.0}
    with registered(two):
        choice = choose(PROBLEM, ("moving", "explicit_gemm"))
    assert (choice.algorithm, choice.source) == ("explicit_gemm", "measured")


@pytest.mark.parametrize("verdict", ["rejected", "failed", "skipped"])
def test_what_was_given_up_is_not_chosen(verdict, timer):
    (given_up,) = (c.parameters for c in candidates(admitted=("implicit_gemm",)))
    remember(
        explicit_gemm=1.0,
        more=(measured("implicit_gemm", None, verdict, 1, **dict(given_up)),),
    )
    choice = choose(PROBLEM, BOTH)
    assert (choice.algorithm, choice.source) == ("explicit_gemm", "cached")
    assert timer.asked == []


@pytest.mark.parametrize("mode", ["on", "cached"])
def test_where_all_were_given_up_early_the_best_of_them_is_taken(mode, monkeypatch, timer):
    """Unless they can be measured once more."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", mode)
    with registered(fake("slow", spaces=((("a", 1),), (("a", 2),)))):
        known = [measured("slow", 3.0 - a, "slow", 1, a=a) for a in (1, 2)]
        cache().put(key_of(PROBLEM), entry(*known))
        choice = choose(PROBLEM, ("slow",))
    expected = {"on": ("slow(a=1)", "measured"), "cached": ("slow(a=2)", "cached")}[mode]
    assert (str(choice), choice.source) == expected


# Time.


def test_without_time_choices_are_predicted_and_known_ones_used(monkeypatch, timer):
    monkeypatch.setenv("VOXAX_AUTOTUNE_BUDGET", "0")
    choice = choose(PROBLEM, ("explicit_gemm",))
    assert choice.source == "predicted"
    remember(explicit_gemm=3e-3)
    choice = choose(PROBLEM, BOTH)
    assert (choice.algorithm, choice.source) == ("explicit_gemm", "cached"), "implicit is unknown"
    assert timer.asked == []
    monkeypatch.setenv("VOXAX_AUTOTUNE_BUDGET", "5")
    assert choose(PROBLEM, BOTH).source == "measured"


def test_what_time_was_too_short_for_waits_for_tune(monkeypatch, timer):
    """No later run stops for it; `vx.tune` measures everything, what was quick before first."""
    rest = [c for c in candidates(PROBLEM, BOTH) if c.kernel.name != "implicit_gemm"]
    assert len(rest) > 1
    times = {c.identity: 1e-3 * (len(rest) - i) for i, c in enumerate(rest)}
    known = [measured(c.kernel.name, times[c.identity], **dict(c.parameters)) for c in rest]
    (late,) = candidates(PROBLEM, ("implicit_gemm",))
    cut = Measured(*late.identity, None, "skipped", NO_TIME)
    cache().put(key_of(PROBLEM), entry(*known, cut))
    choice = choose(PROBLEM, BOTH)
    assert choice.source == "cached"
    assert choice.entry.left_out == (cut,)
    assert timer.asked == []
    tuner.tune(PROBLEM, BOTH)
    quickest = [c.identity for c in reversed(rest)]
    assert [identity[:2] for identity in timer.asked[0]] == [
        identity[:2] for identity in (*quickest, late.identity)
    ]
    assert cache().get(key_of(PROBLEM)).left_out == ()


def test_a_budget_that_is_none_is_an_error(monkeypatch, timer):
    monkeypatch.setenv("VOXAX_AUTOTUNE_BUDGET", "a while")
    with pytest.raises(InputError, match="VOXAX_AUTOTUNE_BUDGET=a while: expected seconds"):
        choose(PROBLEM, BOTH)


def test_what_was_quick_in_similar_problems_is_tried_first(timer):
    """Time may be too short for all."""
    with registered(fake("slow"), fake("quick"), fake("new")):
        admitted = ("slow", "quick", "new")
        remember(make_problem(rows=100), slow=9e-3, quick=1e-3)
        remember(make_problem("wgrad"), slow=1e-3, quick=9e-3)
        remember(make_problem(rows=1000), source="predicted", slow=1e-3, quick=9e-3)
        choose(PROBLEM, admitted)
        assert [name for name, *_ in timer.asked[0]] == ["quick", "slow", "new"]
        cache().put(key_of(PROBLEM), entry(measured("slow", 1e-3), measured("quick", 2e-3)))
        tuner.tune(PROBLEM, admitted, anew=True)
    assert [name for name, *_ in timer.asked[1]] == ["slow", "new", "quick"], "its own count most"


def test_candidates_without_time_get_their_turn_where_the_others_fail(timer, monkeypatch):
    timer.seconds = {"swift": "returned zeros only"}
    with registered(fake("swift", zeros), fake("steady")):
        monkeypatch.setattr(tuner, "measure", lambda p, tried, *rest: timer(p, tried[:1], *rest))
        choice = choose(PROBLEM, ("swift", "steady"))
    assert (choice.algorithm, choice.source) == ("steady", "measured")
    assert [[name for name, *_ in asked] for asked in timer.asked] == [["swift"], ["steady"]]


def test_tune_measures_what_is_unknown_or_asked_for_anew(timer):
    tuner.tune(PROBLEM, BOTH)
    assert len(timer.asked) == 1
    tuner.tune(PROBLEM, BOTH)
    tuner.tune(PROBLEM, ("implicit_gemm",), anew=True)  # nothing to choose from
    tuner.tune(make_problem(platform="tpu"), BOTH, anew=True)  # no such device
    assert len(timer.asked) == 1
    tuner.tune(PROBLEM, BOTH, anew=True)
    assert len(timer.asked) == 2
    assert choose(PROBLEM, BOTH).source == "cached"


# Who decides, and who hears of it.


@pytest.mark.parametrize("mode", ["on", "cached"])
def test_another_processs_decision_is_taken(mode, monkeypatch, timer):
    """Check processes that only read caches, which may differ between machines."""
    monkeypatch.setenv("VOXAX_AUTOTUNE", mode)
    topics = []
    wide = make_problem(in_channels=8)
    answers = [
        candidates(*asked)[-1] for asked in ((PROBLEM, BOTH), (PROBLEM, BOTH[:1]), (wide, BOTH))
    ]

    def agree(topic, decide):
        topics.append(topic)
        answer = answers[len(topics) - 1]
        return json.dumps([answer.kernel.name, answer.parameters, "measured", 0.5])

    monkeypatch.setattr(tuner, "agree", agree)
    choice = choose(PROBLEM, BOTH)
    assert str(choice) == "implicit_gemm(fwd_block_size=32)"
    assert (choice.source, choice.seconds) == ("measured", 0.5)
    assert choice.parameters == (("fwd_block_size", 32),), "hashable, as measured here"
    assert key_of(PROBLEM) in topics[0]
    for asked in ((PROBLEM, BOTH[:1]), (wide, BOTH)):
        made = choose(*asked)
        assert made.candidate == answers[len(topics) - 1]
    assert len(set(topics)) == 3
    assert timer.asked == []


def test_threads_that_meet_a_problem_at_once_measure_it_once(timer):
    figure = timer.figure

    def slowly(identity):
        time.sleep(0.1)
        return figure(identity)

    timer.figure = slowly
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = [pool.submit(choose, PROBLEM, BOTH) for _ in range(4)]
        choices = [f.result() for f in found]
    assert len(timer.asked) == 1
    assert sorted(c.source for c in choices) == ["cached"] * 3 + ["measured"]
    assert len({c.algorithm for c in choices}) == 1


def test_choices_are_heard_by_all_who_listen(timer):
    with record_choices() as outer:
        with record_choices() as inner:
            one = choose(PROBLEM, BOTH)
        two = choose(PROBLEM, BOTH)
        foresee(PROBLEM, BOTH)
        with contextlib.suppress(AlgorithmError):
            choose(PROBLEM, ("cutlass_implicit_gemm",))
    assert (inner, outer) == ([one], [one, two])


def test_refusals_of_named_algorithms_are_told_once(timer, caplog):
    tuner._warn_once.cache_clear()
    with caplog.at_level(logging.INFO, "voxax.tuning"):
        for _ in range(2):
            choose(PROBLEM, ("implicit_gemm", "cutlass_implicit_gemm"))
        choose(PROBLEM, ALL)
    told = [m for m in caplog.messages if "is skipped" in m]
    assert told == ["cutlass_implicit_gemm is skipped: runs on NVIDIA GPUs only, not on cpu"]


def test_depthwise_problems_have_a_reference_of_their_own(timer):
    problem = make_problem(kind="depthwise")
    assert choose(problem, names("depthwise")).algorithm in ("explicit", "implicit")
    assert reference_of(problem).kernel.name == "explicit"
