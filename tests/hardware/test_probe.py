"""Measurements are made once and kept; a broken cache is no error."""

import json

import jax
import pytest

from hardware import recorded
from voxax.hardware import Runtime, cache_dir, describe, probe, remeasure


@pytest.fixture
def quick(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(probe, "_CPU", {"bytes": 1 << 16, "size": 32})
    monkeypatch.setattr(probe, "_SECONDS", 0.001)
    return tmp_path / "cache"


def files(folder):
    return sorted((folder / "hardware").glob("*"))


def test_measured_once_then_remembered(quick):
    assert describe().fact("memory_bandwidth").source == "unknown"
    first = describe(probe=True)
    assert first.fact("memory_bandwidth").source == "probe"
    assert first.memory_bandwidth > 0
    assert first.peak_rate("float32") > 0
    assert first.peak_rate("float64") > 0
    assert describe().memory_bandwidth == first.memory_bandwidth
    assert describe(probe=True).peak_rates == first.peak_rates
    (file,) = files(quick)
    assert jax.__version__ in file.name
    again = remeasure()
    assert again.memory_bandwidth != first.memory_bandwidth
    assert files(quick) == [file]


def test_a_cpus_rate_is_the_best_of_xla_and_numpy(quick, monkeypatch):
    monkeypatch.setattr(probe, "_matrix_rate", lambda device, size, dtype: 2.0)
    monkeypatch.setattr(
        probe, "_numpy_rate", lambda size, dtype: 3.0 if dtype == "float32" else 1.0
    )
    rates = dict(describe(probe=True).peak_rates)
    assert (rates["float32"], rates["float64"], rates["bfloat16"]) == (3.0, 2.0, 2.0)


def test_float32_and_float64_are_measured_with_all_their_digits(quick, monkeypatch):
    """By default GPUs and TPUs round float32, and the rate would be that of shorter operands."""
    product, precisions = probe._product, {}

    def noted(a, b, precision, out):
        precisions[a.dtype.name] = precision
        return product(a, b, precision, out)

    monkeypatch.setattr(probe, "_product", noted)
    remeasure()
    assert precisions["float32"] == precisions["float64"] == "highest"
    assert precisions["bfloat16"] == precisions["int8"] == "default"
    x = jax.ShapeDtypeStruct((4, 4), "float32")
    jaxpr = jax.make_jaxpr(lambda a: product(a, a, "highest", "float32"))(x)
    assert "precision=(Precision.HIGHEST" in str(jaxpr)


def test_another_revision_measures_anew(quick, monkeypatch):
    facts = describe().facts
    before = probe.key_of(facts)
    monkeypatch.setattr(probe, "_REVISION", probe._REVISION + 1)
    assert probe.key_of(facts) != before


def test_kinds_of_devices_are_kept_apart(quick, tmp_path):
    facts = [
        describe(recorded.cpu(), runtime=Runtime(root=recorded.host(tmp_path / "a", cpuinfo))).facts
        for cpuinfo in (recorded.EPYC, recorded.GRAVITON)
    ]
    assert probe.key_of(facts[0]) != probe.key_of(facts[1])
    assert not set(probe.key_of(facts[0])) & set("/\\: ")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"peak_rates": 3}', '{"memory_bandwidth": "x"}'])
def test_broken_cache_is_measured_anew(quick, text):
    remeasure()
    (file,) = files(quick)
    file.write_text(text)
    assert describe().fact("memory_bandwidth").source == "unknown"
    assert describe(probe=True).memory_bandwidth > 0
    assert json.loads(file.read_text())["memory_bandwidth"] > 0


def test_cache_that_cannot_be_written(quick):
    quick.write_text("a file where the folder should be")
    assert describe(probe=True).peak_rate("float32") > 0
    # Nothing was kept, so `remeasure` has nothing to read back.
    assert remeasure().fact("memory_bandwidth").source == "unknown"
    assert quick.is_file()


def test_what_the_runtime_knows_is_not_measured(quick, tmp_path):
    info = describe(recorded.tpu(), runtime=Runtime(root=tmp_path))
    key = probe.key_of(info.facts)
    file = probe._file(key)
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"memory_bandwidth": 1.0, "peak_rates": {}}))
    assert probe.remembered(key)["memory_bandwidth"].value == 1.0
    again = describe(recorded.tpu(), runtime=Runtime(root=tmp_path))
    assert again.fact("memory_bandwidth") == info.fact("memory_bandwidth")


def test_cache_dir(monkeypatch, tmp_path):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("VOXAX_CACHE_DIR")
    assert cache_dir().name.lower() == "voxax"
