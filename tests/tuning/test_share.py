"""Processes of one job agree through the coordinator's key-value store."""

import json
import logging
import os
import socket
import subprocess
import sys
import time

import pytest

from voxax import _compat
from voxax.tuning import share

# What both processes of a job do. Process 0 claims every topic, unless a line says otherwise.
WORKER = """
import json, logging, sys, time
import jax

process, port, seconds = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
warnings = []
handler = logging.Handler()
handler.emit = lambda record: warnings.append(record.getMessage())
logging.getLogger("voxax.tuning").addHandler(handler)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process)
from voxax import _compat
from voxax.tuning.share import agree

client, _ = _compat.coordinator()
said = {"process": process}
meeting = iter(range(99))
meet = lambda: client.wait_at_barrier(f"meeting {next(meeting)}", 60_000)
calls = []


def decide(topic, text, wait=0.0, error=None):
    def inner():
        calls.append(topic)
        client.key_value_set(f"started {topic} {process}", "yes")
        time.sleep(wait)
        if error is not None:
            raise error
        return text
    return inner


def ask(topic, *arguments, first=0, **options):
    # The other process waits until the first is at work.
    if process != first:
        client.blocking_key_value_get(f"started {topic} {first}", 60_000)
    start = time.monotonic()
    try:
        said[topic] = agree(topic, decide(topic, f"by {process}", *arguments), **options)
    except Exception as error:
        said[topic] = f"raised {error}"
    said[f"seconds {topic}"] = time.monotonic() - start
    said[f"warnings {topic}"] = list(warnings)
    warnings.clear()


ask("slow", seconds)
meet()
# Any process may be first: no order is imposed.
said["race"] = agree("race", decide("race", f"by {process}"))
long = "ü€ text\\n" * 20_000
said["long"] = agree("a/b " + "ö" * 5000, decide("long", long)) == long
meet()
if len(sys.argv) > 4:
    ask("broken", 0.3, ValueError("no device") if process == 0 else None)
    meet()
    ask("late", 2.0 if process == 0 else 0.0, timeout=0.4)
    meet()
    ask("other way", first=1)
    meet()

    class Gone:
        def __getattr__(self, name):
            raise AssertionError("the network was used again")
    online = _compat.coordinator
    _compat.coordinator = lambda: (Gone(), online()[1])
    said["again"] = [agree(t, decide("again", "new")) for t in ("slow", "race", "late")]
    _compat.coordinator = online
    said["calls"] = calls
    meet()
    jax.distributed.shutdown()
    said["alone"] = agree("slow", lambda: "alone")
print(json.dumps(said))
"""


def run_job(*arguments: str) -> list[dict]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {k: v for k, v in os.environ.items() if "proxy" not in k.lower()}
    environment["JAX_PLATFORMS"] = "cpu"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(number), str(port), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    return [json.loads(out.splitlines()[-1]) for out, _ in outputs]


@pytest.fixture(scope="module")
def job() -> list[dict]:
    return run_job("2", "all")


def test_one_decides_and_the_other_waits_for_it(job):
    assert [said["slow"] for said in job] == ["by 0", "by 0"]
    assert [said["calls"].count("slow") for said in job] == [1, 0]
    assert job[1]["seconds slow"] < 60  # ten times that is the timeout
    assert [said["warnings slow"] for said in job] == [[], []]


def test_either_process_may_be_the_first(job):
    assert [said["other way"] for said in job] == ["by 1", "by 1"]
    assert job[0]["race"] == job[1]["race"]
    assert sum(said["calls"].count("race") for said in job) == 1


def test_long_texts_and_topics(job):
    assert [said["long"] for said in job] == [True, True]
    assert sum(said["calls"].count("long") for said in job) == 1


def test_a_failed_decision_keeps_nobody_waiting(job):
    assert job[0]["broken"] == "raised no device"
    assert job[1]["broken"] == "by 1"
    assert job[1]["seconds broken"] < 60
    (warning,) = job[1]["warnings broken"]
    assert "ValueError: no device" in warning
    assert "decides 'broken' for itself" in warning


def test_nobody_waits_longer_than_the_timeout(job):
    assert [said["late"] for said in job] == ["by 0", "by 1"]
    (warning,) = job[1]["warnings late"]
    assert "within 0.4 s" in warning


def test_the_same_question_gets_the_same_answer_without_the_network(job):
    assert [said["again"] for said in job] == [
        [said["slow"], said["race"], said["late"]] for said in job
    ]
    assert all("again" not in said["calls"] for said in job)


def test_after_shutdown_each_is_alone(job):
    assert [said["alone"] for said in job] == ["alone", "alone"]


@pytest.mark.slow
def test_a_process_slowed_by_20_seconds():
    job = run_job("20")
    assert [said["slow"] for said in job] == ["by 0", "by 0"]
    assert 15 < job[1]["seconds slow"] < 30
    assert job[0]["race"] == job[1]["race"]


def test_a_single_process_decides_each_time():
    assert _compat.coordinator() is None
    answers = iter("ab")
    assert [share.agree("topic", lambda: next(answers)) for _ in range(2)] == ["a", "b"]
    with pytest.raises(ValueError, match="no device"):
        share.agree("topic", lambda: (_ for _ in ()).throw(ValueError("no device")))


class Unreachable:
    """A client whose coordinator is gone."""

    def __init__(self, claimed=False):
        self.claimed = claimed

    def key_value_set(self, key, value, allow_overwrite):
        raise RuntimeError("ALREADY_EXISTS" if self.claimed else "UNAVAILABLE: no route")

    def blocking_key_value_get(self, key, milliseconds):
        raise RuntimeError("UNAVAILABLE: no route")


@pytest.mark.parametrize("claimed", [False, True])
def test_a_lost_coordinator_does_not_stop_anyone(monkeypatch, caplog, claimed):
    monkeypatch.setattr(share, "_answers", {})
    monkeypatch.setattr(_compat, "coordinator", lambda: (Unreachable(claimed), "job"))
    start = time.monotonic()
    with caplog.at_level(logging.WARNING, "voxax.tuning"):
        assert share.agree("topic", lambda: "mine") == "mine"
        assert share.agree("topic", lambda: "another") == "mine"
    assert time.monotonic() - start < 1
    assert len(caplog.records) == 1
    assert "no route" in caplog.text


def test_an_answer_that_cannot_be_published_is_still_used(monkeypatch, caplog):
    class ReadOnly(Unreachable):
        def key_value_set(self, key, value, allow_overwrite):
            if key.endswith("answer"):
                raise RuntimeError("RESOURCE_EXHAUSTED: too long")

    monkeypatch.setattr(share, "_answers", {})
    monkeypatch.setattr(_compat, "coordinator", lambda: (ReadOnly(), "job"))
    with caplog.at_level(logging.WARNING, "voxax.tuning"):
        assert share.agree("topic", lambda: "mine") == "mine"
    assert "did not reach the other processes" in caplog.text
