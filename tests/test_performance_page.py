"""The page of measurements is what its script makes of the committed results."""

import importlib.util
import json
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "docs" / "performance.py"


def script():
    spec = importlib.util.spec_from_file_location("performance", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_script_writes():
    page = script().PAGE
    assert [path.name for path in page.parent.iterdir()] == [page.name]
    assert page.read_text() == script().index(), "run python docs/performance.py"


def test_the_readme_and_the_summary_have_the_tables():
    few = script().FEW_GROUPS
    assert script().claims_table(groups=few) in (ROOT / "README.md").read_text()
    assert script().claims_table() in (ROOT / "docs" / "speed.md").read_text()
    older = (ROOT / "docs" / "cpu.md").read_text()
    for stem in script().OLDER:
        assert script().claims_table(stem, few) in older, stem


def test_the_chart_has_the_figures_of_the_table():
    chart = (ROOT / "docs" / "images" / "speed.svg").read_text()
    drawn = re.findall(r">([\d.]+) to ([\d.]+) times<", chart)
    rows = script().claims(script().peers(), script().FEW_GROUPS)
    ranges = [found for _, columns in rows for found in columns[:2] if found]
    assert drawn == [tuple(f"{ratio:.1f}" for ratio in found) for found in ranges]


def test_claims_keep_right_and_wrong_results_apart():
    peers = {"spconv": 2.0, "spconv single": 4.0, "torch loop": 3.0}
    seconds = {"voxax": 1.0, "voxax-xla": 0.1, **peers}
    columns = [of({"seconds": seconds}) for of in script().CLAIMS.values()]
    assert columns == [[3.0], [4.0], [2.0]]
    columns = [of({"seconds": {"voxax": 1.0, "spconv": 2.0}}) for of in script().CLAIMS.values()]
    assert columns == [[2.0], [], []]  # a kernel map: right on any number of threads
    network = {"voxax": 1.0, "spconv": 2.0, "spconv single": 4.0}
    assert [of({"seconds": network}) for of in script().CLAIMS.values()] == [[], [4.0], [2.0]]


def test_the_readme_names_what_was_measured():
    versions = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())["versions"]
    readme = re.sub(r"\s+", " ", (ROOT / "README.md").read_text())
    for peer in ("spconv", "Open3D"):
        assert f"{peer} {re.sub(r'.0$', '', versions[peer])}" in readme
    assert "its CPU backward runs only with the benchmark's patch" in readme
