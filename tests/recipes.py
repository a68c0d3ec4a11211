"""Recipes of the documentation, executed: the code that a reader copies is the code under test."""

import functools
from pathlib import Path

from test_docs import blocks

PAGE = Path(__file__).resolve().parents[1] / "docs" / "dynamic_operators.md"


@functools.cache
def recipe(name):
    """The function ``name`` of the page: its block runs alone, so a copy of it runs too."""
    for code, line, _ in blocks(PAGE.read_text()):
        if f"\ndef {name}(" in code:
            namespace = {"__name__": f"recipes.{name}"}
            # Blank lines in front, so that a traceback names the page's own line.
            exec(compile("\n" * line + code, str(PAGE), "exec"), namespace)
            return namespace[name]
    raise LookupError(f"{PAGE} has no block that defines {name}")
