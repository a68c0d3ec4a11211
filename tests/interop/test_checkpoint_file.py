"""Reading PyTorch's files."""

import os
import pickle
import sys

import ml_dtypes
import numpy as np
import pytest

import voxax as vx
from voxax.interop import from_spconv, read_checkpoint, to_spconv
from voxax.nn.modules import SubMConv3d


def test_without_torch(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(vx.MissingExtraError, match=r'pip install "voxax\[torch\]"'):
        read_checkpoint(tmp_path / "model.pt")


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def test_a_state_dict_from_a_file(torch, tmp_path):
    first, second = SubMConv3d(2, 3), SubMConv3d(2, 3)
    state = {name: torch.from_numpy(value) + 1 for name, value in to_spconv(first).items()}
    torch.save(state, tmp_path / "plain.pt")
    torch.save({"epoch": 3, "model": state}, tmp_path / "nested.pt")
    from_spconv(str(tmp_path / "plain.pt"), second)
    read = read_checkpoint(tmp_path / "nested.pt", key="model")
    for name, value in to_spconv(second).items():
        np.testing.assert_array_equal(value, state[name].numpy())
        np.testing.assert_array_equal(read[name], value)
    with pytest.raises(vx.FileFormatError, match=r"'epoch' \(int\), 'model' \(dict\).*key="):
        from_spconv(tmp_path / "nested.pt", second)
    with pytest.raises(vx.FileFormatError, match="no entry 'state_dict'; it has 'epoch'"):
        read_checkpoint(tmp_path / "nested.pt", key="state_dict")


def test_tensors_of_every_dtype(torch, tmp_path):
    values = torch.linspace(-2, 2, 7)
    kinds = ("float16", "bfloat16", "float32", "float64", "int8")
    torch.save({k: values.to(getattr(torch, k)) for k in kinds}, tmp_path / "model.pt")
    read = read_checkpoint(tmp_path / "model.pt")
    assert {k: v.dtype for k, v in read.items()} == {k: np.dtype(k) for k in kinds}
    assert read["bfloat16"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(read["float64"], values.double().numpy())


class Runs:
    """Execute code when unpickled, as a malicious file does."""

    def __reduce__(self):
        return os.mkdir, ("made-by-the-file",)


def test_files_that_would_run_code_are_refused(torch, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"weight": Runs()}, tmp_path / "model.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps(Runs(), protocol=2))
    (tmp_path / "text.pt").write_text("no checkpoint")
    for name in ("model.pt", "old.pt", "text.pt"):
        with pytest.raises(vx.FileFormatError, match=r"no PyTorch file of tensors alone"):
            read_checkpoint(tmp_path / name)
    assert not (tmp_path / "made-by-the-file").exists()
