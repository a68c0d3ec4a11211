"""Pictures of docs/operators/convolution.md."""

import numpy as np

import voxax as vx

from .panel import Panel
from .samples import convolution, voxels_at


def submanifold() -> list[Panel]:
    """Stride 1."""
    return convolution(voxels_at(), (2, 2), kernel_size=3, note="same sites")


def strided() -> list[Panel]:
    """A partition into blocks."""
    return convolution(voxels_at(), (1, 1), kernel_size=2, stride=2, note="stride 2")


def overlapping() -> list[Panel]:
    """Stride 2, kernel 3."""
    return convolution(voxels_at(), (1, 1), kernel_size=3, stride=2, note="stride 2")


def dilated() -> list[Panel]:
    """Holes between the taps."""
    return convolution(voxels_at(), (3, 2), kernel_size=3, dilation=2)


def anisotropic() -> list[Panel]:
    """Another size and stride along each axis."""
    options = {"kernel_size": (3, 2), "stride": (1, 2)}
    return convolution(voxels_at(), (1, 1), **options, note="stride (1, 2)")


def sizes() -> list[Panel]:
    """Draw the offsets that a kernel of each size covers."""
    box = ((-1, 3), (-1, 3))
    return [
        *(
            Panel(f"size {size}", kernel=vx.KernelSpec.make(2, size), extent=box)
            for size in (1, 2, 3, 4)
        ),
        Panel("size 3, stride 3", kernel=vx.KernelSpec.make(2, 3, 3), extent=box),
    ]


def shapes() -> list[Panel]:
    """Box, cross, custom."""
    custom = ((0, 0), (1, 0), (2, 1), (2, 2))
    return [
        Panel("box", kernel=vx.KernelSpec.make(2, 3)),
        Panel("cross", kernel=vx.KernelSpec.make(2, 3, kernel_shape="cross")),
        Panel("cross, size 5", kernel=vx.KernelSpec.make(2, 5, kernel_shape="cross")),
        Panel("custom", kernel=vx.KernelSpec.make(2, kernel_shape=custom)),
    ]


def groups() -> list[Panel]:
    """Draw the input channels (right) that reach each output channel (up)."""
    inputs, outputs = np.divmod(np.arange(16), 4)
    panels = []
    for title, number in (("groups=1", 1), ("groups=2", 2), ("depthwise", 4)):
        joined = inputs * number // 4 == outputs * number // 4
        cells = np.stack([inputs, outputs], axis=1)[joined]
        panels.append(
            Panel(
                title,
                cells,
                groups=cells[:, 0] * number // 4,
                axes=True,
                extent=((0, 4), (0, 4)),
                note="→ input channel\n↑ output channel",
            )
        )
    return panels


def one_axis() -> list[Panel]:
    """D = 1."""
    voxels = voxels_at([(0,), (1,), (3,), (4,), (5,), (8,)])
    return convolution(voxels, (4,), kernel_size=3)


PICTURES = (
    submanifold,
    strided,
    overlapping,
    dilated,
    anisotropic,
    sizes,
    shapes,
    groups,
    one_axis,
)
