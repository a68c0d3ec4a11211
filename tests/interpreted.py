"""Select Pallas' TPU interpreter that simulates memories and copies.

Slower than ``interpret=True`` by far, which is plain JAX: for tiny cases. Memory that nothing has
written is NaN, a copy has happened only where somebody waited for it, a read outside of an array
raises, and accesses that nothing orders are told.
"""

import contextlib

from jax.experimental.pallas import tpu as pltpu

RACE = "RACE DETECTED"
"""What the interpreter prints where it finds one."""


@contextlib.contextmanager
def simulated(**changes):
    """Inside, every Pallas kernel that is traced runs in the interpreter, whatever it asks for.

    Args:
      changes: fields of ``pltpu.InterpretParams``.
    """
    options = {"detect_races": True, "uninitialized_memory": "nan", **changes}
    try:
        with pltpu.force_tpu_interpret_mode(pltpu.InterpretParams(**options)):
            yield
    finally:
        # After an exception the simulated memory would stay as it was.
        pltpu.reset_tpu_interpret_mode_state()
