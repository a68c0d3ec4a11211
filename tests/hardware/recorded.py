"""Answers of runtimes on other machines, so that tests can describe every kind of chip.

The TPU's statistics and attributes are those of a TPU v5e, the GPU's those of an H100 with its
driver and NVML, the processor's files those of an AMD EPYC and an AWS Graviton.
"""

import types
from pathlib import Path

GIB = 1 << 30


class Device:
    """A device with the given attributes; asking for any other is an error, as in JAX."""

    def __init__(self, stats=None, **attributes):
        self._stats = stats
        self.__dict__.update(attributes)

    def memory_stats(self):
        return self._stats


class Client:
    def __init__(self, make, number):
        self._devices = [make(self, i) for i in range(number)]

    def devices(self):
        return self._devices

    def local_device_count(self):
        return sum(d.process_index == 0 for d in self._devices)


def tpu(device_kind="TPU v5 lite", num_cores=1):
    """Device 0 of two hosts with four chips each."""

    def make(client, index):
        return Device(
            client=client,
            id=index,
            platform="tpu",
            device_kind=device_kind,
            process_index=index // 4,
            local_hardware_id=index % 4,
            coords=[index % 2, index // 2, 0],
            core_on_chip=0,
            num_cores=num_cores,
            slice_index=0,
            stats={
                "bytes_in_use": 1_317_376,
                "bytes_limit": 16_909_625_344,
                "bytes_reserved": 0,
                "num_allocs": 12,
                "peak_bytes_in_use": 2_634_752,
                "largest_alloc_size": 1_048_576,
            },
        )

    return Client(make, 8).devices()[0]


def gpu():
    """The first of two GPUs, the pool of JAX at three quarters of the memory."""

    def make(client, index):
        return Device(
            client=client,
            id=index,
            platform="gpu",
            device_kind="NVIDIA H100 80GB HBM3",
            process_index=0,
            local_hardware_id=index,
            slice_index=0,
            compute_capability="9.0",
            core_count=132,
            stats={
                "bytes_in_use": 2 * GIB,
                "bytes_limit": 60 * GIB,
                "peak_bytes_in_use": 3 * GIB,
                "pool_bytes": 60 * GIB,
            },
        )

    return Client(make, 2).devices()[0]


def amd():
    """The second of two GPUs of AMD: ``/sys`` has their facts, see ``KFD``."""

    def make(client, index):
        return Device(
            client=client,
            id=index,
            platform="gpu",
            device_kind="AMD Instinct MI300X",
            process_index=0,
            local_hardware_id=index,
            compute_capability="gfx942:sramecc+:xnack-",
            core_count=304,
            stats=None,
        )

    return Client(make, 2).devices()[1]


# Nodes 0 and 1 are processors. Written after the kernel's source, not recorded.
KFD = {
    f"sys/class/kfd/kfd/topology/nodes/{node}/properties": text
    for node, text in {
        0: "cpu_cores_count 96\nlds_size_in_kb 0\nwave_front_size 0\n",
        1: "cpu_cores_count 96\nlds_size_in_kb 0\nwave_front_size 0\n",
        2: "cpu_cores_count 0\nlds_size_in_kb 32\nwave_front_size 64\n",
        10: "cpu_cores_count 0\nlds_size_in_kb 64\nwave_front_size 64\nno number\n",
    }.items()
}

CUDA = {
    "warp_size": 32,
    "clock_khz": 1_980_000,
    "multiprocessors": 132,
    "memory_clock_khz": 2_619_000,
    "memory_bus_bits": 5120,
    "l2_cache": 52_428_800,
    "capability_major": 9,
    "capability_minor": 0,
    "shared_memory_optin": 232_448,
}


class Nvml:
    """The part of ``pynvml`` that is asked, with an H100's answers; counts its closings."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_NVLINK_MAX_LINKS = 1, 2, 18

    def __init__(self, *, without=()):
        self.open, self.asked, self.without = 0, [], without

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetHandleByIndex(self, index):
        return f"index {index}"

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return f"uuid {uuid}"

    def _answer(self, name, handle, value):
        self.asked.append((name, handle))
        if name in self.without:
            raise RuntimeError("NVMLError_NotSupported")
        return value

    def nvmlDeviceGetMemoryInfo(self, handle):
        memory = types.SimpleNamespace(total=80 * GIB, used=62 * GIB, free=18 * GIB)
        return self._answer("memory", handle, memory)

    def nvmlDeviceGetCudaComputeCapability(self, handle):
        return self._answer("capability", handle, (9, 0))

    def nvmlDeviceGetMaxClockInfo(self, handle, clock):
        return self._answer("clock", handle, {1: 1980, 2: 2619}[clock])

    def nvmlDeviceGetMemoryBusWidth(self, handle):
        return self._answer("bus", handle, 5120)

    def nvmlDeviceGetName(self, handle):
        return self._answer("name", handle, b"NVIDIA H100 80GB HBM3")

    def nvmlDeviceGetNvLinkState(self, handle, link):
        return self._answer("link", handle, 1)


EPYC = """\
processor	: 0
vendor_id	: AuthenticAMD
cpu family	: 25
model		: 17
model name	: AMD EPYC 9B14
cache size	: 1024 KB
flags		: fpu sse sse2 smep ssse3 fma avx f16c avx2 avx512f avx512bw avx512_bf16

processor	: 1
model name	: AMD EPYC 9B14
"""

GRAVITON = """\
processor	: 0
BogoMIPS	: 2100.00
Features	: fp asimd aes sha2 fphp asimdhp sve bf16 i8mm
CPU implementer	: 0x41
CPU part	: 0xd40
"""

MEMINFO = """\
MemTotal:       65842172 kB
MemFree:         1210324 kB
MemAvailable:   48120044 kB
"""

STATUS = """\
Name:	python
VmPeak:	 9000000 kB
VmHWM:	  812344 kB
VmRSS:	  700000 kB
"""


def host(root: Path, cpuinfo=EPYC, **more) -> Path:
    """A root folder with the files of a host; ``more``: path to text."""
    caches = ((1, "Data", "32K"), (1, "Instruction", "64K"), (2, "Unified", "1024K"))
    files = {
        "proc/cpuinfo": cpuinfo,
        "proc/meminfo": MEMINFO,
        "proc/self/status": STATUS,
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3700000\n",
    }
    for index, (level, kind, size) in enumerate((*caches, (3, "Unified", "32M"))):
        folder = f"sys/devices/system/cpu/cpu0/cache/index{index}"
        files |= {f"{folder}/level": str(level), f"{folder}/type": kind, f"{folder}/size": size}
    files |= more
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def cpu():
    def make(client, index):
        return Device(
            client=client, id=0, platform="cpu", device_kind="cpu", process_index=0, stats=None
        )

    return Client(make, 1).devices()[0]
