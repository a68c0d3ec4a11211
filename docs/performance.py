"""The performance page: ``python docs/performance.py`` writes it from what benchmarks have left.

Every figure on it is in a file of ``benchmarks/results``; nothing is typed in here. The table
against other libraries is in the README too, whose copy a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "performance.md"

# Sections, and the results that belong there; what no section names comes last.
SECTIONS = {
    "On CPUs": (
        *("peers", "peers_zen4", "peers_avx2", "native", "depthwise"),
        *("spconv", "spconv_kept_heap", "networks"),
        *("native_variants", "coordinates", "linearity"),
        *("memory", "memory_prediction", "tuning", "tuning_xla", "first_call"),
        *("dynamic", "sparse_dynamic"),
    ),
    "What networks learn": ("segment_ahn3", "segment_semantickitti", "learned_size"),
    "On several devices": ("halo",),
    "On GPUs": ("gpu",),
    "Predicted for TPUs": (
        *("tpu_layers", "tpu_maps", "tpu_sort", "tpu_minkunet_step", "tpu_ptv3_step"),
        *("tpu_cycles", "tpu_windows", "tpu_published"),
    ),
    "The checker of static programs": ("check_public_models",),
}
OTHERS = "Others"

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
FORWARD, BOTH = ("forward", "sorted", "shuffled", "inference"), ("forward+backward", "training")
OURS = ("voxax", "voxax-xla")

# The comparison on older processors, and what is to be known of them.
OLDER = {
    "peers_zen4": "which works on AVX-512's vectors in halves",
    "peers_avx2": "with AVX2 and no AVX-512, a turn being one call",
}


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """The page's text."""
    parts = [_head(), _against_others(), _not_measured()]
    for section, stems in sections().items():
        parts.append(f"## {section}\n")
        parts += [_result(stem) for stem in stems]
    return "\n".join(parts).rstrip() + "\n"


def sections() -> dict[str, tuple[str, ...]]:
    """Return the results that exist, by section."""
    there = sorted(path.stem for path in RESULTS.glob("*.md"))
    named = {stem for stems in SECTIONS.values() for stem in stems}
    found = {s: tuple(x for x in stems if x in there) for s, stems in SECTIONS.items()}
    rest = [stem for stem in there if stem not in named]
    for section, prefix in (("Predicted for TPUs", "tpu_"), ("On GPUs", "gpu")):
        own = [stem for stem in rest if stem.startswith(prefix)]
        found[section] += tuple(own)
        rest = [stem for stem in rest if stem not in own]
    found[OTHERS] = tuple(rest)
    return {section: stems for section, stems in found.items() if stems}


def peers(stem: str = "peers") -> dict[str, Any]:
    """Return the measurements against other libraries; ``OLDER``: on older processors."""
    return json.loads((RESULTS / f"{stem}.json").read_text())


def peers_table(stem: str = "peers") -> str:
    """Return the table of speeds relative to others: a row for each group of cases."""
    results = peers(stem)["results"]
    lines = ["| | forward | forward and backward |", "|---|---:|---:|"]
    for words, operation, channels in GROUPS:
        own = [
            r
            for r in results
            if r["case"][1] == operation and (channels is None or r["case"][2] in channels)
        ]
        cells = [_spread([r for r in own if r["case"][3] in modes]) for modes in (FORWARD, BOTH)]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines)


def claims_table(stem: str = "peers") -> str:
    """Return the table of the README: time of others over voxax's, which runs on two threads.

    The columns keep apart what is fair to compare: libraries with correct results on as many
    threads, spconv on the one thread where it is correct, and spconv with its wrong results.
    """
    lines = [f"| | {' | '.join(CLAIMS)} |", f"|---|{'---:|' * len(CLAIMS)}"]
    for words, operation, channels in GROUPS:
        own = [r for r in peers(stem)["results"] if r["case"][1] == operation]
        own = [r for r in own if channels is None or r["case"][2] in channels]
        for suffix, modes in (("", FORWARD), (", with gradients", BOTH)):
            cases = [r for r in own if r["case"][3] in modes]
            cells = [_range([s for r in cases for s in times(r)]) for times in CLAIMS.values()]
            if cases:
                lines.append(f"| {words}{suffix} | {' | '.join(cells)} |")
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


