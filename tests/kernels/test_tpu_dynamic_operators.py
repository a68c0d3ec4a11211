"""Every dynamic operator with all its gradients through the real TPU compiler.

Needs libtpu (`pip install .[tpu]`); run with `pytest -m tpu_compile`. Nothing is executed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.tpu.program import TOPOLOGIES, compile_for

from dynamic_cases import CASES, cast, slopes
from problems import needs_libtpu

pytestmark = [pytest.mark.tpu_compile, needs_libtpu]

# Of each operator the case with the most that varies. The strategies one by one: test_tpu_dynamic.
OPERATORS = (
    *("dynamic_grouped_soft", "dynamic_everything", "deform_v2", "local", "involution"),
    *("blur_normalized", "pixel_adaptive_normalized", "selective", "mixture", "selected_stride"),
    *("spectral_stride", "radius_search_cells", "knn_search", "continuous"),
    *("kernel_point_deformable", "point", "sparse_everything", "focal", "positional_stride"),
)


def shape_of(leaf):
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_operators_compile(topology, name):
    values, run, _ = CASES[name](np.random.default_rng(0))
    shapes = jax.tree.map(shape_of, cast(values, jnp.float32))
    assert compile_for(topology, slopes(run), shapes)
