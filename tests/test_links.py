"""Every link of the README and the documentation leads somewhere: pages, headings, files, pictures.

Addresses of other sites cannot be asked here: they are held to their form, and to be hosts that are
listed below, so that a misspelt one is seen.
"""

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
# Add a host here before you link to it, after having looked at it.
HOSTS = {
    "docs.jax.dev",
    "docs.kidger.site",
    "flax.readthedocs.io",
    "github.com",
    "google-grain.readthedocs.io",
    "keepachangelog.com",
    "semver.org",
    "viser.studio",
}

FENCE = re.compile(
    r"^(?P<indent> *)(?P<marks>```+)(?P<kind>\w*).*?\n(?P<code>.*?)^(?P=indent)(?P=marks)$",
    re.M | re.S,
)
INLINE = re.compile(r"`[^`\n]*`")
LINK = re.compile(
    r"(?P<picture>!?)\[(?P<words>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)(?: \"[^\"]*\")?\)"
)
BARE = re.compile(r"(?:<|\b)(?P<address>https?://[^\s>)`\"]+)")
HEADING = re.compile(r"^#{1,6} +(?P<words>.*?)(?: +\{#(?P<id>[\w-]+)\})? *$", re.M)
ANCHOR = re.compile(r"<a (?:id|name)=\"(?P<id>[^\"]+)\"")
API = re.compile(r"^::: (?P<name>\S+)", re.M)


def prose(text):
    """Return the text without code, whose brackets are not links."""
    return INLINE.sub("``", FENCE.sub("", text))


