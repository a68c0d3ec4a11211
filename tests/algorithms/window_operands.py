"""Where compiled programs keep the operand that the window kernels copy windows of."""

import re

_OPERATION = re.compile(r"^\s+(?:ROOT )?%(\S+) = ((?:[a-z]+[0-9]*)\[[^ ]*) ", re.MULTILINE)
_KERNEL = re.compile(r' custom-call\(([^)]*)\), custom_call_target="tpu_custom_call"')


def window_operands(program):
    """Return the shape and layout of that operand for each Pallas kernel, as HLO prints them.

    It is the first that holds no integers of 32 bits: visits and the table stand before it.
    """
    text = program.as_text()
    shapes = dict(_OPERATION.findall(text))
    found = []
    for operands in _KERNEL.findall(text):
        layouts = [shapes[name] for name in re.findall(r"%([\w.\-]+)", operands)]
        found.append(next(layout for layout in layouts if not layout.startswith("s32")))
    return found


def assert_in_hbm(program):
    """Check that no kernel finds it in vector memory, ``S(1)``, where copies would be loops."""
    layouts = window_operands(program)
    assert layouts
    assert not [layout for layout in layouts if "S(" in layout], layouts
