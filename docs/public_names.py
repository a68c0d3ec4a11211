"""An extension of griffe, which reads the code for the API page.

griffe takes imported names for private, also those that a package hands on by ``from a import b as
b``, and it expects one parameter in each entry of a docstring.
"""

import inspect
import re

import griffe

SECTIONS = ("Args:", "Attributes:")
# The names of several parameters, which may go on in the next line, and what is said of all.
SHARED = re.compile(
    r"^(?P<names>\*{0,2}\w+(?:,\s+\*{0,2}\w+)+):(?P<text>.*?)(?=^\S|\Z)", re.M | re.S
)


def split_entries(text: str) -> str:
    """A docstring in which entries such as ``a, b: the operands`` are repeated for each name."""

    def repeated(match: re.Match) -> str:
        return "".join(f"{name}:{match['text']}" for name in re.split(r",\s+", match["names"]))

    parts = re.split(r"(?m)^(?=\S)", inspect.cleandoc(text))
    for i, part in enumerate(parts):
        title, _, body = part.partition("\n")
        if title in SECTIONS:
            entries = SHARED.sub(repeated, inspect.cleandoc("\n" + body) + "\n")
            indented = [f"  {line}" if line else "" for line in entries.splitlines()]
            parts[i] = "\n".join([title, *indented, "", ""])
    return "".join(parts)


class PublicNames(griffe.Extension):
    """Makes re-exported names public, and gives each parameter an entry of its own."""

    def on_alias_instance(self, *, node, alias, agent, **kwargs):
        """Called for each imported name."""
        del agent, kwargs
        if any(alias.name == name.asname == name.name for name in getattr(node, "names", ())):
            alias.public = True

    def on_object(self, *, obj, loader, **kwargs):
        """Called for each object once a package is loaded."""
        del loader, kwargs
        if obj.docstring:
            obj.docstring.value = split_entries(obj.docstring.value)
