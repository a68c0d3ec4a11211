"""Name what takes the place of public names that ``voxax.nn`` no longer has."""

from __future__ import annotations

from voxax.errors import RemovedNameError

_PAGE = "docs/dynamic_operators.md"


def _recipe(name: str, heading: str) -> str:
    return f"copy the recipe {name} under '{heading}' in {_PAGE}"


_SELECTIVE = _recipe("selective_conv", "Selective kernels and mixtures of kernels")
_MIXTURE = _recipe("mixture_conv", "Selective kernels and mixtures of kernels")
_ADAPTIVE = _recipe("pixel_adaptive_conv", "Pixel-adaptive convolution")
_BLUR = _recipe("gaussian_blur", "Gaussian blur of varying width")
_SPECTRAL = _recipe("spectral_stride", "Spectral stride")
_POINT = _recipe("point_conv", "PointConv")

FUNCTIONS = {
    "selective_conv": _SELECTIVE,
    "mixture_conv": f"call dynamic_conv(mixture=), or {_MIXTURE}",
    "pixel_adaptive_conv": _ADAPTIVE,
    "gaussian_blur": _BLUR,
    "spectral_stride": _SPECTRAL,
    "positional_stride_conv": _recipe("positional_stride_conv", "Positional stride"),
    "point_conv": f"call continuous_conv, or {_POINT}",
    "point_density": _recipe("point_density", "PointConv"),
}
MODULES = {
    "SelectiveConv": _SELECTIVE,
    "MixtureConv": f"use DynamicConv(num_weights=), or {_MIXTURE}",
    "PixelAdaptiveConv": _ADAPTIVE,
    "GaussianBlur": _BLUR,
    "Involution": _recipe("involution", "Involution"),
    "SpectralStride": _SPECTRAL,
    "PointConv": f"use ContinuousConv, or {_POINT}",
}


def missing(module: str, name: str, replacements: dict[str, str]) -> Exception:
    """Return the error for a name that ``module`` does not have."""
    if name in replacements:
        return RemovedNameError(f"{module}.{name} was removed: {replacements[name]}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")
