"""A hook of mkdocs: links to tests, examples and results lead to pages with their text.

In the repository such a link is ``../../tests/some_test.py`` or ``../benchmarks/results/some.md``.
The site has no files outside of ``docs``, so it gets a page for each such file that some page
links to: the source of a program, a result as it is.
"""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(
    r"\]\((?P<up>(?:\.\./)+)"
    r"(?P<name>(?:tests|examples)/[\w/]+(?=\.py)|benchmarks/results/\w+(?=\.md))\.\w+"
)
HEAD = "---\nsearch:\n  exclude: true\n---\n\n"


def on_files(files, config):
    """Add a page for each linked file."""
    linked = set()
    for page in files.documentation_pages():
        linked |= {match["name"] for match in LINK.finditer(page.content_string)}
    for name in sorted(linked):
        if name.startswith("benchmarks/"):
            content = HEAD + (ROOT / f"{name}.md").read_text()
        else:
            source = (ROOT / f"{name}.py").read_text()
            content = f"{HEAD}# {name}.py\n\n```python\n{source}```\n"
        files.append(File.generated(config, f"{name}.md", content=content))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead the links there: one level less up, as the pages lie inside of ``docs``."""
    del page, config, files

    def inside(match):
        return f"]({match['up'].removeprefix('../')}{match['name']}.md"

    return LINK.sub(inside, markdown)
