"""An extension of griffe, which reads the code for the reference.

griffe takes imported names for private, also those that a package hands on by ``from a import b as
b``, and it expects one parameter in each entry of a docstring. Roles of Sphinx, which docstrings
have, mean nothing to Markdown: here they become links where the reference has the name. The keys of
``**options: Unpack[Options]`` become arguments by name, those of base classes included.
"""

import contextlib
import html
import inspect
import re
from collections.abc import Callable

import griffe

SECTIONS = ("Args:", "Attributes:")
# The names of several parameters, which may go on in the next line, and what is said of all.
SHARED = re.compile(
    r"^(?P<names>\*{0,2}\w+(?:,\s+\*{0,2}\w+)+):(?P<text>.*?)(?=^\S|\Z)", re.M | re.S
)

ROLE = re.compile(r":(?:func|class|meth|mod|data|attr|obj):`(?P<short>~?)(?P<name>[\w.]+)`")


def linked(text: str, resolve: Callable[[str], str]) -> str:
    """The text with a link, or code where nothing is there to link to, for each role."""

    def link(match: re.Match) -> str:
        name = match["name"]
        shown = name.rpartition(".")[2] if match["short"] else name
        identifier = html.escape(resolve(name))
        return f'<autoref identifier="{identifier}" optional><code>{shown}</code></autoref>'

    return ROLE.sub(link, text)


def resolver(obj: griffe.Object) -> Callable[[str], str]:
    """From a name as the object's module knows it to its path."""

    def resolve(name: str) -> str:
        first, dot, rest = name.partition(".")
        with contextlib.suppress(griffe.NameResolutionError):
            return obj.resolve(first) + dot + rest
        return name

    return resolve


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


def keys(options: griffe.Class) -> dict[str, griffe.Attribute]:
    """The keys of a ``TypedDict``, those of its bases first."""
    found = {}
    for base in options.resolved_bases:
        found |= keys(base.final_target if base.is_alias else base)
    return found | options.attributes


def name_options(function: griffe.Function) -> None:
    """Replace ``**options: Unpack[Options]`` by its keys; ``...`` is the default of the layer."""
    for parameter in list(function.parameters):
        unpacked = re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation))
        if unpacked is None:
            continue
        path = function.resolve(unpacked[1]).partition(".")[2]
        del function.parameters[parameter.name]
        for name, key in keys(function.package[path]).items():
            kind = griffe.ParameterKind.keyword_only
            shown = griffe.Parameter(name, annotation=key.annotation, kind=kind, default="...")
            function.parameters.add(shown)


def inherit_arguments(cls: griffe.Class) -> None:
    """Show the arguments of the class whose constructor this one has, where it lists none."""
    if not cls.docstring or "__init__" in cls.members or "Args:\n" in cls.docstring.value:
        return
    for base in cls.mro():
        text = f"{base.docstring.value}\n" if base.docstring else ""
        section = re.search(r"^Args:\n(?:  .*\n|\n)+", text, re.M)
        if section:
            cls.docstring.value += f"\n\n{section[0]}"
        if section or "__init__" in base.members:
            return


class PublicNames(griffe.Extension):
    """Makes re-exported names public, and names each parameter."""

    def on_alias_instance(self, *, node, alias, agent, **kwargs):
        """Called for each imported name."""
        del agent, kwargs
        if any(alias.name == name.asname == name.name for name in getattr(node, "names", ())):
            alias.public = True

    def on_object(self, *, obj, loader, **kwargs):
        """Called for each object once a package is loaded."""
        del loader, kwargs
        if obj.is_function:
            name_options(obj)
        if obj.is_class:
            inherit_arguments(obj)
        if obj.docstring:
            obj.docstring.value = linked(split_entries(obj.docstring.value), resolver(obj))
