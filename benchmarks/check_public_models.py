"""Is what the checker says about public models what compiling them shows?

    pip install "torch==2.13.0" "torchvision==0.28.0" "jax==0.10.2" flax "equinox==0.13.8" \\
        "transformers==5.24.0" "timm==1.0.31" "diffusers==0.42.1" "ultralytics==8.4.190" \\
        "torch-geometric==2.8.1" dm-haiku jraph
    python benchmarks/check_public_models.py [--only NAME ...] [--count] [--out FILE]

The models are those of `public_models.py`. Each gets a verdict, which is then held against an
oracle that shares nothing with the checker: `torch.export`, or the programs that `jax.jit` traces
for three inputs of equal shape. A model that is called static must be one program; one that is not
must be refused, or have a size or a value in its program that depends on data. `--count` also
counts the graphs of `torch.compile` for the three inputs, which takes minutes. What is not
installed is named and left out; torchvision must be built for the installed PyTorch.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import importlib.metadata
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from public_models import MODELS

RESULTS = Path(__file__).resolve().parent / "results"
INPUTS = 3


@dataclasses.dataclass(frozen=True)
class Compiled:
    """What compiling shows.

    Attributes:
      one: whether there is one program, of which no size depends on data.
      programs: how many were compiled for several inputs of equal shape; None where it fails, or
        is not counted.
      seen: what export or tracing says.
    """

    one: bool
    programs: int | None
    seen: str

    def shown(self) -> str:
        if self.programs is None:
            return self.seen
        return f"{self.seen}, {self.programs} graph{'s' if self.programs != 1 else ''}"


@dataclasses.dataclass(frozen=True)
class Row:
    """Result of checking one module."""

    name: str
    library: str
    report: Any
    compiled: Compiled
    seconds: float

    @property
    def agrees(self) -> bool:
        return (self.report.verdict in ("static", "static per value")) == self.compiled.one

    def cells(self) -> list[str]:
        found = {f.code for f in self.report.counted}
        return [
            self.name,
            self.library,
            str(self.report.verdict),
            ", ".join(sorted(found)) or "none",
            self.compiled.shown(),
            "yes" if self.agrees else "NO",
        ]


def _first_line(error: BaseException) -> str:
    text = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
    text = text.replace("|", "/")
    return text if len(text) <= 100 else text[:97] + "..."


def _counted(call: Callable[..., Any], inputs: Any, count: Callable[[], int]) -> int | None:
    """Return the programs for several inputs of equal shape."""
    import torch

    def other(value: Any, factor: float) -> Any:
        floats = isinstance(value, torch.Tensor) and value.is_floating_point()
        if not isinstance(value, torch.Tensor):
            floats = getattr(getattr(value, "dtype", None), "kind", "") == "f"
        return value * factor if floats else value

    try:
        for turn in range(INPUTS):
            call(*(other(value, 1 + turn / 16) for value in inputs))
    except Exception:
        return None
    return count()


def graphs_of_torch(module: Any, inputs: tuple[Any, ...]) -> int | None:
    """Return how many graphs ``torch.compile`` makes of a module."""
    import torch
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    torch._dynamo.reset()
    call = torch.compile(copy.deepcopy(module), backend=counter, dynamic=False)
    with torch.no_grad():
        return _counted(call, inputs, lambda: counter.frame_count)


def compiled_by_torch(module: Any, inputs: tuple[Any, ...], count: bool) -> Compiled:
    """Return what ``torch.export`` makes of a module, and ``torch.compile`` where it counts."""
    import torch

    programs = graphs_of_torch(module, inputs) if count else None
    try:
        program = torch.export.export(copy.deepcopy(module), inputs, strict=False)
    except Exception as error:
        return Compiled(False, programs, _first_line(error))
    for node in program.graph.nodes:
        values = node.meta.get("val")
        values = values if isinstance(values, tuple | list) else [values]
        numbers = any(isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool) for v in values)
        shapes = [size for v in values if isinstance(v, torch.Tensor) for size in v.shape]
        if numbers or any(isinstance(size, torch.SymInt) for size in shapes):
            return Compiled(False, programs, f"`{node.name}` depends on data")
    return Compiled(True, programs, "exported")


def compiled_by_jax(target: Any, inputs: tuple[Any, ...], count: bool = True) -> Compiled:
    """Return how many programs ``jax.jit`` traces, or its error; counting costs nothing here."""
    del count
    import jax
    from flax import nnx

    if isinstance(target, nnx.Module):
        structure, state = nnx.split(target)
        inputs = (state, *inputs)

        def function(state: Any, *rest: Any) -> Any:
            return nnx.merge(structure, state)(*rest)
    else:
        function: Callable[..., Any] = target
    traces = 0

    def counting(*values: Any) -> Any:
        nonlocal traces
        traces += 1
        return function(*values)

    call = jax.jit(counting)
    try:
        call(*inputs)
    except Exception as error:
        return Compiled(False, None, _first_line(error))
    programs = _counted(call, inputs, lambda: traces)
    return Compiled(programs == 1, programs, "traced")


def checked(name: str, count: bool) -> Row | str:
    """Return the row of one model, or why there is none."""
    import torch

    import voxax as vx

    library, _, build = MODELS[name]
    try:
        version = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return f"{name}: {library} is not installed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module, inputs = build()
        compiled = compiled_by_torch if isinstance(module, torch.nn.Module) else compiled_by_jax
        shown = compiled(module, inputs, count)
        begin = time.perf_counter()
        report = vx.check_static(module, *inputs, seconds=300)  # also on a busy machine
    return Row(name, f"{library} {version}", report, shown, time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=RESULTS / "check_public_models.md")
    parser.add_argument("--count", action="store_true", help="count torch.compile's graphs too")
    parser.add_argument("--full", action="store_true", help="print every report too")
    options = parser.parse_args()

    import jax
    import torch

    rows, missing = [], []
    for name in options.only:
        try:
            made = checked(name, options.count)
        except Exception as error:
            traceback.print_exc()
            made = f"{name}: could not be made or checked ({_first_line(error)})"
        if isinstance(made, str):
            missing.append(made)
            print(made, file=sys.stderr)
            continue
        rows.append(made)
        print(" | ".join(made.cells()), f"| {made.seconds:.1f} s", file=sys.stderr)
        if options.full:
            print(made.report)
    head = ["model", "library", "verdict", "findings", "oracle", "agree"]
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *(row.cells() for row in rows)]]
    lines.insert(1, "|" + "---|" * len(head))
    agreeing = sum(row.agrees for row in rows)
    text = (
        f"{agreeing} of {len(rows)} verdicts agree with exporting (PyTorch {torch.__version__}) or "
        f"tracing (JAX {jax.__version__}, {INPUTS} inputs of equal shape), Python "
        f"{platform.python_version()}.\n\n"
        + "\n".join(lines)
        + "\n"
        + "".join(f"\nNot there: {line}.\n" for line in missing)
    )
    print(text)
    if options.only == list(MODELS):
        options.out.write_text(
            "# Verdicts on public models\n\n"
            "Written by `benchmarks/check_public_models.py`.\n\n" + text.rstrip("\n") + "\n"
        )
    return agreeing != len(rows)


if __name__ == "__main__":
    sys.exit(main())
