"""Reformat the docstrings of commands, so that their ``--help`` texts fit the terminal."""

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
    """Return a copy of a command's function with a docstring that tyro prints well.

    tyro keeps the line breaks of an option's text, so they are removed; tyro then wraps the text.
    tyro does not wrap the text above the options, so that is wrapped here. Commands that are not
    chosen keep only the first paragraph, for the list of commands.

    Args:
      command: function of a command. A section ``Args:`` must be the last of its docstring.
      arguments: command-line arguments; the first is the name of the chosen command.
    """
    about, _, options = inspect.cleandoc(command.__doc__ or "").partition("\nArgs:\n")
    summary, *paragraphs = re.split(r"\n{2,}", about.strip())
    lines = [" ".join(summary.split())]
    if list(arguments[:1]) == [command.__name__]:
        for paragraph in paragraphs:
            lines += ["", *_wrapped(paragraph)]
    if options:
        # An entry begins with its name, indented by two to four spaces; other lines have more.
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
    """Return the paragraph as lines that fit the terminal; every sentence begins a new line."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z`])", paragraph)
    # tyro joins lines that begin with a letter.
    options = {"initial_indent": _INDENT, "subsequent_indent": _INDENT, "break_on_hyphens": False}
    lines = [line for sentence in sentences for line in textwrap.wrap(sentence, width, **options)]
    return [lines[0].strip(), *lines[1:]]
