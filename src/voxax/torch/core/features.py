"""Features that wait for a batch norm, so that one native pass computes it with what follows."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

from torch import nn

from voxax.torch.core.batch_norm import is_native
from voxax.torch.core.later import Later


class Features:
    """Rows that are there, or that wait for ``later``. Tensors whose memory is one share these.

    They are ``own`` while nobody but layers has seen them, so that nobody else can write to them.
    ``read`` are the readers of what ``later`` reads.
    """

    def __init__(
        self, rows: Any, later: Later | None = None, own: bool = False, read: tuple[Any, ...] = ()
    ) -> None:
        self._rows, self._later, self._read = rows, later, read
        # What waits and reads these rows: computed before anybody gets them and could write to
        # them. None from then on.
        self._readers: WeakSet[Later] | None = WeakSet() if own else None

    def __reduce__(self) -> tuple[Any, ...]:
        return Features, (self.rows(),)

    @property
    def waits(self) -> bool:
        """Whether the rows wait."""
        return self._later is not None

    def rows(self) -> Any:
        """Return the rows to a layer, which does not write to them."""
        if self._later is not None:
            self._rows, self._later = self._later.result(), None
        return self._rows

    def shown(self) -> Any:
        """Return the rows to anybody."""
        rows, readers, self._readers = self.rows(), self._readers, None
        for later in list(readers or ()):
            later.result()
        return rows

    def normalized(self, norm: nn.Module) -> Features | None:
        """Return features that wait for the norm of these; None where it is PyTorch's to run."""
        if not is_native(self.rows(), norm):
            return None
        later = Later(self.rows(), norm)  # type: ignore[arg-type]
        if self._readers is None:
            return Features(later.result(), own=True)
        return _waiting(later, self._readers)

    def rectified(self, inplace: bool) -> Features | None:
        """Return features that wait for a ReLU of these; None where it is to run now."""
        later = None if self._later is None else self._later.rectified(inplace)
        if later is None:
            return None
        return self if inplace else _waiting(later, *self._read)

    def added(self, other: Features, inplace: bool = False) -> Features | None:
        """Return features that wait for the sum of both; None where it is to run now.

        In place they are these, and wait already.
        """
        pairs = ((self, other), (other, self))
        for one, two in pairs[:1] if inplace else pairs:
            if one is not two and one._later is not None and two._readers is not None:
                later = one._later.added(two.rows(), inplace)
                if later is None:
                    continue
                if not inplace:
                    return _waiting(later, two._readers, *one._read)
                two._readers.add(later)
                one._read = (*one._read, two._readers)
                return one
        return None


def _waiting(later: Later, *read: WeakSet[Later]) -> Features:
    for readers in read:
        readers.add(later)
    return Features(None, later, own=True, read=read)
