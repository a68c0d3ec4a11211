"""What is assumed where neither the runtime nor a measurement says anything.

Only values with which everything works, slowly at worst. Sizes and rates of memories and
units stay unknown: nobody should size anything by a guess.
"""

from __future__ import annotations

from voxax.hardware.fact import Facts, told

SOURCE = "default"


def default_facts(platform: str) -> Facts:
    """Conservative facts about any chip."""
    return told(
        SOURCE,
        num_devices=1,
        process_count=1,
        num_hosts=1,
        num_slices=1,
        cpu_cores=1,
        cores=1,
        cores_per_chip=1,
        sparse_cores=0,
        lane_count=1,
        tile_shape=(1, 1),
        native_dtypes=("float32", "int32"),
        **({"vmem_bytes": 0, "smem_bytes": 0} if platform == "cpu" else {}),
    )
