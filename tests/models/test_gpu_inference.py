"""What XLA starts on an H100 in inference, compiled without one: the rest in the product's kernel.

A network's statistics and weights are arguments, as of a program that is called with a checkpoint.
"""

import contextlib
from unittest import mock

import jax
import numpy as np
import pytest
from benchmarks.gpu import launches
from benchmarks.gpu.lowered import TRITON

from problems import needs_compiler
from samples import make_voxels
from voxax.models import ConvNormAct, MinkUNet18, ResidualBlock
from voxax.nn.modules import Sequential, sequential


def both(voxels, make):
    """Kernels by kind, without and with the rest in the product's."""
    function, *arguments = launches.network(voxels, False, make)
    apart = mock.patch.object(sequential, "_is_one_product", return_value=False)
    found = []
    for way in (apart, contextlib.nullcontext()):
        jax.clear_caches()
        with way:
            found.append(launches.launches(launches.compiled(function, *arguments)))
    return found


def plane(rows):
    """Strided levels have fewer rows."""
    side = int(rows**0.5)
    grid = np.stack(np.meshgrid(np.arange(side), np.arange(side), indexing="ij"), -1)
    coords = np.pad(grid.reshape(-1, 2), ((0, 0), (1, 1))).astype(np.int32)
    return make_voxels(coords, 4, capacity=rows)


@needs_compiler
@pytest.mark.parametrize(("channels", "fewer"), [(16, 2), (4, 0)])
def test_a_block_starts_its_products_alone(channels, fewer):
    """Which rows are voxels is one kernel, of each level. A shortcut of its own has two: its input
    is cleared, which was done by the kernel before, and it is normalized."""

    def make(c_in, c_out, **options):
        first = ConvNormAct(c_in, channels, **options)
        return Sequential(first, ResidualBlock(channels, 16, **options))

    before, after = both(plane(1024), make)
    assert before[TRITON] == after[TRITON] == 3
    assert sum(before.values()) - sum(after.values()) == fewer


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two programs, a minute each on two cores
@needs_compiler
def test_minkunet18_starts_fewer_kernels():
    before, after = both(plane(4096), MinkUNet18)
    assert before[TRITON] == after[TRITON] == 42
    # 265 and 238 with JAX 0.10.2: what XLA fuses depends on its version.
    assert sum(after.values()) <= sum(before.values()) - 20
