"""Commands of ``voxax`` in the documentation, and configurations in tutorials, are taken."""

import functools
import importlib
import re
import shlex
from pathlib import Path

import pytest

from voxax.cli import main
from voxax.cli.train_config import read_config

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = (
    *(
        "bench",
        "cache",
        "check",
        "demo",
        "detect",
        "evaluate",
        "explain",
        "export",
        "hardware",
        "segment",
        "train",
    ),
    *("tune", "view"),
)

SHELL = re.compile(r"^```(?:bash|sh)\n(?P<lines>.*?)^```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`voxax (?P<line>[^`]*)`")


def commands(text: str) -> set[str]:
    """The arguments of each ``voxax`` call in shell blocks."""
    found = set()
    for block in SHELL.finditer(text):
        lines = block["lines"].replace("\\\n", " ")
        for line in re.split(r"\n|&&|;", lines):
            words = shlex.split(line, comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                del words[0]
            if words[:1] == ["voxax"]:
                found.add(shlex.join(words[1:]))
    return found


# Of commands that share a module with another one.
MODULES = {"cache": "cache_command", "explain": "tune"}
DOCUMENTED = sorted({(c, p.name) for p in PAGES for c in commands(p.read_text())})


def test_commands_are_found():
    text = "```bash\npip x && voxax demo --steps 3  # why\nA=1 voxax tune \\\n  --file f\n```\n"
    assert commands(text) == {"demo --steps 3", "tune --file f"}
    assert ("demo", "start.md") in DOCUMENTED


@pytest.fixture
def called(monkeypatch):
    """The commands do nothing but note that they were called; their arguments are parsed."""
    names: list[str] = []

    def silent(function):
        @functools.wraps(function)
        def note(*arguments, **options):
            names.append(function.__name__)
            return 0

        return note

    for name in COMMANDS:
        module = importlib.import_module(f"voxax.cli.{MODULES.get(name, name)}")
        monkeypatch.setattr(module, name, silent(getattr(module, name)))
    return names


@pytest.mark.parametrize(("line", "page"), DOCUMENTED)
def test_documented_command(line, page, called, capsys):
    assert main(shlex.split(line)) == 0, f"{page}: {capsys.readouterr().err}"
    assert called == [line.split()[0]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_sentences_exist(page):
    """`voxax NAME` in running text, without parsing what may be a sketch."""
    for match in INLINE.finditer(page.read_text()):
        assert match["line"].split()[0] in COMMANDS, match[0]


CONFIGURATION = re.compile(r"^```toml\n(?P<text>task = .*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["classification", "detection", "fine_tuning", "segmentation"])
def test_configurations_of_tutorials_are_taken(name, tmp_path):
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()
    texts = [match["text"] for match in CONFIGURATION.finditer(page)]
    assert len(texts) == (2 if name == "fine_tuning" else 1)
    for text in texts:
        path = tmp_path / "own.toml"
        path.write_text(text)
        assert read_config(path).training.steps
