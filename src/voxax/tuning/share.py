"""One process of a job decides, and the others take its decision.

The processes of a multi-process JAX job must choose alike, or their compiled programs differ.
They agree through the key-value store of ``jax.distributed``'s coordinator, and never through a
collective: a process that finds its answer in its own cache would not join one.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any

from voxax import _compat

_log = logging.getLogger("voxax.tuning")

PREFIX = "voxax/tuning/"
DECIDED, FAILED = "decided:", "failed:"

SLICE = 2.0
"""Seconds of one wait inside the coordinator's client, where Ctrl-C is not heard."""

_answers: dict[tuple[Any, str], str] = {}
"""By (job, topic): the answer that this process was told, or decided."""


def agree(topic: str, decide: Callable[[], str], *, timeout: float = 600.0) -> str:
    """The answer to ``topic`` that all processes of this job use.

    =====================================  ===============================================
    this process                           what it does
    =====================================  ===============================================
    is alone, or the job was shut down     ``decide()``
    asked this topic before                gives the same answer again
    is the first to claim the topic        ``decide()``, and publishes the answer
    finds it claimed                       waits for the answer
    waits in vain: the decision raised,    logs a warning, then ``decide()``
    took longer than ``timeout``, or the
    coordinator is gone
    =====================================  ===============================================

    So no process waits longer than ``timeout``, and only where the last row applies can two of
    them differ.

    Args:
      topic: any text that describes the decision completely, equal in all processes.
      decide: finds the answer, a text; some 100 kB are fine.
      timeout: seconds to wait for another process's answer.

    Raises:
      Exception: whatever ``decide`` raises in this process.
    """
    job = _compat.coordinator()
    if job is None:
        _answers.clear()
        return decide()
    client, name = job
    remembered = name, topic
    answer = _answers.get(remembered)
    if answer is None:
        # Two threads may come here at once; both keep what the first of them brings.
        answer = _answers.setdefault(remembered, _ask(client, topic, decide, timeout))
    return answer


def _ask(client: Any, topic: str, decide: Callable[[], str], timeout: float) -> str:
    # Hashed, since topics are longer than keys should be and may hold slashes.
    key = PREFIX + hashlib.sha256(topic.encode("utf-8", "backslashreplace")).hexdigest()
    try:
        client.key_value_set(f"{key}/claim", "claimed", allow_overwrite=False)
        refusal = None
    except Exception as error:  # the store refuses to set a key again
        refusal = error
    if refusal is None:
        return _decide_for_all(client, key, topic, decide)
    if "ALREADY_EXISTS" not in str(refusal):
        return _alone(topic, decide, f"the coordinator cannot be reached ({_brief(refusal)})")
    answer, problem = _wait(client, key, timeout)
    return _alone(topic, decide, problem) if answer is None else answer


def _decide_for_all(client: Any, key: str, topic: str, decide: Callable[[], str]) -> str:
    try:
        answer = decide()
    except BaseException as error:  # an interrupt, too, must not leave the others waiting
        with contextlib.suppress(Exception):
            client.key_value_set(f"{key}/answer", FAILED + _brief(error), allow_overwrite=False)
        raise
    try:
        client.key_value_set(f"{key}/answer", DECIDED + answer, allow_overwrite=False)
    except Exception as error:
        _log.warning(
            "the answer to %s did not reach the other processes: %s", _short(topic), _brief(error)
        )
    return answer


def _wait(client: Any, key: str, timeout: float) -> tuple[str | None, str]:
    """``(answer, "")``, or ``(None, why there is none)``."""
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        try:
            # At least a millisecond, so that an answer that is already there is always seen.
            wait = max(1, int(1000 * min(left, SLICE)))
            text = client.blocking_key_value_get(f"{key}/answer", wait)
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                return None, f"the coordinator cannot be reached ({_brief(error)})"
            if time.monotonic() >= end:
                return None, f"no other process answered within {timeout:g} s"
            continue
        if text.startswith(DECIDED):
            return text.removeprefix(DECIDED), ""
        return None, f"the process that decided failed ({text.removeprefix(FAILED)})"


def _alone(topic: str, decide: Callable[[], str], problem: str) -> str:
    _log.warning(
        "%s: this process decides %s for itself; the processes' programs may differ",
        problem,
        _short(topic),
    )
    return decide()


def _short(topic: str) -> str:
    return repr(topic if len(topic) <= 120 else f"{topic[:117]}...")


def _brief(error: BaseException) -> str:
    """The first line of an error, of bounded length."""
    line = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line.encode('ascii', 'backslashreplace').decode()}"
