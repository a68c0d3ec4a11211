"""Dynamic convolution at offsets, as one exported program for any number of grids."""

import jax
import numpy as np
from jax import export

from voxax.nn.functional import dynamic_conv


def test_one_exported_program_takes_batches_of_any_size(rng):
    (batch,) = export.symbolic_shape("b")
    weight = rng.normal(size=(3, 3, 2, 3)).astype(np.float32)

    def layer(x, offsets):
        return dynamic_conv(x, weight, offsets=offsets)

    shapes = [
        jax.ShapeDtypeStruct(shape, np.float32) for shape in ((batch, 4, 5, 2), (batch, 4, 5, 9, 2))
    ]
    program = export.export(jax.jit(layer))(*shapes)
    for number in (1, 3):
        x = rng.normal(size=(number, 4, 5, 2)).astype(np.float32)
        offsets = rng.uniform(-1, 1, (number, 4, 5, 9, 2)).astype(np.float32)
        np.testing.assert_allclose(
            program.call(x, offsets), layer(x, offsets), rtol=1e-5, atol=1e-5
        )
