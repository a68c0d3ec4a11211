"""A fact and where it comes from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

UNKNOWN_SOURCE = "unknown"


@dataclasses.dataclass(frozen=True)
class Fact:
    """One value with its source.

    Attributes:
      value: None where nobody knows.
      source: who said so (``jax memory_stats``, ``/proc/cpuinfo``, ``NVML``, ``probe``,
        ``default: ...``), or ``unknown``.
    """

    value: Any
    source: str

    @property
    def known(self) -> bool:
        """Whether any source could tell."""
        return self.source != UNKNOWN_SOURCE


UNKNOWN = Fact(None, UNKNOWN_SOURCE)

Facts = dict[str, Fact]


def told(source: str, **values: Any) -> Facts:
    """Facts by field name from one source; values that are None are left out."""
    return {name: Fact(value, source) for name, value in values.items() if value is not None}


def first_known(sources: Iterable[Mapping[str, Fact]]) -> Facts:
    """Each field as the first source that knows it says."""
    facts: Facts = {}
    for source in sources:
        for name, fact in source.items():
            if fact.known:
                facts.setdefault(name, fact)
    return facts
