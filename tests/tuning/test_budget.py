"""Seconds of measuring: two for a problem, forty for a process, or what the user says."""

import concurrent.futures

import pytest

from voxax.errors import InputError
from voxax.tuning import measure


@pytest.fixture(autouse=True)
def _nothing_spent(monkeypatch):
    monkeypatch.setattr(measure, "_spent", 0.0)
    monkeypatch.delenv("VOXAX_AUTOTUNE_BUDGET", raising=False)


def test_a_problem_has_its_own_limit_and_the_process_another():
    assert measure.allowance() == measure._PER_PROBLEM < measure._PER_PROCESS
    measure.spend(measure._PER_PROCESS - 0.5)
    assert measure.allowance() == pytest.approx(0.5)
    measure.spend(3.0)
    assert measure.allowance() == 0
    assert measure.spent() == pytest.approx(measure._PER_PROCESS + 2.5)


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("0", 0),
        ("0.25", 0.25),
        *((text, measure._PER_PROBLEM) for text in (" 1e9 ", "inf", "  ")),
    ],
)
def test_the_user_may_say_otherwise(text, allowed, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE_BUDGET", text)
    assert measure.allowance() == allowed


@pytest.mark.parametrize("text", ["-1", "nan", "some", "1 s", "-inf"])
def test_what_is_no_time_is_an_error(text, monkeypatch):
    monkeypatch.setenv("VOXAX_AUTOTUNE_BUDGET", text)
    with pytest.raises(InputError, match=f"VOXAX_AUTOTUNE_BUDGET={text}: expected seconds"):
        measure.allowance()


def test_threads_spend_from_one_purse():
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [measure.spend(2.0**-10) for _ in range(500)], range(8)))
    assert measure.spent() == 8 * 500 * 2.0**-10
