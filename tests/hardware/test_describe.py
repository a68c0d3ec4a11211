"""Check facts about chips, from recorded runtimes and from this machine."""

import dataclasses
import json
import subprocess
import sys

import jax
import pytest

import voxax as vx
from hardware import recorded
from hardware.recorded import CUDA, GIB, Nvml, host
from voxax.errors import InputError
from voxax.hardware import Fact, HardwareInfo, Runtime, describe, shown
from voxax.hardware.gpu import cuda_attributes


@pytest.fixture(autouse=True)
def _no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def described(device, root, **runtime):
    return describe(device, runtime=Runtime(root=root, **runtime))


def test_this_machine():
    info = vx.hardware.describe()
    assert (info.platform, info.device_kind) == (jax.devices()[0].platform, "cpu")
    assert info.num_devices == jax.local_device_count()
    assert info.cpu_cores >= 1
    assert describe(0).facts.keys() == info.facts.keys()
    assert info.memory_bytes > info.memory_in_use > 0
    assert info.memory_free == info.memory_bytes - info.memory_in_use
    assert all(fact.source for fact in info.facts.values())
    for name in info.facts:
        assert name in str(info)


def test_tpu(tmp_path):
    info = described(recorded.tpu(), host(tmp_path))
    expected = {
        "platform": Fact("tpu", "jax device"),
        "device_kind": Fact("TPU v5 lite", "jax device"),
        "num_devices": Fact(4, "jax client"),
        "process_count": Fact(2, "jax client"),
        "num_hosts": Fact(2, "jax client"),
        "num_slices": Fact(1, "jax client"),
        "topology_shape": Fact((2, 4, 1), "jax client"),
        "device_coords": Fact((0, 0, 0), "jax device"),
        "cores": Fact(1, "jax device"),
        "cores_per_chip": Fact(1, "pltpu.get_tpu_info"),
        "sparse_cores": Fact(0, "pltpu.get_tpu_info"),
        "generation": Fact("5", "pltpu.get_tpu_info"),
        # The runtime's limit comes before the table's size of the memory.
        "memory_bytes": Fact(16_909_625_344, "jax memory_stats"),
        "memory_in_use": Fact(1_317_376, "jax memory_stats"),
        "memory_peak": Fact(2_634_752, "jax memory_stats"),
        "physical_memory_bytes": Fact(17_200_000_000, "pltpu.get_tpu_info"),
        "vmem_bytes": Fact(128 << 20, "pltpu.get_tpu_info"),
        "smem_bytes": Fact(1 << 20, "pltpu.get_tpu_info"),
        "tile_shape": Fact((8, 128), "pltpu.get_tpu_info"),
        "lane_count": Fact(128, "pltpu.get_tpu_info"),
        "matrix_unit": Fact((128, 128), "pltpu.get_tpu_info"),
        "memory_bandwidth": Fact(8.2e11, "pltpu.get_tpu_info"),
        "links": Fact(None, "unknown"),
        "shared_memory_bytes": Fact(None, "unknown"),
        "host_memory_bytes": Fact(65842172 * 1024, "/proc/meminfo"),
    }
    assert {name: info.fact(name) for name in expected} == expected
    assert info.peak_rate("bfloat16") == 1.97e14
    assert info.peak_rate(jax.numpy.int8) == 3.94e14
    assert info.peak_rate("float64") is None
    assert info.supports("bfloat16")
    assert info.supports("vmem")
    assert info.supports("multi_host")
    assert not info.supports("sparse_core")


def test_two_cores_joined_in_one_device(tmp_path):
    info = described(recorded.tpu("TPU v5p", 2), host(tmp_path))
    assert (info.cores, info.cores_per_chip) == (2, 2)
    assert info.peak_rate("bfloat16") == pytest.approx(4.59e14)
    assert info.memory_bandwidth == pytest.approx(2.46e12)
    assert info.supports("multi_core")
    assert info.supports("sparse_core")