def fastest_right(result: dict[str, Any]) -> float:
    """Seconds of the fastest peer with right results, over voxax's.

    spconv adds rows from several threads without a lock, so of it only one thread counts, where
    that was timed: kernel maps are right on any number.
    """
    return _over(result, lambda name: name != "spconv" or "spconv single" not in result["seconds"])


def fastest(result: dict[str, Any]) -> float:
    """Seconds of the fastest peer, with right results or wrong ones, over voxax's."""
    return _over(result, lambda name: True)


def _over(result: dict[str, Any], counts: Callable[[str], bool]) -> float:
    seconds = result["seconds"]
    peer = min(s for name, s in seconds.items() if name not in OURS and counts(name))
    return peer / seconds["voxax"]


def _spread(results: list[dict[str, Any]]) -> str:
    return _range([fastest_right(r) for r in results])


def _range(ratios: list[float]) -> str:
    if not ratios:
        return ""
    low, high = f"{min(ratios):.1f}", f"{max(ratios):.1f}"
    return low if low == high else f"{low} to {high}"


def _head() -> str:
    return (
        "# Performance\n\n"
        "<!-- Written by docs/performance.py; run it again after a benchmark. -->\n\n"
        "All measurements, as the benchmarks wrote them to `benchmarks/results`. "
        "`benchmarks/README.md` describes how each was measured and how to repeat it. Results that "
        "were measured on a machine with other work say so.\n"
    )


def _against_others() -> str:
    measured = peers()
    slowest = min(fastest(r) for r in measured["results"])
    quickest = max(fastest(r) for r in measured["results"])
    names = [n for n in measured["versions"] if n in ("spconv", "Open3D", "PyTorch")]
    versions = ", ".join(f"{name} {measured['versions'][name]}" for name in names)
    return (
        "## Against other libraries\n\n"
        "Speed of voxax relative to the fastest other library with correct results, from the "
        f"lowest to the highest of {len(measured['results'])} cases: {versions}; "
        f"{measured['device']}, float32.\n\n"
        f"{peers_table()}\n\n"
        "spconv's results on more than one CPU thread are wrong, and left out here. Relative to "
        f"the fastest of all, wrong results included, it was {slowest:.1f} to {quickest:.1f} times "
        "as fast. Every case is [below](#voxax-and-its-peers-on-a-cpu).\n\n"
        "![Bars of the time over the lower bound of a 3x3x3 layer, for every library]"
        "(images/peers.svg)\n"
        + "".join(
            f"\nThe same on {peers(stem)['device']}, {words}:\n\n{peers_table(stem)}\n"
            for stem, words in OLDER.items()
        )
    )


def _not_measured() -> str:
    gpu = (RESULTS / "gpu.md").exists()
    chips = (
        "- **GPUs**: what is under [On GPUs](#on-gpus), and nothing else."
        if gpu
        else "- **GPUs: nothing.** No GPU benchmarks yet: the kernels compile, and have not run."
    )
    devices = sorted(
        {
            re.sub(r" \(.*?\)|, \d+ cores", "", measured["device"])
            for path in RESULTS.glob("*.json")
            if isinstance(measured := json.loads(path.read_text()), dict) and "device" in measured
        }
    )
    return (
        "## What was not measured\n\n"
        "- **TPUs: nothing.** The TPU figures below are counted in the compiler's own schedules, "
        "without a TPU. Predictions were compared with measurements that others published.\n"
        f"{chips}\n"
        f"- **Other CPUs.** All figures are of {' and '.join(devices)} with two cores; of AVX-512 "
        "only those whose text says so, the others with AVX2. ARM was never timed.\n"
        "- **MinkowskiEngine, TorchSparse, WarpConvNet and fVDB**, which target GPUs.\n"
        "- **Several machines**: training over several processes was tested for its results, not "
        "for its speed.\n"
        "- **Trained quality.** There are no pretrained weights, and no network was trained to "
        "convergence on a data set.\n"
    )


def _result(stem: str) -> str:
    """A result as it is, two headings lower, with the files that it is from."""
    text = (RESULTS / f"{stem}.md").read_text().strip()
    text = re.sub(r"^(#+) ", r"##\1 ", text, flags=re.MULTILINE)
    title, _, rest = text.partition("\n")
    files = [f"{stem}.{kind}" for kind in ("md", "json") if (RESULTS / f"{stem}.{kind}").exists()]
    return f"{title}\n\n`benchmarks/results/`: {', '.join(f'`{f}`' for f in files)}\n{rest}\n"


if __name__ == "__main__":
    main()
