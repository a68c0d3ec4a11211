"""The page of measurements: ``python docs/performance.py`` writes it from benchmark results.

It lists every file of ``benchmarks/results``, which the site shows as pages. The tables against
other libraries are in the README and on other pages, whose copies a test compares, and
images/speed.svg draws one. Nothing is typed in here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance" / "index.md"

# Layers by their channels, in the order of the table: (words, operation, mode, channels).
GROUPS = (
    ("3x3x3, 16 and 32 channels", "conv3", (16, 32)),
    ("3x3x3, 64 channels", "conv3", (64,)),
    ("3x3x3, 128 and 256 channels", "conv3", (128, 256)),
    ("2x2x2 of stride 2, 64 channels", "conv2s2", None),
    ("3x3x3 of stride 2, 64 channels", "conv3s2", None),
    ("kernel map 3x3x3", "map3", None),
    ("MinkUNet18 with its maps", "minkunet18", None),
)
# Those of the README.
FEW_GROUPS = (
    ("3x3x3, 16 to 256 channels", "conv3", None),
    ("MinkUNet18 with its maps", "minkunet18", None),
)
FORWARD, BOTH = ("forward", "sorted", "shuffled", "inference"), ("forward+backward", "training")
OURS = ("voxax", "voxax-xla")

# The comparison on older processors.
OLDER = ("peers_zen4", "peers_avx2")

# Other pages come first where a search finds both.
LAST = "---\nsearch:\n  boost: 0.3\n---\n\n"
WRITTEN = "<!-- Written by docs/performance.py; run it again after a benchmark. -->"


def main() -> None:
    """Write the page and the chart."""
    PAGE.write_text(index())
    from drawings.speed import draw_speed

    title = "Time of another library / time of voxax, on two cores of a CPU"
    columns = list(CLAIMS)[:2]
    rows = [(words, ranges[:2]) for words, ranges in claims(peers(), FEW_GROUPS)]
    draw_speed(ROOT / "docs" / "images" / "speed.svg", title, columns, rows)


def peers(stem: str = "peers") -> dict[str, Any]:
    """Return the measurements against other libraries; ``OLDER``: on older processors."""
    return json.loads((RESULTS / f"{stem}.json").read_text())


Group = tuple[str, str, tuple[int, ...] | None]
Range = tuple[float, float]


Claim = tuple[str, list[Range | None]]


def claims(found: dict[str, Any], groups: tuple[Group, ...]) -> list[Claim]:
    """Return rows: the time of others over voxax's, which runs on two threads, least and most.

    The columns keep apart what is fair to compare: libraries with correct results on as many
    threads, spconv on the one thread where it is correct, and spconv with its wrong results.
    """
    rows = []
    for words, operation, channels in groups:
        own = [r for r in found["results"] if r["case"][1] == operation]
        own = [r for r in own if channels is None or r["case"][2] in channels]
        for suffix, modes in (("", FORWARD), (", with gradients", BOTH)):
            cases = [r for r in own if r["case"][3] in modes]
            ratios = [[s for r in cases for s in times(r)] for times in CLAIMS.values()]
            if cases:
                ranges = [(min(some), max(some)) if some else None for some in ratios]
                rows.append((words + suffix, ranges))
    return rows


def claims_table(stem: str = "peers", groups: tuple[Group, ...] = GROUPS) -> str:
    """Return the table of :func:`claims`."""
    lines = [f"| | {' | '.join(CLAIMS)} |", f"|---|{'---:|' * len(CLAIMS)}"]
    for words, ranges in claims(peers(stem), groups):
        lines.append(f"| {words} | {' | '.join(map(_range, ranges))} |")
    return "\n".join(lines)


def _correct_on_as_many(result: dict[str, Any]) -> list[float]:
    """spconv is among them for kernel maps alone, which are right on any number of threads."""
    races = "spconv single" in result["seconds"]
    others = [
        seconds
        for name, seconds in result["seconds"].items()
        if name not in OURS and name != "spconv single" and not (races and name == "spconv")
    ]
    return [min(others) / result["seconds"]["voxax"]] if others else []


def _spconv_on_one(result: dict[str, Any]) -> list[float]:
    seconds = result["seconds"]
    return [seconds["spconv single"] / seconds["voxax"]] if "spconv single" in seconds else []


def _spconv_with_races(result: dict[str, Any]) -> list[float]:
    seconds = result["seconds"]
    races = {"spconv", "spconv single"} <= seconds.keys()
    return [seconds["spconv"] / seconds["voxax"]] if races else []


CLAIMS = {
    "fastest correct library, 2 threads": _correct_on_as_many,
    "spconv, 1 thread: correct": _spconv_on_one,
    "spconv, 2 threads: wrong": _spconv_with_races,
}


def _range(found: Range | None) -> str:
    if found is None:
        return ""
    low, high = (f"{ratio:.1f}" for ratio in found)
    return low if low == high else f"{low} to {high}"


def index() -> str:
    """What was measured, what was not, and where each result is."""
    lines = []
    for path in sorted(RESULTS.glob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}](../../benchmarks/results/{path.name})")
    return (
        f"{LAST}# All measurements\n\n{WRITTEN}\n\n"
        "This page lists every result in `benchmarks/results`. "
        "`benchmarks/README.md` describes how each was measured and how to repeat it.\n\n"
        f"{_not_measured()}\n## Results\n\n" + "\n".join(lines) + "\n"
    )


def _not_measured() -> str:
    processors = sorted(
        {
            re.sub(r" ?\(.*?\)|, \d+ cores| Processor", "", measured["device"])
            for path in RESULTS.glob("*.json")
            if isinstance(measured := json.loads(path.read_text()), dict) and "device" in measured
        }
    )
    return (
        "## What was not measured\n\n"
        "| | what is missing |\n|---|---|\n"
        "| TPUs | everything: figures for TPUs are predictions |\n"
        "| GPUs | all but [ten minutes on one H100](../gpu.md#measured-on-an-h100) |\n"
        f"| CPUs | all but {' and '.join(processors)} with two cores; ARM was never timed |\n"
        "| other libraries | WarpConvNet, fVDB, TorchSparse 2 |\n"
        "| several machines | speed; results were tested with several processes on one machine |\n"
        "| quality | no network was trained to convergence on a data set |\n"
    )


if __name__ == "__main__":
    main()
