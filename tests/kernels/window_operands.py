"""Where compiled programs keep the operand that the window kernels select rows from."""

import re

_OPERATION = re.compile(r"^\s+(?:ROOT )?%(\S+) = ([a-z]+[0-9]*\[[^ ]*) ", re.MULTILINE)
_KERNEL = re.compile(r' custom-call\(([^)]*)\), custom_call_target="tpu_custom_call"')
_MATRIX = re.compile(r"[a-z]+[0-9]*\[\d+,\d+\]")


def window_operands(program):
    """Return the shape and layout of that operand for each Pallas kernel, as HLO prints them.

    Visits have one axis; the table is the first operand of two, and this one the second.
    """
    text = program.as_text()
    shapes = dict(_OPERATION.findall(text))
    found = []
    for operands in _KERNEL.findall(text):
        layouts = [shapes[name] for name in re.findall(r"%([\w.\-]+)", operands)]
        found.append([layout for layout in layouts if _MATRIX.match(layout)][1])
    return found


def assert_in_its_memory(program, resident):
    """Check that every kernel finds it on the chip, ``S(...)``; or in HBM.

    A copy of a window from vector memory would be a loop of loads and stores.
    """
    layouts = window_operands(program)
    assert layouts
    assert all(("S(" in layout) == bool(resident) for layout in layouts), layouts