def test_gpu(tmp_path):
    nvml = Nvml()
    info = described(recorded.gpu(), host(tmp_path), nvml=nvml, cuda=CUDA)
    expected = {
        "num_devices": Fact(2, "jax client"),
        "generation": Fact("9.0", "jax device"),
        "cores": Fact(132, "jax device"),
        "memory_bytes": Fact(60 * GIB, "jax memory_stats"),
        "memory_in_use": Fact(2 * GIB, "jax memory_stats"),
        "physical_memory_bytes": Fact(80 * GIB, "NVML"),
        "shared_memory_bytes": Fact(232_448, "CUDA driver"),
        "l2_cache_bytes": Fact(52_428_800, "CUDA driver"),
        "lane_count": Fact(32, "CUDA driver"),
        "clock_hz": Fact(1.98e9, "CUDA driver"),
        "links": Fact(18, "NVML"),
        "model": Fact("NVIDIA H100 80GB HBM3", "NVML"),
        "vmem_bytes": Fact(None, "unknown"),
        "peak_rates": Fact(None, "unknown"),
    }
    assert {name: info.fact(name) for name in expected} == expected
    assert info.memory_bandwidth == pytest.approx(3.35e12, rel=0.01)
    assert info.supports("float8_e4m3fn")
    assert info.supports("shared_memory")
    assert nvml.open == 0


