"""What is said and pinned about installing: true while no package index has voxax."""

import re
import tomllib
from pathlib import Path

import pytest

from voxax import __version__

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Installs from an index, which has no voxax: no path, no address, no wheel.
FROM_AN_INDEX = re.compile(r"""pip install (?:-\S+ )*["']?voxax(?![\w./-])(?!\[?[\w,]*\]? @ )""")


def test_pages_say_where_voxax_is_installed_from():
    found = [
        f"{page.relative_to(ROOT)}: {line.strip()}"
        for page in PAGES
        for line in page.read_text().splitlines()
        if FROM_AN_INDEX.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_from_an_index"),
    [
        ("pip install voxax", True),
        ('pip install "voxax[demo]" && voxax demo', True),
        ('pip install -U "voxax"', True),
        ('pip install -e ".[demo]"', False),
        ('pip install "voxax[demo] @ git+https://example.org/voxax"', False),
        ("pip install voxax-0.1.0-py3-none-any.whl", False),
    ],
)
def test_installing_from_an_index_is_found(line, is_from_an_index):
    assert bool(FROM_AN_INDEX.search(line)) == is_from_an_index


def test_the_version_stands_in_two_places_that_agree():
    assert PROJECT["version"] == __version__


def test_every_pin_is_of_something_that_is_installed():
    """No pin is left over: each is required, or comes with what is required."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    tools = re.search(r"^TOOLS = \((.*?)\)", (ROOT / "release/build.py").read_text(), re.M)[1]
    required = {plain(line) for line in [*PROJECT["dependencies"], *extras, *build]}
    required |= {plain(name.strip('" ')) for name in tools.split(",")}
    # Of these, the ones named here come with mkdocs-material, mkdocstrings, pytest, import-linter.
    required |= {"griffelib", "markdown", "mkdocs", "mkdocs-autorefs", "mkdocstrings-python"}
    required |= {"pymdown-extensions", "pluggy", "grimp"}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain(line) for line in lines if line and not line.startswith("#")}
    assert sorted(pinned - required) == []


def plain(requirement):
    """The normalized name of what a requirement is of."""
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement)[0]).lower()
