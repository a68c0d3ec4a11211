"""Choose the cases that run by default, and write them to ``fast_lane.txt``.

    PYTHONPATH=.:tests python tests/conformance/record_fast_lane.py

Compiling is what a case costs, and layouts share programs: every operator gets one number of
axes in float32 with three layouts, taking turns; every fourth one another dtype besides. Every
other one that takes an algorithm runs in one of its forms too, taking turns. The record changes
only when somebody runs this.
"""

import itertools
from pathlib import Path

from conformance.catalogue import OPERATORS
from conformance.forms import FORMS
from conformance.layouts import LAYOUTS
from conformance.test_conformance import every_case, form_cases


def chosen():
    """``(operator, ndim, dtype, layout, form or None)`` of the fast lane."""
    axes = itertools.cycle((3, 2, 2, 1, 3, 2, 4))
    turn = itertools.cycle(LAYOUTS)
    half = itertools.cycle(("bfloat16", "float16", "float64"))
    forms, by_operator = list(FORMS), form_cases()
    for number, operator in enumerate(OPERATORS.values()):
        ndim = next(d for d in axes if d in operator.dims)
        layouts = [name for name in LAYOUTS if name in (operator.layouts or LAYOUTS)]
        picked = {"random", *(name for name in (next(turn), next(turn)) if name in layouts)}
        for layout in picked & set(layouts) or layouts[:1]:
            yield operator.name, ndim, "float32", layout, None
        if number % 4 == 0 and (dtype := next(half)) in operator.dtypes:
            yield operator.name, ndim, dtype, layouts[0], None
    for number, ((name, ndim), cases) in enumerate(by_operator.items()):
        # Not in float64, which shares no program with the cases above.
        cases = [case for case in cases if case[0] != "float64"]
        there = {case[-1] for case in cases}
        form = next((f for f in forms if f in there), None)
        if form and number % 2 == 0:
            forms.append(forms.pop(forms.index(form)))  # the longest unused comes next
            yield from ((name, ndim, *case) for case in cases if case[-1] == form)


def main():
    wanted = set(chosen())
    names = [name for name, values in every_case() if values in wanted]
    Path(__file__).with_name("fast_lane.txt").write_text("\n".join(names) + "\n")
    print(f"{len(names)} of {sum(1 for _ in every_case())} cases")


if __name__ == "__main__":
    main()
