"""Numbers of a training reach TensorBoard and W&B, at the steps that are written."""

import sys
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from voxax.errors import InputError, MissingExtraError
from voxax.geometry import Voxels
from voxax.models.training import Trainer
from voxax.models.writers import TensorBoardWriter, WandbWriter
from voxax.nn.modules import Linear


class Recorded:
    """Stands for tensorboardX' SummaryWriter, and for a run of W&B."""

    def __init__(self, *place, **options):
        self.place, self.options, self.written, self.is_closed = place, options, [], False
        Recorded.last = self

    def add_scalar(self, name, value, step):
        self.written.append((step, name, value))

    def log(self, values, step):
        self.written += [(step, name, value) for name, value in values.items()]

    def close(self):
        self.is_closed = True

    finish = close


@pytest.fixture
def scene():
    coords = np.array([[0, x, 0, 0] for x in range(4)], np.int32)
    return Voxels.from_coords(coords, np.ones((4, 2), np.float32))


@pytest.fixture
def libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=Recorded))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=Recorded))


@pytest.mark.parametrize("kind", [TensorBoardWriter, WandbWriter])
def test_every_second_step_is_written(kind, tmp_path, libraries):
    given = (tmp_path,) if kind is TensorBoardWriter else ()
    options = {} if given else {"project": "voxels"}
    writer = kind(*given, every=2, **options)
    for step in range(1, 6):
        writer(step, {"loss": jnp.float32(step), "dropped": np.int32(0)})
    writer.write(5, {"validation": 0.5})
    writer.close()
    losses = [(step, n, v) for step in (2, 4) for n, v in (("loss", step), ("dropped", 0))]
    assert Recorded.last.written == [*losses, (5, "validation", 0.5)]
    assert Recorded.last.is_closed
    assert (Recorded.last.place, Recorded.last.options) == (tuple(map(str, given)), options)


def test_trainers_call_what_they_are_given(tmp_path, libraries, scene):
    seen = []
    trainer = Trainer(Linear(2, 3), optax.sgd(0.1), on_metrics=lambda *told: seen.append(told))
    losses = [float(trainer.step(scene, np.zeros(scene.capacity, int))[0]) for _ in range(2)]
    assert [(step, float(m["loss"])) for step, m in seen] == [(1, losses[0]), (2, losses[1])]
    assert all(int(metrics["dropped"]) == 0 for _, metrics in seen)
    trainer.on_metrics = TensorBoardWriter(tmp_path, every=1)
    trainer.step(scene, np.zeros(scene.capacity, int))
    assert [step for step, *_ in Recorded.last.written] == [3, 3]


def test_files_of_tensorboard(tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    writer = TensorBoardWriter(tmp_path, every=1)
    writer(1, {"loss": 0.5})
    writer.close()
    (file,) = tmp_path.glob("events.out.tfevents.*")
    assert b"loss" in file.read_bytes()


@pytest.mark.parametrize(("name", "extra"), [("tensorboardX", "tensorboard"), ("wandb", "wandb")])
def test_missing_libraries_name_their_extra(name, extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"{name}: pip install \"voxax\[{extra}\]\""):
        TensorBoardWriter(tmp_path) if extra == "tensorboard" else WandbWriter()


def test_no_steps_between(tmp_path):
    with pytest.raises(InputError, match="every = 0 must be at least 1"):
        TensorBoardWriter(tmp_path, every=0)
