"""Every operator the suite knows."""

from conformance import convolution, coordinates, normalization, points, pooling

OPERATORS = {
    operator.name: operator
    for module in (convolution, coordinates, normalization, points, pooling)
    for operator in module.OPERATORS
}
