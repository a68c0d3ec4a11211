"""Programs that an earlier JAX exported compile with the newest compiler for TPUs.

``VOXAX_TEST_PROGRAM`` names a file that the earlier one wrote::

    voxax export tests/first_contact/drift.py:network --capacity 256 --tpu v5e --output FILE

Without it this JAX writes one.
"""

import json
import os
import zipfile
from pathlib import Path

import jax
import pytest
from jax.sharding import SingleDeviceSharding

from first_contact.drift import network
from problems import needs_libtpu
from voxax import _compat
from voxax.export import export_program


@pytest.mark.tpu_compile
@needs_libtpu
def test_an_exported_program_compiles(tmp_path):
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    path = os.environ.get("VOXAX_TEST_PROGRAM") or str(tmp_path / "network.voxax")
    if not os.path.exists(path):
        options = {"capacity": 256, "channels": 4, "platform": "tpu", "device": "v5e:2x2"}
        export_program(network(), Path(path), **options)
    with zipfile.ZipFile(path) as file:
        about = json.loads(file.read("about.json"))
        exported = jax.export.deserialize(bytearray(file.read("program.stablehlo")))
    assert any("windows" in line for line in about["algorithms"])
    one = SingleDeviceSharding(_compat.tpu_topology("v5e:2x2")[0])
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=one) for a in exported.in_avals]
    arguments, options = jax.tree.unflatten(exported.in_tree, shapes)
    program = jax.jit(exported.call).lower(*arguments, **options).compile()
    assert program.as_text().count("tpu_custom_call") >= 2
