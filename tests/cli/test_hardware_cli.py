"""`voxax hardware` end to end."""

import json

import pytest

from voxax.cli import main
from voxax.hardware import HardwareInfo, describe


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXAX_CACHE_DIR", str(tmp_path))


def test_every_field_with_its_source(capsys):
    assert main(["hardware"]) == 0
    out = capsys.readouterr().out
    for name, fact in describe().facts.items():
        (line,) = [row for row in out.splitlines() if row.strip("│ ").startswith(f"{name} ")]
        assert fact.source in line


def test_json(capsys):
    assert main(["hardware", "--json", "--device", "0"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["platform"] == {"value": "cpu", "source": "jax device"}
    assert HardwareInfo.from_json(values).cpu_cores == describe().cpu_cores


def test_topology(capsys, monkeypatch):
    from voxax.hardware import tpu

    monkeypatch.setattr(tpu, "_described", lambda name: None)
    assert main(["hardware", "--topology", "v6e:2x2"]) == 0
    out = capsys.readouterr().out
    assert "TPU v6e" in out
    assert "256 x 256" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "9"], "device 9 of"),
        (["--device", "0", "--topology", "v5e:2x2"], "give one of them"),
        (["--topology", "v5e:2x2", "--probe"], "leave --probe out"),
        (["--topology", "five"], "is no TPU topology"),
    ],
)
def test_mistakes(arguments, message, capsys):
    assert main(["hardware", *arguments]) == 2
    assert message in capsys.readouterr().err
