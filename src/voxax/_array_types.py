"""Annotations of arrays as jaxtyping writes them: ``Float[Array, "N C"]``, dtype and shape.

Here each is ``typing.Annotated``: type checkers see the array, readers the shape, and voxax needs
no jaxtyping. Tests put jaxtyping into this module's place, and check dtypes and shapes.
"""

from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Annotated as Int32
from typing import Annotated as Num
from typing import Annotated as Shaped

from jax import Array

__all__ = ["Array", "Bool", "Float", "Int", "Int32", "Num", "Shaped"]
