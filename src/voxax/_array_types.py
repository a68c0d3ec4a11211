"""Type annotations for the dtype and shape of arrays, such as ``Float[Array, "N C"]``.

The notation is that of jaxtyping, but every name here is ``typing.Annotated``: type checkers see
only the array type, and voxax does not need jaxtyping. Tests replace this module by jaxtyping.
"""

from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Annotated as Int32
from typing import Annotated as Num
from typing import Annotated as Shaped

from jax import Array

__all__ = ["Array", "Bool", "Float", "Int", "Int32", "Num", "Shaped"]
