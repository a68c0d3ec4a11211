"""Tensors to JAX and back: shared memory, views, dtypes; voxels of JAX as sparse tensors."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks.workloads import random_cube

import voxax as vx

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
vxt = pytest.importorskip("voxax.torch")

pytestmark = pytest.mark.torch


def test_memory_is_shared_both_ways():
    tensor = torch.randn(1000, 64)
    array = vxt.to_jax(tensor)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    out = jax.jit(lambda x: x + 1)(array)
    assert vxt.to_torch(out).data_ptr() == out.unsafe_buffer_pointer()


def test_rows_that_begin_off_alignment_and_strided_ones():
    off = torch.randn(513)[1:].view(64, 8)
    assert off.data_ptr() % 64 != 0
    for tensor in (off, off.t().contiguous().t(), off[::2], off[:0]):
        np.testing.assert_array_equal(vxt.to_jax(tensor), tensor.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int32])
def test_dtypes(dtype):
    tensor = torch.arange(12).reshape(3, 4).to(dtype).requires_grad_(dtype.is_floating_point)
    array = vxt.to_jax(tensor)
    assert str(dtype) == f"torch.{array.dtype}"
    assert torch.equal(vxt.to_torch(array), tensor)


def test_float64_is_not_rounded_silently():
    tensor = torch.full((3,), 1 / 3, dtype=torch.float64)
    with pytest.raises(vx.InputError, match=r"float64.*jax_enable_x64"):
        vxt.to_jax(tensor)
    with jax.enable_x64(True):
        assert torch.equal(vxt.to_torch(vxt.to_jax(tensor)), tensor)


def test_integers_are_not_wrapped_silently():
    for dtype, most in ((torch.int64, 2**31 - 1), (torch.uint64, 2**32 - 1)):
        assert vxt.to_jax(torch.tensor([3, most], dtype=dtype)).tolist() == [3, most]
        with pytest.raises(vx.InputError, match=rf"{most + 1}, which does not fit u?int32.*x64"):
            vxt.to_jax(torch.tensor([3, most + 1], dtype=dtype))
        with jax.enable_x64(True):
            assert vxt.to_jax(torch.tensor([most + 1], dtype=dtype)).tolist() == [most + 1]
    assert vxt.to_jax(torch.tensor([2**32 - 1], dtype=torch.uint32)).tolist() == [2**32 - 1]
    with pytest.raises(vx.InputError, match="complex128, which JAX would round to complex64"):
        vxt.to_jax(torch.ones(2, dtype=torch.complex128))


def test_what_has_no_values_of_pytorch_or_jax():
    with pytest.raises(vx.InputError, match=r"to_jax of ndarray: expected a torch\.Tensor"):
        vxt.to_jax(np.ones(3))
    with pytest.raises(vx.InputError, match="to_torch of a traced array"):
        jax.jit(vxt.to_torch)(jnp.ones(3))


def test_tensors_made_in_inference_mode_are_ordinary():
    with torch.inference_mode():
        made = vxt.to_torch(jnp.ones(3))
    assert not made.is_inference()


def test_voxels_there_and_back():
    """As the page says it."""
    rows = random_cube(100)
    features = np.random.default_rng(0).normal(size=(len(rows), 3)).astype(np.float32)
    voxels = vx.Voxels.from_coords(rows, features, 2, capacity=128)
    indices = torch.tensor(voxels.valid_coords())
    shape = (indices[:, 1:].amax(0) + 1).tolist()
    x = vxt.spconv.SparseConvTensor(torch.tensor(voxels.valid_features()), indices, shape, 2)
    again = vx.Voxels.from_coords(x.indices, vxt.to_jax(x.features), x.batch_size, capacity=128)
    np.testing.assert_array_equal(again.coords, voxels.coords)
    np.testing.assert_array_equal(again.features, voxels.features)


def test_without_pytorch_the_error_names_the_extra():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import voxax\n"
        "try:\n    import voxax.torch\n"
        "except voxax.MissingExtraError as error:\n    assert 'voxax[torch]' in str(error)\n"
        "else:\n    raise SystemExit('no error')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
