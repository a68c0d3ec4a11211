"""Check programs for hardware that is not present."""

from voxax.hardware import HardwareInfo, hardware_of, target_platform, targeting


def test_a_target_is_seen_inside_and_nowhere_else():
    """Check nested targets: facts that are cached belong to one target."""
    here = hardware_of("cpu")
    for kind in ("one", "another"):
        other = HardwareInfo(platform="cpu", device_kind=kind)
        with targeting(other):
            assert hardware_of("cpu") == (other, None)
        assert hardware_of("cpu") == here
    with targeting(HardwareInfo(platform="tpu", device_kind="TPU v9")):
        assert target_platform() == "tpu"
        assert hardware_of("tpu")[0].device_kind == "TPU v9"
        assert hardware_of("cpu") == here
    assert hardware_of("tpu")[0].device_kind != "TPU v9"
