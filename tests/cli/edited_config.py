"""Configurations with one edit each, and what is said of them, written as tables."""


def edited(text, edit):
    """Add to a table, ``[table] key = value``, or replace, ``old -> new``; ``;`` ends a line."""
    edit = edit.replace("; ", "\n")
    old, is_replaced, new = edit.partition("->")
    if is_replaced:
        assert text.count(old.strip()) == 1
        return text.replace(old.strip(), new.strip())
    table, _, lines = edit.partition("] ")
    if f"{table}]" in text:
        return text.replace(f"{table}]", f"{table}]\n{lines}")
    return text.replace("[data]", f"{table}]\n{lines}\n[data]")


def pairs(table):
    """The edits of a text and what is said of each, which stands in the line below it."""
    lines = [line.strip() for line in table.strip().splitlines()]
    return list(zip(lines[::2], lines[1::2], strict=True))
