"""Dynamic convolution on grids as an exported program for any number of grids up to a bound."""

import jax
import numpy as np
from jax import export

from voxax.nn.functional import dynamic_conv


def test_one_exported_program_takes_batches_of_any_size_up_to_the_bound(rng):
    (batch,) = export.symbolic_shape("b", constraints=("b <= 64",))
    weight = rng.normal(size=(3, 3, 2, 3)).astype(np.float32)

    def layer(x, size):
        return dynamic_conv(x, weight, size=size, method="masked")

    shapes = (
        jax.ShapeDtypeStruct((batch, 4, 5, 2), np.float32),
        jax.ShapeDtypeStruct((batch, 4, 5), np.int32),
    )
    program = export.export(jax.jit(layer))(*shapes)
    for number in (1, 3):
        x = rng.normal(size=(number, 4, 5, 2)).astype(np.float32)
        size = rng.choice(np.array([1, 3], np.int32), (number, 4, 5))
        np.testing.assert_allclose(program.call(x, size), layer(x, size), rtol=1e-5, atol=1e-5)
