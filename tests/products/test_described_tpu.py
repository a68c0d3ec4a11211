"""Programs that JAX lowers for a TPU which is only described, by its ahead-of-time path."""

import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import voxax as vx
from problems import needs_libtpu
from voxax import _compat
from voxax.hardware.target import _absent, hardware_of
from voxax.nn.functional import depthwise_conv, spatially_sparse_conv
from voxax.tuning import record_choices

CAPACITY, CHANNELS = 256, 64
on_libtpu = [pytest.mark.tpu_compile, needs_libtpu]


def forward(coords, features, weight):
    voxels = vx.Voxels.from_coords(coords, features, capacity=CAPACITY)
    return spatially_sparse_conv(voxels, weight, 3).features


def strided_loss(coords, features, weight):
    voxels = vx.Voxels.from_coords(coords, features, capacity=CAPACITY)
    return jnp.sum(spatially_sparse_conv(voxels, weight[:8], 2, 2).features ** 2)


def depthwise(coords, features, weight):
    voxels = vx.Voxels.from_coords(coords, features, capacity=CAPACITY)
    return depthwise_conv(voxels, weight[:, 0], 3).features


FUNCTIONS = {
    "forward": forward,
    "gradients of a strided layer": jax.grad(strided_loss, argnums=(1, 2)),
    "depthwise": depthwise,
}


def arguments(sharding=None):
    shapes = ((CAPACITY, 4), jnp.int32), ((CAPACITY, CHANNELS),), ((27, CHANNELS, CHANNELS),)
    return [
        jax.ShapeDtypeStruct(shape, *(dtype or (jnp.float32,)), sharding=sharding)
        for shape, *dtype in shapes
    ]


def chosen(lower):
    with record_choices() as choices:
        text = lower().as_text()
    return [
        (c.problem.platform, c.algorithm, dict(c.parameters).get("body")) for c in choices
    ], text


@pytest.mark.parametrize("name", [pytest.param(n, marks=on_libtpu) for n in FUNCTIONS])
def test_it_takes_the_kernels_of_that_tpu(name):
    one = SingleDeviceSharding(_compat.tpu_topology("v5e:2x2")[0])
    jitted = jax.jit(FUNCTIONS[name])
    choices, text = chosen(lambda: jitted.lower(*arguments(one)))
    assert choices
    assert {c[:2] for c in choices} <= {("tpu", "implicit_gemm"), ("tpu", "implicit")}
    assert "tpu_custom_call" in text
    if name == "forward":
        given = jax.jit(forward, in_shardings=one, out_shardings=one)
        assert chosen(lambda: given.lower(*arguments()))[0] == choices
        assert choices[0][2] == "windows"


@pytest.mark.parametrize("name", [pytest.param("tpu", marks=on_libtpu)])
def test_a_program_over_several_devices_takes_the_portable_body(name):
    mesh = Mesh(_compat.tpu_topology("v5e:2x2"), ("d",))
    whole = NamedSharding(mesh, PartitionSpec())
    jitted = jax.jit(forward, in_shardings=whole, out_shardings=whole)
    choices, text = chosen(lambda: jitted.lower(*arguments()))
    assert [(platform, body) for platform, _, body in choices] == [("any", None)]
    assert not re.search(r"tpu_custom_call", text)


class Described:
    """What stands for a device of a topology."""

    platform = "tpu"
    num_cores = 1

    def __init__(self, device_kind):
        self.device_kind = device_kind


class CompileOnlyClient:
    def __init__(self, device):
        self.device = device

    def devices(self):
        return [self.device]


class Context:
    def __init__(self, backend):
        self.backend = backend


def test_the_device_is_that_of_a_client_that_only_compiles():
    device = Described("TPU v5 lite")
    context = Context(CompileOnlyClient(device))
    assert _compat._device_elsewhere(context, "tpu") is device
    assert _compat._device_elsewhere(context, "cpu") is None
    assert _compat._device_elsewhere(Context(jax.devices()[0].client), "cpu") is None
    assert _compat._device_elsewhere(Context(None), "tpu") is None


def test_its_hardware_is_used_while_it_is_lowered(monkeypatch):
    monkeypatch.setattr(_compat, "absent_device", lambda: Described("TPU v5 lite"))
    hardware, device = hardware_of("tpu")
    assert (hardware.device_kind, device) == ("TPU v5 lite", None)
    assert hardware.vmem_bytes == 128 * 2**20
    assert hardware_of("cpu")[0].platform == "cpu"


def test_an_unknown_chip_is_said():
    with pytest.warns(UserWarning, match="does not know the TPU 'TPU v99'"):
        hardware = _absent(Described("TPU v99"))
    assert hardware.platform == "tpu"
