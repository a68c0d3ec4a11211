"""Convolutions, every kind that the semantics contract names."""

import functools

import numpy as np

import voxax as vx
from conformance.definition import Operator
from conformance.layouts import CAPACITY
from oracle import per_axis
from oracle.convolution import conv, make_offsets, reached_sites, strided_sites
from voxax.nn.functional import spatially_sparse_conv, spatially_sparse_depthwise_conv

C_OUT = 4

# Sites that a tap reaches beyond the coordinate range are an error of their own.
WITHIN_RANGE = ("random", "line", "gap_in_batch", "duplicates", "full", "one_voxel", "no_voxel")


class Kernel:
    """The static arguments of a convolution; per-axis ones are written for four axes."""

    def __init__(self, size=3, stride=1, dilation=1, shape="box", transposed=False):
        self.size, self.stride, self.dilation = size, stride, dilation
        self.shape, self.transposed = shape, transposed

    def at(self, ndim):
        """Return the kernel for ``ndim`` axes: ``(size, stride, dilation, shape)``."""
        cut = [
            v if isinstance(v, int) else v[:ndim] for v in (self.size, self.stride, self.dilation)
        ]
        return (*cut, self.shape(ndim) if callable(self.shape) else self.shape)

    def arguments(self, ndim):
        """Return the arguments of ``spatially_sparse_conv``."""
        size, stride, dilation, shape = self.at(ndim)
        return {
            "kernel_size": size,
            "stride": stride,
            "dilation": dilation,
            "kernel_shape": shape,
            "transposed": self.transposed,
        }

    def relation(self, ndim):
        """Return the arguments of the oracle."""
        size, stride, dilation, shape = self.at(ndim)
        return {
            "offsets": make_offsets(ndim, size, stride, shape),
            "stride": stride,
            "dilation": dilation,
            "transposed": self.transposed,
        }

    def weight(self, rng, ndim, channels, groups=1):
        taps = len(self.relation(ndim)["offsets"])
        inner = (channels, C_OUT) if groups == 1 else (groups, channels // groups, C_OUT // groups)
        return rng.normal(size=(taps, *inner)) / np.sqrt(taps)


def knight(ndim):
    """Custom offsets in no particular order, not symmetric, the center missing."""
    moves = [[2, 1, 0, 0], [0, 0, 0, 1], [-1, 0, 2, 0], [0, -1, 0, 0], [1, 0, 0, -2]]
    return np.unique(np.asarray(moves)[:, :ndim], axis=0)[::-1].tolist()


def coarse_of(sites, kernel):
    """Outputs that the stride alone determines."""
    stride = per_axis(kernel.at(sites.ndim)[1], sites.ndim)
    return sites if set(stride) == {1} else strided_sites(sites, stride)


def convolution(name, kernel, groups=1, bias=False, **options):
    """Onto the voxels that follow from the stride."""

    def run(voxels, params, **pins):
        arguments = kernel.arguments(voxels.geometry.ndim)
        return spatially_sparse_conv(voxels, groups=groups, **params, **arguments, **pins)

    def reference(sites, params, batch_size):
        del batch_size
        outputs = coarse_of(sites, kernel)
        return conv(sites, outputs=outputs, **params, **kernel.relation(sites.ndim))

    def params(rng, ndim, channels):
        made = {"weight": kernel.weight(rng, ndim, channels, groups)}
        return {**made, "bias": rng.normal(size=C_OUT)} if bias else made

    return Operator(name, run, reference, params, takes_algorithm=True, **options)


def depthwise(name, kernel, **options):
    def run(voxels, params, **pins):
        kmap = vx.kernel_map(voxels, **kernel.arguments(voxels.geometry.ndim))
        y = spatially_sparse_depthwise_conv(
            voxels.features, params["weight"], kmap, kmap.out_capacity, **pins
        )
        return vx.Voxels(kmap.out_geometry, y)

    def reference(sites, params, batch_size):
        del batch_size
        return conv(
            sites, outputs=coarse_of(sites, kernel), **params, **kernel.relation(sites.ndim)
        )

    def params(rng, ndim, channels):
        return {"weight": kernel.weight(rng, ndim, channels)[:, :, 0]}

    return Operator(name, run, reference, params, takes_algorithm=True, **options)


def generative(name, kernel, spatial_shape=None, start_stride=1, **options):
    """Onto every site that a tap reaches."""

    def run(voxels, params, **pins):
        ndim = voxels.geometry.ndim
        voxels = relabeled(voxels, start_stride)
        taps = len(kernel.relation(ndim)["offsets"])
        return spatially_sparse_conv(
            voxels,
            generative=True,
            capacity=CAPACITY * taps,
            spatial_shape=None if spatial_shape is None else spatial_shape[:ndim],
            **params,
            **kernel.arguments(ndim),
            **pins,
        )

    def reference(sites, params, batch_size):
        del batch_size
        relation = kernel.relation(sites.ndim)
        shape = None if spatial_shape is None else spatial_shape[: sites.ndim]
        reached = reached_sites(sites, spatial_shape=shape, **relation)
        return conv(sites, outputs=reached, **params, **relation)

    def params(rng, ndim, channels):
        return {"weight": kernel.weight(rng, ndim, channels)}

    return Operator(
        name, run, reference, params, takes_algorithm=True, layouts=WITHIN_RANGE, **options
    )


def relabeled(voxels, stride):
    """Return the coordinates on a coarser lattice."""
    if stride == 1:
        return voxels
    return vx.Voxels.from_coords(
        voxels.coords, voxels.features, voxels.batch_size, capacity=voxels.capacity, stride=stride
    )


def transposed(name, kernel, **options):
    """Down by a stride, then back onto the voxels it started from, by the given kernel."""

    def run(voxels, params, **pins):
        ndim = voxels.geometry.ndim
        arguments = kernel.arguments(ndim)
        arguments["transposed"] = False
        down = spatially_sparse_conv(voxels, params["down"], **arguments, **pins)
        arguments["transposed"] = True
        return spatially_sparse_conv(down, params["up"], out_voxels=voxels, **arguments, **pins)

    def reference(sites, params, batch_size):
        del batch_size
        relation = kernel.relation(sites.ndim)
        coarse = coarse_of(sites, kernel)
        relation["transposed"] = False
        down = conv(sites, params["down"], coarse, **relation)
        relation["transposed"] = True
        return conv(down, params["up"], sites, **relation)

    def params(rng, ndim, channels):
        made = {"down": kernel.weight(rng, ndim, channels), "up": kernel.weight(rng, ndim, C_OUT)}
        return {name: weight / 2 for name, weight in made.items()}

    return Operator(name, run, reference, params, takes_algorithm=True, **options)


def onto(name, kernel, **options):
    """Onto coordinates that have nothing to do with the input's, on the lattice of the stride."""

    def targets(ndim):
        rng = np.random.default_rng(7)
        rows = rng.integers(-3, 3, (20, 1 + ndim))
        rows[:, 0] %= 3
        return np.unique(rows, axis=0)

    def run(voxels, params, **pins):
        ndim = voxels.geometry.ndim
        rows = targets(ndim)
        padded = np.full((CAPACITY, 1 + ndim), vx.PAD, np.int32)
        padded[: len(rows)] = rows
        stride = kernel.at(ndim)[1]
        out_voxels = vx.Voxels.from_coords(
            padded, voxels.features, 3, capacity=CAPACITY, stride=stride
        )
        arguments = kernel.arguments(ndim)
        return spatially_sparse_conv(voxels, out_voxels=out_voxels, **params, **arguments, **pins)

    def reference(sites, params, batch_size):
        del batch_size
        outputs = {tuple(row) for row in targets(sites.ndim).tolist()}
        return conv(sites, outputs=outputs, **params, **kernel.relation(sites.ndim))

    def params(rng, ndim, channels):
        return {"weight": kernel.weight(rng, ndim, channels)}

    return Operator(name, run, reference, params, takes_algorithm=True, **options)


uneven = functools.partial(Kernel, size=(2, 3, 1, 2), stride=(1, 2, 1, 2), dilation=(3, 1, 2, 1))
LOW = (1, 2, 3)  # a kernel of 3**4 taps is slow to check with loops, and no different

OPERATORS = (
    convolution("conv", Kernel(), dims=LOW),
    convolution("conv_pointwise", Kernel(1)),
    convolution("conv_even", Kernel(2)),
    convolution("conv_bias", Kernel(2), bias=True),
    convolution("conv_one_channel", Kernel(), channels=1, dims=(2, 3)),
    convolution("conv_larger_than_scene", Kernel(9), dims=(1, 2)),
    convolution("conv_dilated", Kernel(2, dilation=2)),
    convolution("conv_cross", Kernel(3, shape="cross")),
    convolution("conv_cross_strided", Kernel(5, 2, shape="cross"), dims=(2, 3)),
    convolution("conv_custom", Kernel(shape=knight)),
    convolution("conv_custom_strided", Kernel(stride=2, dilation=2, shape=knight), dims=LOW),
    convolution("conv_uneven", uneven()),
    convolution("conv_strided", Kernel(3, 2), dims=LOW),
    convolution("conv_partition", Kernel(2, 2)),
    convolution("conv_stride_3", Kernel(3, 3), dims=LOW),
    convolution("conv_grouped", Kernel(2), groups=2, bias=True),
    convolution("conv_grouped_strided", Kernel(3, 2), groups=4, dims=(2, 3)),
    depthwise("depthwise", Kernel(), dims=LOW),
    depthwise("depthwise_strided", Kernel(2, 2)),
    transposed("conv_transposed", Kernel(2, 2)),
    transposed("conv_transposed_overlapping", Kernel(3, 2), dims=LOW),
    transposed("conv_transposed_uneven", uneven(), dims=(2, 3)),
    generative("conv_generative", Kernel(2)),
    generative("conv_generative_cross", Kernel(3, shape="cross"), dims=(2, 3)),
    generative("conv_generative_strided", Kernel(3, 2), dims=LOW),
    generative("conv_generative_clipped", Kernel(3, 2), spatial_shape=(5, 4, 3, 3), dims=LOW),
    generative("conv_generative_dilated", Kernel(2, 1, 2), spatial_shape=(4, 6, 3, 3), dims=LOW),
    generative(
        "conv_transposed_generative", Kernel(2, 2, transposed=True), start_stride=2, dims=LOW
    ),
    generative(
        "conv_transposed_generative_clipped",
        Kernel(3, 2, transposed=True),
        (3, 4, 2, 2),
        start_stride=2,
        dims=(1, 2),
    ),
    onto("conv_onto_given", Kernel(3), dims=LOW),
    onto("conv_onto_given_strided", Kernel(3, 2), dims=LOW),
)
