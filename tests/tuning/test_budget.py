"""Seconds of measuring: two for a problem, forty for a process, or what the user says."""

import concurrent.futures

import pytest

from voxax.errors import InputError
from voxax.tuning import budget


@pytest.fixture(autouse=True)
def _nothing_spent(monkeypatch):
    monkeypatch.setattr(budget, "_spent", 0.0)
    monkeypatch.delenv("VOXAX_AUTOTUNE_BUDGET", raising=False)


def test_a_problem_has_its_own_limit_and_the_process_another():
    assert budget.allowance() == budget._PER_PROBLEM < budget._PER_PROCESS
    budget.spend(budget._PER_PROCESS - 0.5)
    assert budget.allowance() == pytest.approx(0.5)
    budget.spend(3.0)
    assert budget.allowance() == 0
    assert budget.spent() == pytest.approx(budget._PER_PROCESS + 2.5)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [("0", 0), ("0.25", 0.25), (" 1e9 ", budget._PER_PROBLEM), ("inf", budget._PER_PROBLEM)],
)
def test_the_user_may_say_otherwise(text, allowed, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE_BUDGET", text)
    assert budget.allowance() == allowed


def test_blank_is_unset(monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE_BUDGET", "  ")
    assert budget.allowance() == budget._PER_PROBLEM


@pytest.mark.parametrize("text", ["-1", "nan", "some", "1 s", "-inf"])
def test_what_is_no_time_is_an_error(text, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE_BUDGET", text)
    with pytest.raises(InputError, match=f"VOXAX_AUTOTUNE_BUDGET={text}: expected seconds"):
        budget.allowance()


def test_threads_spend_from_one_purse():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [budget.spend(2.0**-10) for _ in range(500)], range(8)))
    assert budget.spent() == 8 * 500 * 2.0**-10
