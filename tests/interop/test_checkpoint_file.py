"""Reading PyTorch's files."""

import argparse
import io
import os
import pickle
import sys

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

import voxax as vx
from voxax.interop import (
    from_minkowski,
    from_spconv,
    read_checkpoint,
    to_minkowski,
    to_spconv,
    write_checkpoint,
)
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
    for name in ("model.pt", "old.pt"):
        with pytest.raises(vx.FileFormatError, match=r"tensors alone, it needs \w+\.mkdir, which"):
            read_checkpoint(tmp_path / name)
    assert not (tmp_path / "made-by-the-file").exists()


def test_a_class_that_is_refused_is_named(torch, tmp_path):
    for archive in (True, False):
        content = {"args": argparse.Namespace(a=1), "model": {}}
        torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=archive)
        with pytest.raises(vx.FileFormatError, match=r"argparse\.Namespace, .*state_dict") as error:
            read_checkpoint(tmp_path / "a.pt", "model")
        assert "\x1b" not in str(error.value)


def test_files_that_are_cut_or_of_another_kind(torch, tmp_path):
    torch.save({"a": torch.ones(999)}, tmp_path / "whole.pt")
    whole = (tmp_path / "whole.pt").read_bytes()
    for content in (b"", b"no checkpoint", b"<!doctype html>", whole[: len(whole) // 2]):
        (tmp_path / "a.pt").write_bytes(content)
        with pytest.raises(vx.FileFormatError, match=r"a\.pt is damaged, or no PyT.*download or"):
            read_checkpoint(tmp_path / "a.pt")


def test_a_module_in_place_of_its_state_dict(torch):
    with pytest.raises(vx.InputError, match=r"dict of Linear: .*pass module\.state_dict\(\)"):
        from_spconv(torch.nn.Linear(2, 3), SubMConv3d(2, 3))


ODD = {
    "meta": lambda torch: torch.empty(3, device="meta"),
    "sparse": lambda torch: torch.eye(3).to_sparse(),
    "float8": lambda torch: torch.zeros(3).to(torch.float8_e4m3fn),
    "nested": lambda torch: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "conjugate": lambda torch: torch.zeros(3, dtype=torch.complex64).conj(),
}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_that_are_no_arrays(torch, tmp_path, kind):
    torch.save({"fine": torch.ones(2), "odd.weight": ODD[kind](torch)}, tmp_path / "model.pt")
    with pytest.raises(
        vx.FileFormatError, match=r"model\.pt: 'odd\.weight' of the state dict, .*on"
    ):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_of_more_bytes_than_their_storage(torch, tmp_path, dtype):
    one = torch.zeros(1, dtype=getattr(torch, dtype))
    torch.save({"a": one, "b": one.expand(10**12)}, tmp_path / "model.pt")
    with pytest.raises(
        vx.FileFormatError, match=r"'b' of shape \[1000000000000\] has \d+ bytes, and"
    ):
        read_checkpoint(tmp_path / "model.pt")


def test_what_is_no_tensor_is_named(torch, tmp_path):
    tensors = {f"a{i}": torch.ones(1) for i in range(300)}
    torch.save({**tensors, **{f"note{i}": "" for i in range(8)}}, tmp_path / "model.pt")
    with pytest.raises(vx.FileFormatError, match=r"has 'note0' \(str\).*, and 2 more: ") as error:
        read_checkpoint(tmp_path / "model.pt")
    assert "a0" not in str(error.value)
    torch.save({**tensors, "x" * 5000: 1}, tmp_path / "model.pt")
    for key in (None, "state_dict"):
        with pytest.raises(vx.FileFormatError) as error:
            read_checkpoint(tmp_path / "model.pt", key)
        assert len(str(error.value)) < 1000
    torch.save({0: torch.ones(1)}, tmp_path / "model.pt")
    with pytest.raises(vx.FileFormatError, match="0 of the state dict is int, not a name"):
        read_checkpoint(tmp_path / "model.pt")


@pytest.mark.parametrize("archive", [True, False])
def test_corrupted_files(torch, tmp_path, archive):
    file, path = io.BytesIO(), tmp_path / "model.pt"
    content = {"a.weight": torch.ones(4), "b.bias": torch.ones(2), "n": np.ones(3)}
    torch.save(content, file, _use_new_zipfile_serialization=archive)
    whole = file.getvalue()
    for place in range(0, min(len(whole), 900), 3):
        path.write_bytes(whole[:place] + b"\xff" + whole[place + 1 :])
        with pytest.raises(vx.FileFormatError, match=r"model\.pt"):  # at least for the array
            read_checkpoint(path)


def test_safetensors_by_any_case_of_the_extension(tmp_path):
    pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    path = write_checkpoint(tmp_path / "A.SAFETENSORS", {"a": np.ones(3)})
    assert b'{"a":' in path.read_bytes()[:20]
    np.testing.assert_array_equal(read_checkpoint(path)["a"], np.ones(3))


def test_a_hub_is_not_written_to():
    with pytest.raises(vx.InputError, match=r"hf://owner/name/w\.pth is read only"):
        write_checkpoint("hf://owner/name/w.pth", {"a": np.ones(3)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("names", [(from_spconv, to_spconv), (from_minkowski, to_minkowski)])
def test_loading_casts_nothing(names, dtype):
    """The arrays take the dtype of the state dict, or there is an error."""
    load, save = names
    layer = SubMConv3d(2, 3, 3, rngs=nnx.Rngs(0))
    state = {name: value.astype(jnp.dtype(dtype)) + 1 / 3 for name, value in save(layer).items()}
    state = {name: value.astype(jnp.dtype(dtype)) for name, value in state.items()}
    if dtype == "float64":
        with pytest.raises(vx.InputError, match="is float64, which JAX would turn into float32"):
            load(state, layer)
        return
    load(state, layer)
    for name, value in save(layer).items():
        assert value.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(value, state[name])


@pytest.mark.parametrize("dtype", ["complex64", "bool", "int8"])
def test_weights_are_real_numbers(dtype):
    layer = SubMConv3d(1, 1)
    state = {name: value.astype(dtype) for name, value in to_spconv(layer).items()}
    with pytest.raises(vx.InputError, match=rf"'weight' of the spconv state dict is {dtype}: "):
        from_spconv(state, layer)
