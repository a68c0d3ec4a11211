"""Every public function takes arrays of an explicit mesh, which ``jax.make_mesh`` makes by default.

A mesh of one device has explicit axes too.
"""

import pytest

import public_calls
from parallel.own_devices import on_devices


@pytest.mark.parametrize("name", public_calls.MODULES)
def test_every_public_function_has_a_call(name):
    called = {call.partition(".")[2] for call in public_calls.CALLS if call.startswith(f"{name}.")}
    known = called | set(public_calls.ON_HOST[name].split())
    assert public_calls.functions(public_calls.MODULES[name]) == known


@pytest.mark.parametrize("devices", [1, 2])
def test_public_functions_on_an_explicit_mesh(devices):
    on_devices(f"from parallel import explicit_mesh\nexplicit_mesh.check({devices})", devices)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_jitted_public_functions_on_an_explicit_mesh(devices):
    script = f"from parallel import explicit_mesh\nexplicit_mesh.check({devices}, jitted=True)"
    on_devices(script, devices)
