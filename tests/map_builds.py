"""Counting the kernel maps that are built."""

import contextlib

import jax.monitoring

from voxax.geometry import MAP_BUILT_EVENT

_counters: list[list[str]] = []


@jax.monitoring.register_event_listener
def _listen(event, **_):
    if event == MAP_BUILT_EVENT:
        for counter in _counters:
            counter.append(event)


@contextlib.contextmanager
def builds(expected):
    """Exactly ``expected`` maps are built inside."""
    counter: list[str] = []
    _counters.append(counter)
    try:
        yield
    finally:
        _counters.remove(counter)
    assert len(counter) == expected
