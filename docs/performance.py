"""The pages of measurements: ``python docs/performance.py`` writes them from benchmark results.

Every figure on them is in a file of ``benchmarks/results``; nothing is typed in here. A page shows
the results that `PAGES` names; the first one lists all. The tables against other libraries are in
the README and on other pages too, whose copies a test compares, and images/speed.svg draws one.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
FOLDER = ROOT / "docs" / "performance"

# Page: its title, what is to be known of all its results, and which it shows. Longer tables, and
# those that another page has, are in the files alone.
PAGES = {
    "cpu": (
        "Measured on CPUs",
        "This page holds times of voxax alone on two cores of a processor. "
        "[Performance](../speed.md) compares it with other libraries.",
        ("native", "coordinates", "linearity"),
    ),
    "wait": (
        "The wait for first results",
        "This page shows how long a new process takes to its first results, beside the same "
        "networks in PyTorch.",
        ("first_call",),
    ),
    "tpu": (
        "Predicted for TPUs",
        "Nothing was measured on a TPU. These times are counted in the schedules of the TPU "
        "compiler: see [how times are predicted](../tpu_kernels.md#how-times-are-predicted).",
        ("tpu_layers", "tpu_minkunet_step", "tpu_ptv3_step", "tpu_maps"),
    ),
    "learning": (
        "What networks learned",
        "This page shows short trainings on two CPU cores. No network was trained to convergence.",
        ("segment_ahn3", "segment_semantickitti", "learned_size"),
    ),
}

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
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)
    from drawings.speed import draw_speed

    title = "Time of another library / time of voxax, on two cores of a CPU"
    columns = list(CLAIMS)[:2]
    rows = [(words, ranges[:2]) for words, ranges in claims(peers(), FEW_GROUPS)]
    draw_speed(ROOT / "docs" / "images" / "speed.svg", title, columns, rows)


def pages() -> dict[str, str]:
    """Return the text of every page, by file name."""
    made = {f"{name}.md": _page(*parts) for name, parts in PAGES.items()}
    return {"index.md": _index(), **made}


def _page(title: str, words: str, stems: tuple[str, ...]) -> str:
    parts = [f"{LAST}# {title}\n\n{WRITTEN}\n\n{words}\n", *map(_result, stems)]
    return "\n".join(parts).rstrip() + "\n"


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


def _index() -> str:
    """What was measured, what was not, and where each result is."""
    lines = []
    where = {stem: name for name, (_, _, stems) in PAGES.items() for stem in stems}
    for path in sorted(RESULTS.glob("*.md")):
        title = path.read_text().partition("\n")[0].removeprefix("# ")
        name = where.get(path.stem)
        shown = f"[{title}]({name}.md#{_anchor(title)})" if name else title
        lines.append(f"- {shown}: `{path.name}`")
    return (
        f"{LAST}# All measurements\n\n{WRITTEN}\n\n"
        "This page lists every result in `benchmarks/results`, and links to those with a page. "
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
        "| several machines | speed; the results of training over several processes were tested |\n"
        "| quality | no network was trained to convergence on a data set |\n"
    )


def _anchor(title: str) -> str:
    """Return the place of a heading, as Python-Markdown names it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def _result(stem: str) -> str:
    """A result as it is, a heading lower, with the files that it is from."""
    text = (RESULTS / f"{stem}.md").read_text().strip()
    text = re.sub(r"^(#+) ", r"#\1 ", text, flags=re.MULTILINE)
    title, _, rest = text.partition("\n")
    files = [f"{stem}.{kind}" for kind in ("md", "json") if (RESULTS / f"{stem}.{kind}").exists()]
    return f"{title}\n\n`benchmarks/results/`: {', '.join(f'`{f}`' for f in files)}\n{rest}\n"


if __name__ == "__main__":
    main()
