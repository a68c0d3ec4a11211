"""Help texts fit a terminal of 80 columns, and break lines where it ends or a sentence does."""

import re

import pytest

from voxax.cli import main
from voxax.cli.help_text import fitted

COMMANDS = (
    *("demo", "train", "evaluate", "segment", "detect", "view", "hardware"),
    *("tune", "explain", "bench", "cache", "check", "export"),
)


def help_of(arguments, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--help"])
    assert stop.value.code == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_fits_80_columns(command, monkeypatch, capsys):
    lines = help_of(command, monkeypatch, capsys)
    # The list of commands in the first line is tyro's.
    assert [line for line in lines if len(line) > 80 and not line.startswith("usage:")] == []


def test_lines_are_filled(monkeypatch, capsys):
    """A line ends before its end only where the next word would not fit, or an entry ends."""
    lines = [line for line in help_of(["view"], monkeypatch, capsys) if line.startswith("│")]
    texts = [line.strip("│ ") for line in lines]
    widths = [len(line.strip("│").rstrip()) for line in lines]
    for width, text, following in zip(widths, texts, texts[1:], strict=False):
        is_entry = following.startswith("-")
        if is_entry or text.startswith("-") or text.endswith(")"):
            continue
        assert width + 1 + len(following.split(" ")[0]) > 76, text


def test_the_list_of_commands_has_their_summaries(monkeypatch, capsys):
    text = " ".join(" ".join(help_of([], monkeypatch, capsys)).replace("│", " ").split())
    for name in COMMANDS:
        assert f"• {name} " in text
    assert "voxax.export.load_program" not in text


def test_a_sentence_begins_a_line(monkeypatch):
    def command(size: int = 1) -> int:
        """Do this.

        It is one sentence that the
        source breaks. This is another.

        Args:
            size: Of what there is,
                or of nothing.
        """
        return size

    text = fitted(command, ["command"]).__doc__
    assert "It is one sentence that the source breaks.\n  This is another." in text
    assert re.search(r"size: Of what there is, or of nothing\.$", text)
    assert "sentence" not in fitted(command, []).__doc__
    assert fitted(command, [])(3) == 3