def test_gpu_without_driver_attributes(tmp_path, monkeypatch):
    """NVML alone, of a GPU without NVLink, among those that CUDA_VISIBLE_DEVICES leaves."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-7f")
    nvml = Nvml(without=("link",))
    info = described(recorded.gpu(), host(tmp_path), nvml=nvml, cuda={})
    assert info.fact("memory_bandwidth").source == "NVML"
    assert info.fact("links") == Fact(None, "unknown")
    assert {handle for _, handle in nvml.asked} == {"index 3"}
    second = recorded.gpu().client.devices()[1]
    described(second, tmp_path, nvml=nvml, cuda={})
    assert nvml.asked[-1][1] == "uuid GPU-7f"


def test_amd_gpu(tmp_path):
    """Node 10 comes after node 2, though not by name."""
    device = recorded.amd()
    info = described(device, host(tmp_path, **recorded.KFD), cuda={})
    assert info.generation == "gfx942"
    assert info.cores == 304
    assert info.fact("shared_memory_bytes") == Fact(65_536, "/sys/class/kfd")
    assert info.lane_count == 64
    unknown = described(device, host(tmp_path / "elsewhere"), cuda={})
    assert unknown.fact("shared_memory_bytes") == Fact(None, "unknown")


def test_gpu_where_nvml_fails(tmp_path):
    class Broken(Nvml):
        def nvmlInit(self):
            raise RuntimeError("NVMLError_LibraryNotFound")

    info = described(recorded.gpu(), host(tmp_path), nvml=Broken(), cuda={})
    assert info.memory_bytes == 60 * GIB
    assert info.fact("physical_memory_bytes") == Fact(None, "unknown")


def test_no_cuda_driver_here_is_no_error():
    assert isinstance(cuda_attributes(0), dict)


def test_cpu(tmp_path):
    info = described(recorded.cpu(), host(tmp_path))
    total = 65842172 * 1024
    expected = {
        "model": Fact("AMD EPYC 9B14", "/proc/cpuinfo"),
        "generation": Fact("cpu family 25 model 17", "/proc/cpuinfo"),
        "memory_bytes": Fact(total, "/proc/meminfo"),
        "memory_in_use": Fact(total - 48120044 * 1024, "/proc/meminfo"),
        "memory_peak": Fact(812344 * 1024, "/proc/self/status"),
        "l1_cache_bytes": Fact(32 << 10, "/sys/devices/system/cpu"),
        "l2_cache_bytes": Fact(1 << 20, "/sys/devices/system/cpu"),
        "l3_cache_bytes": Fact(32 << 20, "/sys/devices/system/cpu"),
        "clock_hz": Fact(3.7e9, "/sys/devices/system/cpu"),
        "lane_count": Fact(16, "/proc/cpuinfo"),
        "vector_extensions": Fact(
            (
                *("avx", "avx2", "avx512_bf16", "avx512bw", "avx512f"),
                *("f16c", "fma", "sse", "sse2", "ssse3"),
            ),
            "/proc/cpuinfo",
        ),
    }
    assert {name: info.fact(name) for name in expected} == expected
    assert info.supports("avx512f")
    assert info.supports("bfloat16")
    assert not info.supports("float16")


def test_arm(tmp_path):
    info = described(recorded.cpu(), host(tmp_path, recorded.GRAVITON))
    assert info.vector_extensions == ("asimd", "asimdhp", "bf16", "fphp", "i8mm", "sve")
    assert info.generation == "0x41 0xd40"
    assert info.supports("float16")
    assert info.supports("bfloat16")
    assert info.lane_count == 4


def test_container(tmp_path):
    root = host(
        tmp_path,
        **{
            "sys/fs/cgroup/memory.max": f"{4 * GIB}\n",
            "sys/fs/cgroup/memory.current": f"{GIB}\n",
            "sys/fs/cgroup/cpu.max": "50000 100000\n",
        },
    )
    info = described(recorded.cpu(), root)
    assert info.fact("memory_bytes") == Fact(4 * GIB, "cgroup")
    assert info.memory_free == 3 * GIB
    if vx.hardware.describe().cpu_cores > 1:
        assert info.fact("cpu_cores") == Fact(1, "cgroup cpu quota")


def test_container_without_limits(tmp_path):
    files = {"sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}
    info = described(recorded.cpu(), host(tmp_path, **files))
    assert info.fact("memory_bytes").source == "/proc/meminfo"
    assert info.fact("cpu_cores").source == "sched_getaffinity"


class Nothing:
    """A device of a runtime that answers nothing: every attribute is an error of its own."""

    def __getattr__(self, name):
        raise RuntimeError(f"UNIMPLEMENTED: {name}")


@pytest.mark.parametrize("silent", [True, False])
def test_invented_chip(silent, tmp_path):
    """None of the attributes, and not even the files of a host: everything is answered."""
    device = Nothing() if silent else recorded.Device(platform="quantum", device_kind="Q1")
    info = described(device, tmp_path / "nowhere")
    assert info.num_devices == 1
    assert (info.fact("cores"), info.fact("lane_count")) == (Fact(1, "default"), Fact(1, "default"))
    assert info.memory_bytes is None
    assert info.memory_free is None
    assert info.fact("memory_bandwidth") == Fact(None, "unknown")
    assert info.fact("vmem_bytes") == Fact(None, "unknown")
    assert info.supports("float32")
    assert not info.supports("matrix_unit")
    assert "unknown" in str(info)


def test_tpu_that_jax_does_not_know(tmp_path):
    """Limits are the least that any known TPU has; rates stay unknown."""
    info = described(recorded.tpu("TPU v99 mega"), host(tmp_path))
    assert info.fact("tile_shape") == Fact((8, 128), "default: least of all TPUs that JAX knows")
    assert 0 < info.smem_bytes < info.vmem_bytes <= 16 << 20
    assert info.memory_bytes == 16_909_625_344
    assert info.fact("peak_rates") == Fact(None, "unknown")


def test_supports_answers_false_for_what_nobody_knows():
    info = describe()
    for name in ("", "no such feature", "tensor cores of the year 2050"):
        assert info.supports(name) is False
    assert {info.supports(name) for name in vx.hardware.feature_names()} <= {True, False}


def test_json_round_trip(tmp_path):
    for device in (recorded.tpu(), recorded.cpu(), Nothing()):
        info = described(device, host(tmp_path))
        text = json.dumps(info.to_json())
        assert HardwareInfo.from_json(json.loads(text)) == info
        assert hash(HardwareInfo.from_json(json.loads(text))) == hash(info)
    newer = {**info.to_json(), "flux": {"value": 1, "source": "capacitor"}}
    assert HardwareInfo.from_json(newer) == info


def test_frozen_and_named():
    info = describe()
    with pytest.raises(dataclasses.FrozenInstanceError):
        info.platform = "other"
    with pytest.raises(InputError, match="no field 'speed'; it has platform, device_kind"):
        info.fact("speed")


def test_no_such_device():
    with pytest.raises(InputError, match="device 99 of"):
        describe(99)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("memory_bytes", 16_909_625_344, "15.75 GiB"),
        ("memory_bytes", 0, "0 B"),
        ("memory_bandwidth", 8.2e11, "820 GB/s"),
        ("clock_hz", 1.98e9, "1.98 GHz"),
        (
            "peak_rates",
            (("bfloat16", 1.97e14), ("int8", 3.94e14)),
            "bfloat16 197 Top/s, int8 394 Top/s",
        ),
        ("tile_shape", (8, 128), "8 x 128"),
        ("cores", 2, "2"),
        ("vector_extensions", (), "none"),
        ("links", None, "-"),
    ],
)
def test_shown(name, value, text):
    assert shown(name, value) == text


def test_import_loads_neither_pallas_nor_a_backend():
    script = (
        "import sys, voxax.hardware\n"
        "from jax._src import xla_bridge\n"
        "print(xla_bridge.backends_are_initialized(), 'jax.experimental.pallas' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert result.stdout.split() == ["False", "False"]
