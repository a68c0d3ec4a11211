"""Checks of single values in the tuning cache, which may come from anywhere.

Each raises ValueError, and nothing else, with a message that is safe to print.
"""

from __future__ import annotations

from typing import Any

MAX_NAME = 64
MAX_TEXT = 500
MAX_SECONDS = 1e6
_MAX_PARAMETERS = 32
_MAX_INTEGER = 1 << 53  # what every JSON reader keeps exactly


def check_parameters(parameters: Any) -> None:
    """Raise ValueError unless this is a sorted tuple of names with integers or text."""
    if not isinstance(parameters, tuple) or len(parameters) > _MAX_PARAMETERS:
        raise ValueError(f"parameters {shown(parameters)}: not a tuple of <= {_MAX_PARAMETERS}")
    for pair in parameters:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise ValueError(f"parameter {shown(pair)} is not a pair of name and value")
        name, value = pair
        check_text("a parameter's name", name, MAX_NAME)
        if isinstance(value, str):
            check_text(f"parameter {name}", value, MAX_NAME)
        else:
            check_integer(f"parameter {name}", value)
    names = [name for name, _ in parameters]
    if names != sorted(set(names)):
        raise ValueError(f"parameters {shown(names)} are not sorted, or one is there twice")


def check_text(name: str, value: Any, longest: int) -> None:
    """Raise ValueError unless this is printable text."""
    # Printable: these go to terminals, and a file may come from anywhere.
    if not (isinstance(value, str) and 0 < len(value) <= longest and value.isprintable()):
        raise ValueError(f"{name} {shown(value)}: not 1 to {longest} printable characters")


def check_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise ValueError unless this is one of ``known``."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} {shown(value)}: not one of {', '.join(known)}")


def check_integer(name: str, value: Any) -> None:
    """Raise ValueError unless this is an integer that JSON keeps."""
    if type(value) is not int or abs(value) > _MAX_INTEGER:
        raise ValueError(f"{name} {shown(value)}: not an integer of at most 2^53")


def check_seconds(name: str, value: Any) -> None:
    """Raise ValueError unless this is a finite time, 0 or more."""
    number = isinstance(value, float | int) and not isinstance(value, bool)
    if not number or not 0 <= value <= MAX_SECONDS:  # false for NaN
        raise ValueError(f"{name} {shown(value)}: not between 0 and {MAX_SECONDS:g}")


def one_line(text: str) -> str:
    """Printable text on one line, not too long."""
    text = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_TEXT])
    return " ".join(text.split())[:MAX_TEXT]


def shown(value: Any) -> str:
    """A short, printable form of anything, for messages."""
    try:
        text = ascii(value)
    except (ValueError, RecursionError):  # integers of thousands of digits; deep nesting
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