def slug(words):
    """A heading's anchor, as both Python-Markdown and GitHub make it of plain words."""
    words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", words).replace("`", "").replace("*", "")
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", words).strip().lower())


@functools.cache
def anchors(page):
    """The names of a page's places."""
    text = page.read_text()
    plain = FENCE.sub("", text)
    found = set()
    for match in HEADING.finditer(plain):
        name = match["id"] or slug(match["words"])
        number, own = 0, name
        while own in found:  # Python-Markdown numbers those that come again
            number += 1
            own = f"{name}_{number}"
        found.add(own)
    return (
        found | {m["id"] for m in ANCHOR.finditer(plain)} | {m["name"] for m in API.finditer(text)}
    )


def links(page):
    """``(target, whether it is a picture, what it says)``; a picture may be inside a link."""
    for match in LINK.finditer(prose(page.read_text())):
        yield match["target"], bool(match["picture"]), match["words"]
        for inner in LINK.finditer(match["words"]):
            yield inner["target"], bool(inner["picture"]), inner["words"]


def trouble(page, target, picture, words):
    """Return what is wrong with a link, or None."""
    parts = urlsplit(target)
    if parts.scheme:
        if parts.scheme != "https" or parts.netloc not in HOSTS:
            return f"{target}: not https, or a host that is not listed in {Path(__file__).name}"
        return None
    path = (page.parent / parts.path).resolve() if parts.path else page
    if not path.is_file():
        return f"{target}: no such file"
    if picture and not words:
        return f"{target}: a picture without words"
    if picture and path.stat().st_size == 0:
        return f"{target}: an empty picture"
    if parts.fragment and (path.suffix != ".md" or parts.fragment not in anchors(path)):
        return f"{target}: {path.name} has no such heading"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    found = [trouble(page, *link) for link in links(page)]
    assert [word for word in found if word] == []


def test_pages_that_the_library_names_exist():
    """In messages and docstrings, as ``docs/page.md`` or a folder."""
    named = {
        (path, page.rstrip("."))
        for path in (ROOT / "src").rglob("*.py")
        for page in re.findall(r"\bdocs/[\w./-]+", path.read_text())
    }
    assert {page for _, page in named} >= {"docs/spconv.md", "docs/warpconvnet.md"}
    assert (
        sorted(f"{path.name}: {page}" for path, page in named if not (ROOT / page).exists()) == []
    )


def test_bare_addresses_are_of_known_hosts():
    local = re.compile(r"https?://(localhost|127\.0\.0\.1|0\.0\.0\.0)\b")
    wrong = [
        (page.name, match["address"])
        for page in PAGES
        for match in BARE.finditer(page.read_text())
        if not local.match(match["address"]) and urlsplit(match["address"]).netloc not in HOSTS
    ]
    assert wrong == []


def test_every_picture_is_shown():
    """None lies there that no page shows."""
    shown = {
        (page.parent / target).resolve()
        for page in PAGES
        for target, picture, _ in links(page)
        if picture
    }
    lying = {path.resolve() for path in (ROOT / "docs" / "images").rglob("*") if path.is_file()}
    assert sorted(path.name for path in lying - shown) == []


def test_pages_are_in_the_navigation():
    nav = (ROOT / "mkdocs.yml").read_text()
    for page in sorted((ROOT / "docs").rglob("*.md")):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name.startswith("check/") or f": {name}\n" in nav, name
    for name in re.findall(r": ([\w/]+\.md)$", nav, re.M):
        assert (ROOT / "docs" / name).is_file(), name


def shell_lines():
    """``(page, words)`` of every command in a shell block."""
    for page in PAGES:
        for block in FENCE.finditer(page.read_text()):
            if block["kind"] not in ("bash", "sh"):
                continue
            lines = block["code"].replace("\\\n", " ")
            for line in re.split(r"\n|&&|;", re.sub(r"(^|\s)#.*", "", lines, flags=re.M)):
                words = shlex.split(line.rstrip("& "), comments=True)
                while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                    del words[0]
                if words:
                    yield page, words


# Commands of other programs that the pages name; what they do is not ours to test.
OTHERS = {"source", "cmake", "cp", "ruff", "pyright", "lint-imports", "mkdocs", "pre-commit"}


def test_every_command_is_known():
    ours = {"voxax", "python", "python3", "pip", "pytest"}
    unknown = {
        (page.name, words[0])
        for page, words in shell_lines()
        if words[0] not in ours | OTHERS and not (ROOT / words[0]).is_file()
    }
    assert unknown == set()


def test_scripts_that_are_called_exist_and_have_the_options():
    number = 0
    for page, words in shell_lines():
        if words[0] not in ("python", "python3") or words[1].startswith("-"):
            continue
        script = ROOT / words[1]
        assert script.is_file(), (page.name, words[1])
        source = "".join(path.read_text() for path in script.parent.glob("*.py"))
        source += "".join(path.read_text() for path in (ROOT / "benchmarks").glob("*.py"))
        for word in words[2:]:
            name = word.partition("=")[0]
            if name.startswith("--"):
                assert f'"{name}"' in source, (page.name, words[1], name)
                number += 1
    assert number > 5


def test_extras_that_are_installed_exist():
    import tomllib

    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = re.compile(r"(?:voxax|\.)\[(?P<extras>[\w,]+)\]")
    for page in PAGES:
        for match in named.finditer(page.read_text()):
            for extra in match["extras"].split(","):
                assert extra in known, (page.name, match[0])


# Of what a page adds itself, `all_taps`, `test_architecture.py` runs the command.
SELECTIONS = sorted(
    {
        tuple(words[1:])
        for _, words in shell_lines()
        if words[0] == "pytest" and words[1:] and "all_taps" not in words
    }
)


@pytest.mark.slow
@pytest.mark.parametrize("words", SELECTIONS, ids=" ".join)
def test_pytest_commands_select_tests(words):
    """Check that the pages' pytest commands select tests."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", *words]
    # Where this run leaves tests out, nothing could be left of few.
    whole = {name: value for name, value in os.environ.items() if name != "VOXAX_TEST_PARTS"}
    result = subprocess.run(
        command, cwd=ROOT, env=whole, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-500:]
