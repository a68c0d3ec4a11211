"""A hook of mkdocs: links from the pages to the project's tests lead to pages with their source.

In the repository such a link is ``../../tests/some_test.py``; the site has no files outside of
``docs``, so it gets a page for each test file that some page links to.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\((?P<up>(?:\.\./)+)(?P<test>tests/[\w/]+)\.py")


def on_files(files, config):
    """Add the pages of all linked tests."""
    linked = set()
    for page in files.documentation_pages():
        linked |= {match["test"] for match in LINK.finditer(page.content_string)}
    for test in sorted(linked):
        source = (ROOT / f"{test}.py").read_text()
        content = f"---\nsearch:\n  exclude: true\n---\n\n# {test}.py\n\n```python\n{source}```\n"
        files.append(File.generated(config, f"{test}.md", content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead the links there: one level less up, as the pages lie inside of ``docs``."""
    del page, config, files

    def inside(match):
        return f"]({match['up'].removeprefix('../')}{match['test']}.md"

    return LINK.sub(inside, markdown)
