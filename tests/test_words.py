"""The documentation stays short: lines of the README, words of all pages, each, the changelog.

Words are those of the text as a reader sees it, tables included and code not. All pages count
together; those of the group *Design notes*, where measurements and internals stand, not alone.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CODE = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$", re.MULTILINE | re.DOTALL)

LINES_OF_README = 120
WORDS_TOGETHER = 34_500
# About 12 screens of 900 pixels at a width of 1,280, with code between the words.
WORDS_OF_A_PAGE = 1_500
WORDS_OF_A_VERSION = 900  # in the changelog


def words(text: str) -> int:
    """Words of the text without code, comments, marks of tables and the targets of links."""
    text = re.sub(r"<!--.*?-->", "", CODE.sub("", text), flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return sum(bool(re.search(r"\w", word)) for word in text.replace("|", " ").split())


def design_notes() -> set[str]:
    """The pages of the group in the navigation."""
    nav = (ROOT / "mkdocs.yml").read_text()
    group = nav.partition("  - Design notes:\n")[2].partition("\n  - ")[0]
    return set(re.findall(r": ([\w/.-]+\.md)$", group, re.MULTILINE))


ALL = sorted(DOCS.rglob("*.md"))
PAGES = [page for page in ALL if page.relative_to(DOCS).as_posix() not in design_notes()]


def test_words_are_counted():
    text = '# A b\n\n| c | – |\n|---|---|\n[d](e "f g")\n```python\nh i\n```\n<!-- j -->\n'
    assert words(text) == 4
    assert {"cpu.md", "performance/index.md"} <= design_notes()
    assert not {"index.md", "quickstart.md"} & design_notes()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= LINES_OF_README


def test_the_changelog_is_short():
    versions = (ROOT / "CHANGELOG.md").read_text().split("\n## ")[1:]
    assert [v[:20] for v in versions if words(v) > WORDS_OF_A_VERSION] == []


def test_the_pages_are_short_together():
    assert sum(words(page.read_text()) for page in ALL) <= WORDS_TOGETHER


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_is_short(page):
    assert words(page.read_text()) <= WORDS_OF_A_PAGE
