"""What :func:`voxax.fits` answers."""

from __future__ import annotations

import dataclasses

from voxax.errors import CapacityError


class MemoryLimitError(CapacityError, MemoryError):
    """A program needs more memory than the device has free."""


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """Memory that a program will need, and memory that there is. In bytes; prints as text.

    Attributes:
      device: kind of the device.
      capacity, batch_size: of the voxels asked about.
      argument_bytes: parameters, voxels, the optimiser's state.
      output_bytes: results.
      temporary_bytes: everything in between, and constants.
      program_bytes: the compiler's figure: all of these at once, less what is shared.
      resident_bytes: arguments that are on the device already.
      needed_bytes: what a run takes in addition to what is in use now.
      baseline_bytes: in use before the run: by this process on a CPU, on the device
        otherwise; None if the runtime does not count it.
      peak_bytes: the largest use to be expected: of this process on a CPU, of the device
        otherwise.
      available_bytes: free now, or as given; None if nobody knows.
      margin: share of the free memory that is left alone.
      suggested_capacity: the largest bucket that was found to fit (compiled, not guessed);
        None if none was looked for or found.
      suggested_batch: scenes of the present size that fit into that capacity.
      refused: the compiler itself refuses the program, for this reason; then only
        ``temporary_bytes`` is known, as far as the compiler told.
      programs: programs that were compiled for this answer.
      searched: whether a capacity that fits was looked for.
    """

    device: str
    capacity: int
    batch_size: int
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    program_bytes: int
    resident_bytes: int
    needed_bytes: int
    baseline_bytes: int | None
    peak_bytes: int
    available_bytes: int | None
    margin: float
    suggested_capacity: int | None = None
    suggested_batch: int | None = None
    refused: str = ""
    programs: int = 1
    searched: bool = False

    @property
    def limit_bytes(self) -> int | None:
        """Available memory less the margin; None if unknown."""
        if self.available_bytes is None:
            return None
        return int((1 - self.margin) * self.available_bytes)

    @property
    def fits(self) -> bool:
        """Whether the need is within the limit; True where the limit is unknown."""
        if self.refused:
            return False
        return self.limit_bytes is None or self.needed_bytes <= self.limit_bytes

    def __bool__(self) -> bool:
        return self.fits

    def raise_if_not(self) -> MemoryReport:
        """This report if it fits.

        Raises:
          MemoryLimitError: names the memory needed, the memory available, and the largest
            capacity that fits. It is a CapacityError and a MemoryError.
        """
        if not self.fits:
            raise MemoryLimitError(f"{self._verdict()}: {self._advice()}")
        return self

    def _verdict(self) -> str:
        words = f"capacity {self.capacity} (batch of {self.batch_size}) needs "
        if self.refused:
            asked = f"{megabytes(self.needed_bytes)}, " if self.needed_bytes else ""
            return f"{words}{asked}more than the compiler allows on {self.device}: {self.refused}"
        words += f"{megabytes(self.needed_bytes)} on {self.device}"
        if self.available_bytes is None:
            return f"{words}, whose free memory is unknown"
        left = f", of which {self.margin:.0%} are left alone" if self.margin else ""
        return f"{words}, available are {megabytes(self.available_bytes)}{left}"

    def _advice(self) -> str:
        if self.suggested_capacity is None and not self.searched:
            return "no smaller capacity was tried; use suggest=True, or a narrower network"
        if self.suggested_capacity is None:
            return "no capacity was found that fits; use a narrower network or another device"
        batch = self.suggested_batch or 0
        scenes = f", about {batch} scenes of this size" if batch else ""
        more = "" if self.fits else ", or a narrower network"
        return f"the largest capacity that fits is {self.suggested_capacity}{scenes}{more}"

    def __str__(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        lines = [f"{verdict}: {self._verdict()}"]
        if not self.fits or self.suggested_capacity is not None:
            lines.append(self._advice())
        rows = [
            ("arguments", self.argument_bytes),
            ("outputs", self.output_bytes),
            ("temporaries", self.temporary_bytes),
            ("program", self.program_bytes),
            ("already there", self.resident_bytes),
            ("needed", self.needed_bytes),
            ("in use before", self.baseline_bytes),
            ("peak", self.peak_bytes),
            ("available", self.available_bytes),
        ]
        lines += [f"  {name:<14} {megabytes(value):>12}" for name, value in rows]
        return "\n".join(lines)


def megabytes(value: int | None) -> str:
    """Bytes in MiB, or ``unknown``."""
    return "unknown" if value is None else f"{value / 2**20:,.1f} MiB"
