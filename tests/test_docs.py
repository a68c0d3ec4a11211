"""Every Python block of the README and the documentation runs.

The blocks of one page run in order in one namespace, in an empty folder. A block that cannot run
here (it needs a file or a device) has the line `<!-- no-run -->` before it; it is still compiled.
A page that needs PyTorch says so in a line of its own; see `pages`. Links and commands are held by
`test_links.py`, commands of `voxax` by `cli/test_documented_commands.py`.
"""

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(page for page in [ROOT / "README.md"] if page.exists()),
    *sorted((ROOT / "docs").rglob("*.md")),
]

BLOCK = re.compile(
    r"^(?P<skip><!-- no-run -->[ \t]*\n(?:[ \t]*\n)*)?"
    r"^(?P<indent>[ \t]*)```python[^\n]*\n(?P<code>.*?)^(?P=indent)```[ \t]*$",
    re.MULTILINE | re.DOTALL,
)


def blocks(text: str):
    """Yields (code, first line number, whether to run it) of each Python block."""
    for match in BLOCK.finditer(text):
        indent = match["indent"]
        lines = [line.removeprefix(indent) for line in match["code"].splitlines()]
        yield "\n".join(lines), text[: match.start("code")].count("\n"), match["skip"] is None


def test_blocks_are_found():
    text = "a\n```python\nx = 1\n```\n\n<!-- no-run -->\n\n```python\ny\n```\n```bash\nls\n```\n"
    assert list(blocks(text)) == [("x = 1", 2, True), ("y", 8, False)]


def without_torch(text: str) -> str:
    """The part of a page that runs alone, with its own line numbers; empty if there is none."""
    before, mark, after = text.partition("<!-- from here without torch -->\n")
    return "\n" * (before + mark).count("\n") + after if mark else ""


def pages():
    """A page with the line `<!-- needs torch -->` runs with `pytest -m torch` only, but a part."""
    for page in PAGES:
        text, name = page.read_text(), str(page.relative_to(ROOT))
        needs_torch = "<!-- needs torch -->\n" in text
        marks = [pytest.mark.torch] if needs_torch else []
        yield pytest.param(page, text, marks=marks, id=name)
        if part := without_torch(text):
            yield pytest.param(page, part, id=f"{name} without torch")


@pytest.mark.lax_promotion
@pytest.mark.parametrize(("page", "text"), list(pages()))
def test_page(page, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # One page registers these names itself; another test of this process may have imported them.
    for name in [n for n in sys.modules if n.partition(".")[0] in ("spconv", "cumm")]:
        monkeypatch.delitem(sys.modules, name)
    namespace = {"__name__": f"docs.{page.stem}"}
    for code, line, runs in blocks(text):
        # Blank lines in front, so that a traceback names the page's own line.
        compiled = compile("\n" * line + code, str(page), "exec")
        if runs:
            exec(compiled, namespace)


HEAD = re.compile(
    r"(?:---\n(?P<matter>(?:[a-z]+:.*\n(?: +.*\n)*)+)---\n\n)?# (?P<title>\S.*)\n(?:\n|\Z)"
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_its_title(page):
    """Before it stands one block of settings, or nothing: what follows a block is shown as text."""
    text = page.read_text()
    assert HEAD.match(text)
    prose = re.sub(r"^( *)```.*?^ *```$", "", text, flags=re.M | re.S)
    assert len(re.findall(r"^# ", prose, re.M)) == 1


@pytest.fixture(scope="module")
def rendered():
    """A function from a page's text to its HTML, as the site renders it."""
    pytest.importorskip("mkdocs", reason="the documentation's packages are not installed")
    import markdown
    from mkdocs.config import load_config
    from mkdocs.utils.meta import get_data

    settings = load_config(str(ROOT / "mkdocs.yml"))
    extensions, options = settings["markdown_extensions"], settings["mdx_configs"]
    return lambda text: markdown.markdown(
        get_data(text)[0], extensions=extensions, extension_configs=options
    )


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: str(page.relative_to(ROOT)))
def test_a_built_page_begins_with_its_heading(page, rendered):
    html = re.sub(r"<!--.*?-->", "", rendered(page.read_text()), flags=re.S)
    assert html.lstrip().startswith("<h1")
    assert html.count("<h1") == 1


def test_settings_in_the_wrong_form_are_seen_on_a_built_page(rendered):
    assert rendered("---\nsearch:\n  boost: 2\n---\n\n# Title\n").startswith("<h1")
    twice = "---\nsearch:\n  boost: 2\n---\n\n---\nhide:\n---\n\n# Title\n"
    assert not rendered(twice).startswith("<h1")


def draws_weights(call):
    """Whether a call builds a layer or a network of voxax with random weights."""
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    library = getattr(getattr(call.func, "value", None), "id", "")
    if library in ("nnx", "torch", "vxt", "spconv", "spnn", "ME", "nn"):
        return False
    layer = re.fullmatch(r"\w*Conv(Transpose)?\dd|Linear|\w+(Attention|Encoder|Backbone)", name)
    network = re.fullmatch(r"\w*UNet\w*|PTv3|SECOND|\w*CenterPoint|VoxelNeXt|GridUn?[Pp]ool", name)
    return bool(layer or network or (name == "create" and "models" in ast.unparse(call.func)))


EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=lambda page: str(page.relative_to(ROOT)))
def test_layers_are_built_from_streams(page):
    """Without ``rngs`` weights depend on whatever else the process has built before."""
    text = page.read_text()
    codes = [text] if page.suffix == ".py" else [code for code, *_ in blocks(text)]
    without = [
        ast.unparse(call)
        for code in codes
        for call in ast.walk(ast.parse(code))
        if isinstance(call, ast.Call) and draws_weights(call)
        if not {"rngs", None} & {keyword.arg for keyword in call.keywords}
        if "nn.Module" not in code and "warpconvnet" not in code  # of other libraries
    ]
    assert not without


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_configurations_are_well_formed(page):
    """Blocks of TOML and JSON; what the keys mean, the tests of their readers say."""
    readers = {"toml": tomllib.loads, "json": json.loads}
    for kind, code in re.findall(r"^```(toml|json)\n(.*?)^```", page.read_text(), re.M | re.S):
        assert readers[kind](code)


# The first pages state which measurements are missing; once a GPU or a TPU was measured,
# its results are in `benchmarks/results`, and these sentences must go.
@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_limitations_are_stated(name):
    text = (ROOT / name).read_text()
    results = ROOT / "benchmarks" / "results"
    assert "**No pretrained weights" in text
    assert ("**No run on a TPU" in text) != (results / "tpu.md").exists()
    assert ("**One GPU, once" in text) == (results / "gpu.md").exists()
