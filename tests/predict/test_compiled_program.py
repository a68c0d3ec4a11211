"""Seconds of a program by its listings: waits for copies, unknown passes, copies beside kernels."""

import dataclasses

import pytest

from voxax.errors import InputError
from voxax.predict import Chip, CompiledKernel, CompiledProgram, Listing, Loop, render
from voxax.predict.compiled_program import CopyBeside
from voxax.predict.listing import Copy

# A cycle is 1 ns, a byte moves in 1 ns, and a copy needs 100 ns before.
CHIP = Chip("v0", 1e9, 1e12, 1e9, 1, 100e-9, 7e-9, 2**27, 2**34, 1)


def program(*inner, copies=(), **more):
    whole = Loop(0, 0, 1, 10, 10, {}, (), inner)
    kernel = CompiledKernel("k", "tpu_custom_call", "", 1, False, 0, (), Listing(whole, {}))
    return CompiledProgram(CHIP, (kernel,), copies, 0, 0, 0, 0.0, **{"values": 0, **more})


def loop(cycles: int, copies=(), trips: float | None = 10, waits: int = 0):
    return Loop(1, 0, trips, cycles, cycles, {}, tuple(copies), (), waits)


def nanoseconds(found, passes=None):
    return round(1e9 * found.seconds(passes)) - 7 - 10


@pytest.mark.parametrize(
    ("cycles", "copy", "waits", "expected"),
    [
        (500, Copy("hbm", "vmem", 50), 0, 10 * 500),  # hidden
        (120, Copy("hbm", "vmem", 50), 0, 10 * (100 + 50)),
        (60, Copy("hbm", "vmem", 50, ahead=2), 0, 10 * 150 // 2),
        (20, Copy("hbm", "vmem", 90, ahead=3), 0, 10 * 90),  # no sooner than they are moved
        (120, Copy("hbm", "vmem", 50, ahead=0), 1, 10 * (120 + 100 + 50)),
        (120, Copy("hbm", "vmem", 50, runs=2), 0, 2 * 150 + 8 * 120),
        (120, Copy("vmem", "vmem", 5000), 0, 10 * 120),
    ],
)
def test_a_pass_takes_the_longer_of_schedule_and_copies(cycles, copy, waits, expected):
    assert nanoseconds(program(loop(cycles, [copy], waits=waits))) == expected


def test_unknown_passes_are_refused_unless_given():
    found = program(loop(20, trips=None))
    with pytest.raises(InputError, match="such as k: give passes="):
        found.seconds()
    assert found.open() == ["k"]
    assert "k       1+" in render(found)
    assert "at least" in render(found)
    assert found.open(3) == found.open({"k": 3}) == []
    assert nanoseconds(found, 3) == 60
    assert found.seconds(at_least=True) == pytest.approx(37e-9)
    inner = dataclasses.replace(loop(20, trips=None), inner=(loop(5, trips=None),))
    assert program(inner).open(3) == ["k"]  # of which of both are there three?


def test_a_kernel_without_a_listing_is_not_counted_in_full():
    (kernel,) = program().kernels
    silent = dataclasses.replace(kernel, listing=None, operands=(("f32", (8, 128)),))
    assert dataclasses.replace(program(), kernels=(silent,)).open() == ["k"]
    scalar = dataclasses.replace(silent, operands=(("s32", ()), ("s32", (1,))))
    assert dataclasses.replace(program(), kernels=(scalar,)).open() == []


def test_copies_beside_kernels_cost_what_is_not_hidden():
    hidden, waited = CopyBeside(0, 1, 50, 1), CopyBeside(1, 1, 300, 1)
    before = CopyBeside(0, 0, 300, 1, prefetched=True)
    busy = loop(100)
    assert nanoseconds(program(busy, copies=(hidden, before))) == 1000
    assert nanoseconds(program(busy, copies=(waited,))) == 1000 + 100 + 300
