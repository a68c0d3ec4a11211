"""What notebooks show of voxels and models: treescope's trees."""

import jax
import numpy as np
import pytest

from voxax.geometry import Voxels
from voxax.nn.modules import ReLU, Sequential, SubMConv3d

treescope = pytest.importorskip("treescope", reason="treescope is not installed")


@pytest.fixture
def voxels():
    coords = np.array([[0, x, 0, 0] for x in range(3)], np.int32)
    return Voxels.from_coords(coords, np.ones((3, 2), np.float32), voxel_size=0.5)


def test_voxels_show_their_numbers_and_arrays(voxels):
    text = treescope.render_to_text(voxels)
    for shown in (
        "Voxels(",
        "count=3",
        f"capacity={voxels.capacity}",
        "voxel_size=(0.5, 0.5, 0.5)",
    ):
        assert shown in text
    assert "features=" in text
    assert "float32" in text
    assert "<" in treescope.render_to_html(voxels)


def test_traced_voxels_are_shown_too(voxels):
    seen = []
    jax.eval_shape(lambda v: seen.append(treescope.render_to_text(v)) or v.count, voxels)
    assert "Voxels(" in seen[0]
    assert "count=3" not in seen[0]


def test_models_show_their_layers(voxels):
    model = Sequential(SubMConv3d(2, 4, 3), ReLU())
    text = treescope.render_to_text(model)
    assert "SubMConv3d(" in text
    assert "ReLU(" in text
