"""The pictures of the operators' pages: drawn by the library as it is, and all in their places."""

import importlib.util
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER = DOCS / "images" / "operators"
PAGES = sorted((DOCS / "operators").glob("*.md"))
LINK = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[^)]+)\)")


def script():
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(DOCS))  # as where the script is run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(DOCS))
    return module


# Slow but for one small page: together the pictures compile hundreds of programs.
DRAWN = [
    pytest.param(name, marks=() if name == "order" else pytest.mark.slow) for name in script().PAGES
]


def texts(path):
    root = ET.parse(path).getroot()
    return [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_shows_pictures_that_exist(page):
    links = list(LINK.finditer(page.read_text()))
    assert links
    assert [link["path"] for link in links if not (page.parent / link["path"]).is_file()] == []
    assert [link["path"] for link in links if not link["alt"]] == []


def test_every_picture_is_shown():
    shown = {Path(link["path"]).name for page in PAGES for link in LINK.finditer(page.read_text())}
    assert sorted(shown) == sorted(path.name for path in FOLDER.iterdir())


def test_every_picture_has_a_function():
    pages = script().PAGES
    assert sorted(pages) == [page.stem for page in PAGES if page.stem != "index"]
    names = [name for page in pages for name, *_ in script().pictures(page)]
    assert sorted(names) == sorted(path.name for path in FOLDER.iterdir())


@pytest.mark.lax_promotion
@pytest.mark.parametrize("page", DRAWN)
def test_pictures_are_those_of_the_library(page, tmp_path):
    pictures = script()
    for name, function, options in pictures.pictures(page):
        drawn = pictures.draw_sites(function(), tmp_path / name, **options)
        # Shapes depend on the version of matplotlib, the words and numbers do not.
        assert texts(drawn) == texts(FOLDER / name), f"run `python docs/pictures.py {name}`"
