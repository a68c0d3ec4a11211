"""What is said and pinned about installing: true while no package index has voxax."""

import importlib.util
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


@pytest.fixture(scope="module")
def release():
    """The script that builds releases, as a module."""
    spec = importlib.util.spec_from_file_location("release_build", ROOT / "release/build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_places_of_the_version_agree(release):
    assert release.version() == __version__


def test_links_of_the_readme_lead_to_the_repository(release):
    text = "![a\nb](docs/a.png) [c](docs/b.md#d) [e](https://example.org/f) [g](#h)"
    assert release.with_addresses(text, "https://example.org/voxax/", "v1") == (
        "![a\nb](https://example.org/voxax/raw/v1/docs/a.png) "
        "[c](https://example.org/voxax/blob/v1/docs/b.md#d) [e](https://example.org/f) [g](#h)"
    )


def test_releases_have_pins_for_each_python(release):
    """Exact versions of everything that `voxax[demo]` needs, and no place to take them from."""
    extras = PROJECT["optional-dependencies"]
    needed = [*PROJECT["dependencies"], *extras["demo"]]
    needed += [line for name in ("nn", "io", "plot", "cli") for line in extras[name]]
    needed = {plain(line) for line in needed} - {"voxax"}
    for python in release.PYTHONS:
        lines = (ROOT / f"release/python{python}.txt").read_text().splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
        assert needed - {plain(line) for line in pins} == set()


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
