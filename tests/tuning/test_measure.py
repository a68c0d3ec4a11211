"""Timing candidates against each other, with a clock that programs move by what they take."""

import dataclasses
import threading
import time
import types

import numpy as np
import pytest
from fake_algorithms import fake, make_problem, right, wrong

from voxax.tuning import measure as module
from voxax.tuning.measure import check, measure
from voxax.tuning.sample import Sample, sample_of
from voxax.tuning.space import Candidate, reference_of

PROBLEM = make_problem()
REFERENCE = reference_of(PROBLEM)
RESULT = np.arange(1.0, 7.0, dtype=np.float32).reshape(3, 2)
SAMPLE = Sample(RESULT, RESULT, {}, "nothing")
FOREVER = float("inf")


class Machine:
    """Programs that take the seconds they are given, on a clock of its own.

    Attributes:
      seconds: by candidate: of its first, second, ... run, in a circle.
      results: by candidate, where it is not the right one; an error is raised.
      compiling: real seconds, by candidate.
      runs: names of candidates in the order of their runs.
      compiled: names, in the order of compiling.
    """

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.seconds, self.results, self.compiling = {}, {}, {}
        self.runs, self.compiled = [], []
        clock = types.SimpleNamespace(perf_counter=lambda: self.now)
        monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(module, "compiled", self.compile)
        # The rules, not today's numbers.
        for name, value in {
            "_HOPELESS": 2.0,
            "_CLOSE": 1.1,
            "_ROUNDS": 5,
            "_MORE_ROUNDS": 9,
            "_MOST_ROUNDS": 50,
            "_QUICK": 0.15,
            "_LONG": 0.5,
            "_AT_LEAST": 2,
        }.items():
            assert hasattr(module, name)
            monkeypatch.setattr(module, name, value)
        # One thread compiles, so that the order is known.
        monkeypatch.setattr(module, "os", types.SimpleNamespace(cpu_count=lambda: 1))

    def compile(self, problem, candidate, sample):
        name = candidate.kernel.name
        if name in self.compiling:
            time.sleep(self.compiling[name])
            self.now += self.compiling[name]
        self.compiled.append(name)
        if isinstance(self.results.get(name), str):
            raise NotImplementedError(name)

        def run():
            times = self.seconds.get(name, [1.0])
            self.now += times[self.runs.count(name) % len(times)]
            self.runs.append(name)
            result = self.results.get(name, RESULT)
            if isinstance(result, Exception):
                raise result
            return result

        return run

    def measure(self, *names, budget=FOREVER):
        made = [Candidate(fake(name), ()) for name in names]
        return {m.algorithm: m for m in measure(PROBLEM, made, REFERENCE, SAMPLE, budget)}


@pytest.fixture
def machine(monkeypatch):
    return Machine(monkeypatch)


def test_the_figure_is_the_lower_quartile(machine):
    """The first run is the guard's; the second and the rounds count."""
    machine.seconds = {"a": [100.0, 4.0, 1.0, 3.0, 2.0]}
    found = machine.measure("a")["a"]
    assert machine.runs.count("a") == 5, "rounds of seconds end after three"
    assert found.seconds == np.quantile([4.0, 1.0, 3.0, 2.0], 0.25)
    assert (found.verdict, found.reason) == ("ok", "")


def test_rounds_are_interleaved(machine):
    machine.seconds = {"a": [1.0], "b": [1.5], "c": [1.2]}
    machine.measure("a", "b", "c")
    first = [name for name in "abc" for _ in range(2)]
    assert machine.runs[1:] == [*first, *"abc" * 3]
    assert machine.runs[0] == "explicit_gemm"


def test_what_takes_twice_the_best_is_given_up_after_one_run(machine):
    machine.seconds = {"a": [1.0], "b": [2.1], "c": [0.9], "d": [1.9]}
    found = machine.measure(*"abcd")
    assert {name: m.verdict for name, m in found.items()} == {
        "a": "ok", "b": "slow", "c": "ok", "d": "slow",
    }  # fmt: skip
    assert found["b"].seconds == pytest.approx(2.1)
    assert [machine.runs.count(name) for name in "bd"] == [2, 2]


def test_a_slow_first_run_for_want_of_warmth_is_not_counted(machine):
    machine.seconds = {"a": [1.0], "b": [50.0, *[0.5] * 99]}
    assert machine.measure("a", "b")["b"].seconds == pytest.approx(0.5)


