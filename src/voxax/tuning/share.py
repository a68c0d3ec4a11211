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

_DECIDED, _FAILED = "decided:", "failed:"
_SLICE = 2.0  # seconds of one wait inside the coordinator's client, where Ctrl-C is not heard

_answers: dict[tuple[Any, str], str] = {}
"""By (job, topic): the answer that this process was told, or decided."""


def agree(topic: str, decide: Callable[[], str], *, timeout: float = 600.0) -> str:
    """The answer to ``topic`` that all processes of this job use.

    The first process that claims the topic decides; the others wait for its answer. A process that
    is alone, or whose job was shut down, decides each time. In a job a topic is decided once. Where
    the decision raised or took longer than ``timeout``, or the coordinator is gone, a process logs
    a warning and decides for itself: only then can two processes differ.

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
    if (name, topic) in _answers:
        return _answers[name, topic]
    # Hashed, since topics are longer than keys should be and may hold slashes.
    digest = hashlib.sha256(topic.encode("utf-8", "backslashreplace")).hexdigest()
    key, shown = f"voxax/tuning/{digest}", repr(topic if len(topic) <= 120 else f"{topic[:117]}...")
    answer, problem = None, ""
    try:
        client.key_value_set(f"{key}/claim", "claimed", allow_overwrite=False)
    except Exception as error:  # the store refuses to set a key again
        if "ALREADY_EXISTS" in str(error):
            answer, problem = _wait(client, key, timeout)
        else:
            problem = f"the coordinator cannot be reached ({_brief(error)})"
        if answer is None:
            _log.warning(
                "%s: this process decides %s for itself; the processes' programs may differ",
                problem,
                shown,
            )
            answer = decide()
    else:
        try:
            answer = decide()
        except BaseException as error:  # an interrupt, too, must not leave the others waiting
            with contextlib.suppress(Exception):
                told = _FAILED + _brief(error)
                client.key_value_set(f"{key}/answer", told, allow_overwrite=False)
            raise
        try:
            client.key_value_set(f"{key}/answer", _DECIDED + answer, allow_overwrite=False)
        except Exception as error:
            text = "the answer to %s did not reach the other processes: %s"
            _log.warning(text, shown, _brief(error))
    # Two threads may come here at once; both keep what the first of them brings.
    return _answers.setdefault((name, topic), answer)


def _wait(client: Any, key: str, timeout: float) -> tuple[str | None, str]:
    """``(answer, "")``, or ``(None, why there is none)``."""
    end = time.monotonic() + timeout
    while True:
        # At least a millisecond, so that an answer that is already there is always seen.
        wait = max(1, int(1000 * min(end - time.monotonic(), _SLICE)))
        try:
            text = client.blocking_key_value_get(f"{key}/answer", wait)
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                return None, f"the coordinator cannot be reached ({_brief(error)})"
            if time.monotonic() >= end:
                return None, f"no other process answered within {timeout:g} s"
            continue
        if text.startswith(_DECIDED):
            return text.removeprefix(_DECIDED), ""
        return None, f"the process that decided failed ({text.removeprefix(_FAILED)})"


def _brief(error: BaseException) -> str:
    """The first line of an error, of bounded length."""
    line = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line.encode('ascii', 'backslashreplace').decode()}"
