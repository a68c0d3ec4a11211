"""Agreement of the processes of a JAX job: one process decides, and the others use its decision.

The processes of a multi-process JAX job must choose the same algorithms, or their compiled programs
differ. They agree through the key-value store of ``jax.distributed``'s coordinator. A collective
would not work, because a process that finds its answer in its own cache would not join it.
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
_SLICE = 2.0  # seconds of one wait in the coordinator's client, which Ctrl-C does not interrupt

_answers: dict[tuple[Any, str], str] = {}
"""The answers that this process received or decided, by ``(job, topic)``."""


def agree(topic: str, decide: Callable[[], str], *, timeout: float = 600.0) -> str:
    """Call `decide` in one process of this JAX job, and return its result in all processes.

    The first process that claims the topic calls `decide`, and the others wait for the answer. A
    job decides each topic once. Outside of a job, `decide` is called every time.

    A waiting process logs a warning and calls `decide` itself if the first process raised an error,
    if there is no answer after `timeout` seconds, or if the coordinator is gone. Only then can the
    answers of processes differ.

    Args:
      topic: text that describes the decision completely and is equal in all processes.
      decide: function that returns the answer, a text of at most about 100 kB.
      timeout: seconds to wait for the answer of another process.

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
    # Hashed, because topics are longer than keys should be and may contain slashes.
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
    # Two threads may arrive here at once; both use the answer of the first one.
    return _answers.setdefault((name, topic), answer)


def _wait(client: Any, key: str, timeout: float) -> tuple[str | None, str]:
    """Wait until another process has stored its answer for `key`; return ``(answer, "")``.

    `client` is JAX's client of the job's coordinator, which stores the answers. If no answer comes
    within `timeout` seconds, the coordinator cannot be reached or the other process failed, return
    ``(None, error)``, where ``error`` is a text.
    """
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
    """Return the type and the first line of an error as ASCII text of bounded length."""
    line = (str(error).splitlines() or [""])[0][:200]
    return f"{type(error).__name__}: {line.encode('ascii', 'backslashreplace').decode()}"
