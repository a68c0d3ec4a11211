"""spconv-triton on a GPU: the modules of spconv under another name, in a process of its own."""

from __future__ import annotations

import sys

import spconv_triton
import spconv_triton.pytorch

sys.modules["spconv"] = spconv_triton
sys.modules["spconv.pytorch"] = spconv_triton.pytorch

from benchmarks.gpu.by_spconv import measure, torch  # noqa: E402

__all__ = ["measure", "versions"]


def versions() -> dict[str, str]:
    return {"spconv-triton": spconv_triton.__version__, "PyTorch": torch.__version__}
