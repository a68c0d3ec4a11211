"""The pictures of the operators' pages: drawn by the library as it is, and all in their places."""

import importlib.util
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
DOCS = Path(__file__).resolve().parents[1] / "docs"
FOLDER = DOCS / "images" / "operators"
PAGES = sorted((DOCS / "operators").glob("*.md"))


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
