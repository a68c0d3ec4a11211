"""Examples in docstrings run, and give what they show; `docs/api.md` has their first lines."""

import doctest
import inspect
from pathlib import Path

import pytest

from test_docs import blocks
from test_docstrings import members, public

API = Path(__file__).resolve().parents[1] / "docs" / "api.md"
((BEGINNING, *_),) = blocks(API.read_text())

# Of an extra package, the others need none.
NEEDS = {"load": "safetensors", "save": "safetensors", "export_program": "flatbuffers"}
MOST_LINES = 8


def documented() -> dict[str, object]:
    """Public classes and functions, and the methods of classes."""
    found = dict(public(False))
    for name, value in public(False).items():
        if inspect.isclass(value):
            found |= {f"{name}.{last}": member for last, member in members(value).items()}
    return found


def examples() -> dict[str, doctest.DocTest]:
    """The examples by name; what has several names counts once."""
    texts: dict[str, str] = {}
    for name, value in documented().items():
        texts.setdefault(value.__doc__ or "", name)
    parser = doctest.DocTestParser()
    return {
        name: parser.get_doctest(inspect.cleandoc(text), {}, name, None, None)
        for text, name in texts.items()
        if ">>>" in text
    }


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
def test_example(name, tmp_path, monkeypatch):
    test = EXAMPLES[name]
    pytest.importorskip(NEEDS.get(name.rpartition(".")[2], "flax"))
    monkeypatch.chdir(tmp_path)
    exec(BEGINNING, test.globs)
    said = []
    doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)


def test_examples_are_short_and_many():
    lines = {name: test.docstring.count(">>>") for name, test in EXAMPLES.items()}
    assert max(lines.values()) <= MOST_LINES
    assert len(EXAMPLES) >= 60
