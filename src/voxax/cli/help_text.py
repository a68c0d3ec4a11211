"""Help texts that fit the terminal, from the docstrings of commands."""

from __future__ import annotations

import inspect
import re
import shutil
import textwrap
import types
from collections.abc import Callable, Sequence
from typing import Any

_WIDEST = 100
_INDENT = "  "


def fitted(command: Any, arguments: Sequence[str]) -> Callable[..., Any]:
    """Return the command with a docstring whose lines fit the terminal.

    The section ``Args:``, if any, must be the last of the docstring. tyro wraps the text of an
    option, but keeps the line breaks of the source. It does not wrap the text of a command. The
    list of all commands shows the first sentence of each.

    Args:
      command: function of the command.
      arguments: arguments of the command line; the first is the name of the chosen command.
    """
    about, _, options = inspect.cleandoc(command.__doc__ or "").partition("\nArgs:\n")
    summary, *paragraphs = re.split(r"\n{2,}", about.strip())
    lines = [" ".join(summary.split())]
    if list(arguments[:1]) == [command.__name__]:
        for paragraph in paragraphs:
            lines += ["", *_wrapped(paragraph)]
    if options:
        # An entry begins with its name, four spaces from the margin; the rest is indented more.
        lines += ["", "Args:", re.sub(r"\n {5,}", " ", options)]
    copy = types.FunctionType(
        command.__code__,
        command.__globals__,
        command.__name__,
        command.__defaults__,
        command.__closure__,
    )
    copy.__kwdefaults__, copy.__annotations__ = command.__kwdefaults__, command.__annotations__
    copy.__dict__.update(command.__dict__)
    copy.__doc__ = "\n".join(lines)
    return copy


def _wrapped(paragraph: str) -> list[str]:
    """Return the lines of a paragraph; every sentence begins a new line."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])", paragraph)
    # tyro joins lines that begin with a letter.
    options = {"initial_indent": _INDENT, "subsequent_indent": _INDENT, "break_on_hyphens": False}
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, width, **options)]
    return [lines[0].strip(), *lines[1:]]
