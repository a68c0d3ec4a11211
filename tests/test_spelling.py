"""American spelling everywhere: names, messages, comments and pages."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("src", "native", "tests", "benchmarks", "docs", "examples", "README.md", "CONTRIBUTING.md")
KINDS = {".py", ".md", ".h", ".cc", ".txt", ".toml", ".json"}
BRITISH = re.compile(
    r"(?i:labell(ed|ing)|modell(ed|ing)|colou?r(?<=our)|neighbour|behaviour|favour|honour|centre(?!v)"
    r"|metre(?![a-z])|licence|(normal|initial|special|optim|serial|material|minim|maxim|organ|recogn"
    r"|summar|vector|quant|character|parametr|regular|synchron)is(e[ds]?\b|ing\b|ation)|analyse"
    r"|\bgrey\b|artefact|whilst|catalysed)"
)
# Words of other people's files, which readers accept.
ACCEPTED = {
    "src/voxax/io/columns.py": {"colour"},
    "src/voxax/plot/palette.py": {"labelled"},
    "tests/io/test_columns.py": {"Colour"},
    "docs/files.md": {"colour"},
}


def files(part):
    place = ROOT / part
    found = [place] if place.is_file() else sorted(place.rglob("*"))
    return [path for path in found if path.suffix in KINDS and path != Path(__file__)]


@pytest.mark.parametrize("part", PARTS)
def test_spelling_is_american(part):
    found = []
    for path in files(part):
        name = path.relative_to(ROOT).as_posix()
        for match in BRITISH.finditer(path.read_text(encoding="utf-8")):
            if match[0] not in ACCEPTED.get(name, ()):
                found.append(f"{name}: {match[0]}")
    assert found == []


@pytest.mark.parametrize(("word", "is_british"), [("colour", True), ("color", False)])
def test_british_words_are_found(word, is_british):
    assert bool(BRITISH.search(f"a {word} of")) == is_british
