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

import copy
import importlib.metadata
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from benchmarks.public_models import MODELS

INPUTS = 3


class Compiled(NamedTuple):
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


def compiled_by_jax(target: Any, inputs: tuple[Any, ...]) -> Compiled:
    """Return how many programs ``jax.jit`` traces, or its error; counting costs nothing here."""
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


def checked(name: str, count: bool, full: bool) -> list[str]:
    """Return the row of one model.

    Raises:
      PackageNotFoundError: its library is not installed.
    """
    import torch

    import voxax as vx

    library, _, build = MODELS[name]
    version = importlib.metadata.version(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module, inputs = build()
        if isinstance(module, torch.nn.Module):
            found = compiled_by_torch(module, inputs, count)
        else:
            found = compiled_by_jax(module, inputs)
        begin = time.perf_counter()
        made = vx.check_static(module, *inputs, seconds=300)  # also on a busy machine
    print(f"{name}: {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    if full:
        print(made)
    agrees = (made.verdict in ("static", "static per value")) == found.one
    findings = ", ".join(sorted({f.code for f in made.counted})) or "none"
    number = found.programs
    graphs = "" if number is None else f", {number} graph{'s' if number != 1 else ''}"
    oracle = f"{found.seen}{graphs}"
    verdict = str(made.verdict)
    return [name, f"{library} {version}", verdict, findings, oracle, "yes" if agrees else "NO"]


def main() -> int:
    parser = report.options(__doc__, only=tuple(MODELS))
    parser.add_argument("--count", action="store_true", help="count torch.compile's graphs too")
    parser.add_argument("--full", action="store_true", help="print every report too")
    options = parser.parse_args()

    import jax
    import torch

    rows, missing = [], []
    for name in options.only:
        try:
            rows.append(checked(name, options.count, options.full))
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{name}: {MODELS[name][0]} is not installed")
        except Exception as error:
            traceback.print_exc()
            missing.append(f"{name}: could not be made or checked ({_first_line(error)})")
    agreeing = sum(row[-1] == "yes" for row in rows)
    lines = [
        "# Verdicts on public models",
        "",
        "Written by `benchmarks/check_public_models.py`.",
        "",
        f"{agreeing} of {len(rows)} verdicts agree with exporting (PyTorch {torch.__version__}) or "
        f"tracing (JAX {jax.__version__}, {INPUTS} inputs of equal shape), Python "
        f"{platform.python_version()}.",
        "",
        *report.table(["model", "library", "verdict", "findings", "oracle", "agree"], rows, 6),
        *(f"\nNot there: {line}." for line in missing),
    ]
    if options.only == list(MODELS):
        report.write(options.out, "check_public_models", None, lines)
    else:
        print("\n".join(lines))
    return agreeing != len(rows)


if __name__ == "__main__":
    sys.exit(main())
