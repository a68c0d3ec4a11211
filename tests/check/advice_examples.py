# ruff: noqa: RUF012
"""How examples of advice are written down and followed; used for JAX and for PyTorch."""

import re

from voxax.check.advice import ADVICE

PLACES = re.compile(r"\{[^}]*\}")


class Example:
    """A bad program and what its advice makes of it.

    `bad` gets the finding; every other function follows the advice, one for each way that it names.

    Attributes:
      key: of the advice.
      inputs: of all functions.
      given: inputs of a function that follows the advice, by its name, where they are others.
      options: of the check of `bad`.
      differs: functions that return something else than `bad` on purpose.
    """

    key = ""
    inputs = ()
    given: dict = {}
    options: dict = {}
    differs = ()


def followed(example):
    """The functions that follow the advice, by name."""
    known = {"bad", *dir(Example)}
    ways = {name: getattr(example, name) for name in dir(example) if name not in known}
    return {name: way for name, way in ways.items() if callable(way)}


def pattern_of(key):
    """Matches every text that a piece of advice can be."""
    parts = PLACES.split(ADVICE[key].replace("{{", "\0").replace("}}", "\1"))
    return "(?s)^" + ".*".join(
        re.escape(part.replace("\0", "{").replace("\1", "}")) for part in parts
    ) + "$"  # fmt: skip


def given_by(report, key):
    return [f for f in report.findings if re.match(pattern_of(key), f.fix)]
