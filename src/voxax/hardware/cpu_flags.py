"""What a processor's flags, as the kernel lists them, say about its arithmetic.

Names are the kernel's, on x86 and on Arm.
"""

from __future__ import annotations

from collections.abc import Collection

# Widest first: the number of float32 values in one register.
_LANES = (
    ("avx512f", 16),
    ("avx2", 8),
    ("avx", 8),
    ("sve", 4),  # at least: SVE does not tell its length here
    ("asimd", 4),
    ("sse2", 4),
)
_PREFIXES = ("sse", "ssse", "avx", "amx", "sve", "sme_", "asimd")
_SINGLE = ("sme", "sme2", "fma", "f16c", "neon", "bf16", "fphp", "i8mm", "rvv", "altivec", "vsx")
_ALWAYS = ("float32", "float64", "int8", "int16", "int32", "int64")
_DTYPES = {
    "float16": ("avx512_fp16", "amx_fp16", "fphp", "asimdhp"),
    "bfloat16": ("avx512_bf16", "amx_bf16", "bf16"),
}


def vector_extensions(flags: Collection[str] | None) -> tuple[str, ...] | None:
    """The flags that name vector instructions, sorted; None without flags."""
    if flags is None:
        return None
    return tuple(sorted(f for f in flags if f.startswith(_PREFIXES) or f in _SINGLE))


def vector_lanes(flags: Collection[str] | None) -> int | None:
    """32-bit values in one vector register; None if no flag tells."""
    return next((lanes for flag, lanes in _LANES if flag in (flags or ())), None)


def native_dtypes(flags: Collection[str] | None) -> tuple[str, ...] | None:
    """Dtypes with arithmetic of their own; None without flags."""
    if flags is None:
        return None
    more = (dtype for dtype, needed in _DTYPES.items() if any(f in flags for f in needed))
    return (*_ALWAYS, *more)
