"""Measure what a check of a large PyTorch module costs, beside exporting it.

    python benchmarks/checker_cost.py

A ViT-L of 24 layers and width 1024 (304 million parameters), one picture of 224x224. `torch.export`
and `voxax.check_static` run one after the other, each in processes of their own, after a small
module has loaded what both import. Memory is what the process grew by at its peak, beyond the
module; in brackets, with it. Linux. The table goes to results/checker_cost.md.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from pathlib import Path
from typing import Any

from own_process import in_own_process, peak_added_by

RESULTS = Path(__file__).parent / "results"
TURNS = 3
MOST = 3.0  # times export's seconds, and times its memory


def vit(width: int, depth: int) -> Any:
    """A vision transformer of torch.nn's own layers."""
    import torch

    class ViT(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = torch.nn.Conv2d(3, width, 16, 16)
            self.token = torch.nn.Parameter(torch.zeros(1, 1, width))
            self.position = torch.nn.Parameter(torch.zeros(1, 197, width))
            layer = torch.nn.TransformerEncoderLayer
            self.blocks = torch.nn.Sequential(
                *(
                    layer(width, width // 64, 4 * width, activation="gelu", batch_first=True,
                          norm_first=True)
                    for _ in range(depth)
                )
            )  # fmt: skip
            self.norm = torch.nn.LayerNorm(width)
            self.head = torch.nn.Linear(width, 1000)

        def forward(self, pictures: Any) -> Any:
            x = self.patch(pictures).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.position
            return self.head(self.norm(self.blocks(x))[:, 0])

    return ViT().eval()


def one(what: str) -> dict[str, Any]:
    """One row: seconds and bytes of exporting or checking."""
    import torch

    import voxax as vx

    picture = torch.randn(1, 3, 224, 224)

    def run(module: Any) -> Any:
        if what == "export":
            return torch.export.export(module, (picture,), strict=False)
        return vx.check_static(module, picture)

    run(vit(64, 1))
    module = vit(1024, 24)
    size = sum(p.numel() * p.element_size() for p in module.parameters())
    seconds = 0.0

    def timed() -> Any:
        nonlocal seconds
        begin = time.perf_counter()
        result = run(module)
        seconds = time.perf_counter() - begin
        return result

    added = peak_added_by(timed)
    return {"seconds": seconds, "added": added, "whole": size + added}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS / "checker_cost.md")
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"export": [], "check": []}
    for _ in range(TURNS):
        for what, rows in found.items():
            rows.append(in_own_process("checker_cost", "one", what))
    middle = {
        what: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for what, rows in found.items()
    }
    import torch

    lines = [
        "# Cost of a check",
        "",
        "Written by `benchmarks/checker_cost.py`: a ViT-L of 24 layers, width 1024, one picture. "
        f"Medians of {TURNS}, on {platform.machine()} with {torch.get_num_threads()} threads, "
        f"PyTorch {torch.__version__}.",
        "",
        "| | seconds | MiB beyond the module | MiB with it |",
        "|---|---:|---:|---:|",
    ]
    for label, what in (("`torch.export`", "export"), ("`vx.check_static`", "check")):
        row = middle[what]
        memory = (f"{row[name] / 2**20:.0f}" for name in ("added", "whole"))
        lines.append(f"| {label} | {row['seconds']:.2f} | {' | '.join(memory)} |")
    times = {name: value / middle["export"][name] for name, value in middle["check"].items()}
    lines.append("| times export | " + " | ".join(f"{t:.2f}" for t in times.values()) + " |")
    text = "\n".join(lines) + "\n"
    print(text)
    options.out.write_text(text)
    return int(any(t > MOST for t in times.values()))


if __name__ == "__main__":
    raise SystemExit(main())
