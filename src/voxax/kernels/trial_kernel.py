"""Script that tests Triton's compiler: ``python -m voxax.kernels.trial_kernel 12.1``.

It compiles a small kernel for a GPU of that compute capability. ``triton_call.py`` runs it in a
separate process, since LLVM may crash.
"""

# pyright: reportMissingImports=false
# Triton is an extra, which is absent where types are checked.

from __future__ import annotations

import sys

import triton
import triton.language as tl

from voxax import _compat


@triton.jit
def _product(a, b, c, SIDE: tl.constexpr):
    places = tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]
    tl.store(c + places, tl.dot(tl.load(a + places), tl.load(b + places)))


if __name__ == "__main__":
    types = ["*fp16", "*fp16", "*fp32"]
    _compat.compiled_by_triton(_product, types, {"SIDE": 64}, sys.argv[1], warps=4, stages=2)
