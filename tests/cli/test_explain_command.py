"""`voxax explain`: which options belong to which of its two answers."""

import pytest

from voxax.cli import main


@pytest.mark.parametrize("option", [["--width", "0.5"], ["--sensor", "lidar64"], ["--seed", "1"]])
def test_options_of_the_roofline(option, capsys):
    assert main(["explain", *option]) == 2
    assert f"{' '.join(option)} belongs to --roofline" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option", [["--model", "MinkUNet14"], ["--details"], ["--training"], ["--workload", "indoor"]]
)
def test_options_of_the_choices(option, capsys):
    assert main(["explain", "--roofline", *option]) == 2
    assert "--roofline runs the demo's network" in capsys.readouterr().err


def test_roofline_options_arrive(monkeypatch):
    from voxax.cli import tune

    heard = []
    monkeypatch.setattr(tune, "_roofline", lambda *values: heard.append(values) or 0)
    assert main(["explain", "--roofline"]) == 0
    given = ["--width", "0.25", "--voxel-size", "1.0", "--sensor", "lidar64", "--seed", "3"]
    assert main(["explain", "--roofline", *given]) == 0
    assert heard == [(1.0, 0.3, "lidar32", 0), (0.25, 1.0, "lidar64", 3)]