def test_close_ones_get_a_second_round(machine):
    machine.seconds = {"a": [0.03], "b": [0.0324], "c": [0.042]}
    machine.measure("a", "b", "c")
    counts = [machine.runs.count(name) for name in "abc"]
    assert counts[0] == counts[1] == counts[2] + 9
    machine.runs.clear()
    machine.measure("a", "c")
    assert machine.runs.count("a") == machine.runs.count("c") == counts[2]


@pytest.mark.parametrize(
    ("seconds", "rounds"), [(1e-6, 50), (0.02, 8), (0.09, 5), (0.11, 5), (0.2, 3), (9.0, 3)]
)
def test_quick_rounds_are_repeated_and_long_ones_cut(seconds, rounds, machine):
    machine.seconds = {"a": [seconds]}
    machine.measure("a")
    assert machine.runs.count("a") == 2 + rounds


def test_without_time_two_are_compared_and_the_others_left_out(machine):
    found = machine.measure(*"abcd", budget=0.5)
    assert list(found) == ["a", "b"]
    assert all(m.verdict == "ok" for m in found.values())


def test_compiling_ends_at_half_of_the_budget(machine):
    names = [f"c{i}" for i in range(20)]
    machine.compiling = dict.fromkeys([*names, "explicit_gemm"], 0.02)
    machine.seconds = {name: [1e-4] for name in [*names, "explicit_gemm"]}
    found = machine.measure(*names, budget=0.2)
    assert 2 <= len(found) < 12
    assert list(found) == names[: len(found)], "the promising ones first"
    assert len(machine.compiled) <= len(found) + 2


def test_nothing_is_left_running(machine):
    machine.compiling = dict.fromkeys("abcdef", 0.02)
    machine.measure(*"abcdef", budget=0.01)
    count = len(machine.compiled)
    time.sleep(0.1)
    assert len(machine.compiled) == count
    assert not [t for t in threading.enumerate() if "ThreadPool" in t.name]


def test_failures_have_reasons_and_harm_no_other(machine):
    machine.results = {
        "a": "does not compile",
        "b": RuntimeError("out of memory"),
        "c": RESULT[:2],
        "d": RESULT * np.nan,
        "e": RESULT * 0,
        "f": RESULT + np.array([[0, 0], [0, 0], [0, 1]], np.float32),
    }
    found = machine.measure(*"abcdefg")
    assert {name: (m.verdict, m.seconds is None) for name, m in found.items()} == {
        "a": ("failed", True),
        "b": ("failed", True),
        **dict.fromkeys("cdef", ("rejected", True)),
        "g": ("ok", False),
    }
    assert found["a"].reason == "NotImplementedError: a"
    assert found["b"].reason == "RuntimeError: out of memory"
    assert "returned shape" in found["c"].reason
    assert "not finite" in found["d"].reason
    assert found["e"].reason == "returned zeros only"
    assert "differs" in found["f"].reason


def test_a_candidate_that_is_the_reference_is_compiled_once(machine):
    found = measure(PROBLEM, [REFERENCE, Candidate(fake("a"), ())], REFERENCE, SAMPLE, FOREVER)
    assert [m.algorithm for m in found] == ["explicit_gemm", "a"]
    assert machine.compiled == ["explicit_gemm", "a"]


def test_without_a_reference_there_is_no_measuring_and_no_checking(machine):
    machine.results = {"explicit_gemm": "does not compile"}
    with pytest.raises(RuntimeError, match="did not compile: NotImplementedError"):
        machine.measure("a", "b")
    with pytest.raises(RuntimeError, match="did not compile: NotImplementedError"):
        check(PROBLEM, Candidate(fake("a"), ()), REFERENCE, SAMPLE)


def test_checking_takes_no_time_but_says_what_is_wrong(machine):
    machine.results = {"b": RESULT * 0, "c": "does not compile"}
    asked = [check(PROBLEM, Candidate(fake(n), ()), REFERENCE, SAMPLE) for n in "abc"]
    assert asked == [None, "returned zeros only", "NotImplementedError: c"]
    assert len(machine.runs) == 2 + 2 + 1


@pytest.mark.parametrize("product", ["forward", "dgrad", "wgrad"])
def test_real_programs(product):
    """On what was recorded, and on a device."""
    problem = dataclasses.replace(PROBLEM, product=product)
    sample = sample_of(problem, None, {"neighbors": None})
    ours = [Candidate(fake(change.__name__, change), ()) for change in (right, wrong)]
    begin = time.perf_counter()
    found = {m.algorithm: m for m in measure(problem, ours, REFERENCE, sample, 5.0)}
    spent = time.perf_counter() - begin
    assert found["right"].verdict == "ok"
    assert 0 < found["right"].seconds < spent
    assert found["wrong"].verdict == "rejected"
