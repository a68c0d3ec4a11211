"""The page of each code shows what has the code, and what has it not."""

import re
from pathlib import Path

import pytest

import voxax as vx
from check.corpus import load

pytestmark = pytest.mark.lax_promotion

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs" / "check").glob("VX*.md"))
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
# Of PyTorch, about several examples, and with functions of their own.
OTHERS = ("VX192", "VX311", "VX201", "VX202", "VX203", "VX204")


@pytest.mark.parametrize(
    "page", [p for p in PAGES if p.stem not in OTHERS], ids=lambda page: page.stem
)
def test_page(page, tmp_path):
    file = tmp_path / f"{page.stem}.py"
    file.write_text("\n\n".join(BLOCK.findall(page.read_text())))
    shown = load(file)
    wrong = vx.check_static(shown.wrong, shown.x)
    assert page.stem in {f.code for f in wrong.findings}, str(wrong)
    right = vx.check_static(shown.right, shown.x)
    assert page.stem not in {f.code for f in right.findings}, str(right)
    assert right.verdict == "static", str(right)
