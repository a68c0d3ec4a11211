"""Annotations of arrays in jaxtyping's notation, dtype and shape: ``Float[Array, "N C"]``.

Each name is ``typing.Annotated``, so type checkers see the array, readers see the shape, and voxax
does not need jaxtyping. Tests replace this module by jaxtyping to check dtypes and shapes.
"""

from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Annotated as Int32
from typing import Annotated as Num
from typing import Annotated as Shaped

from jax import Array

__all__ = ["Array", "Bool", "Float", "Int", "Int32", "Num", "Shaped"]
