"""What programs do with MinkowskiEngine around its layers: copies, loaders, autocast, errors."""

import copy
import itertools
import pickle

import numpy as np
import pytest
import torch
from minkowski_cases import inputs
from torch import nn

import voxax.torch.minkowski as ME

pytestmark = pytest.mark.torch


def tensor(dimension=3, channels=3, dtype=torch.float64, **arguments):
    return inputs.tensor(ME, dtype, inputs.scene(dimension), channels, **arguments)


@pytest.mark.parametrize("dimension", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_a_layer_equals_a_dense_one(dimension, stride):
    x, leaf = tensor(dimension)
    layer = ME.MinkowskiConvolution(3, 2, kernel_size=3, stride=stride, dimension=dimension)
    inputs.fill(layer, torch.float64)
    low = torch.full((dimension,), -16, dtype=torch.int32)
    shape = torch.Size([2, 3, *[32] * dimension])
    grid, *_ = x.dense(shape=shape, min_coordinate=low)
    # The first axis runs fastest over the taps.
    weight = layer.kernel.view(*[3] * dimension, 3, 2).permute(
        *range(dimension - 1, -1, -1), dimension, dimension + 1
    )
    weight = weight.permute(dimension + 1, dimension, *range(dimension))
    convolve = {1: nn.functional.conv1d, 2: nn.functional.conv2d, 3: nn.functional.conv3d}
    expected = convolve[dimension](grid, weight, padding=1, stride=stride)
    out = layer(x)
    at = ((out.C[:, 1:] + 16) // stride).long()
    torch.testing.assert_close(out.F, expected[(out.C[:, 0].long(), slice(None), *at.T)])
    grad = torch.autograd.grad(out.F.sum(), leaf, retain_graph=True)
    rows = (out.C[:, 0].long(), slice(None), *at.T)
    torch.testing.assert_close(grad, torch.autograd.grad(expected[rows].sum(), leaf))


def test_coarse_features_return_to_the_points_in_them():
    points = torch.tensor([[0, 0.5, 1.5], [0, 3.2, 0.1], [0, -0.5, 2.0], [1, 3.9, 1.0]])
    x = ME.TensorField(torch.arange(4.0)[:, None], coordinates=points)
    coarse = ME.MinkowskiSumPooling(kernel_size=2, stride=2, dimension=2)(x.sparse())
    found = dict(zip(map(tuple, coarse.C.tolist()), coarse.F[:, 0].tolist(), strict=True))
    cells = [(int(b), int(2 * (p // 2)), int(2 * (q // 2))) for b, p, q in points.tolist()]
    assert coarse.slice(x).F[:, 0].tolist() == [found[cell] for cell in cells]


def test_custom_and_hybrid_regions():
    offsets = torch.IntTensor([[0, 0], [1, 0], [0, -2]])
    custom = ME.KernelGenerator(
        3, region_type=ME.RegionType.CUSTOM, region_offsets=offsets, dimension=2
    )
    x, _ = tensor(2)
    layer = ME.MinkowskiConvolution(3, 2, kernel_generator=custom, dimension=2)
    inputs.fill(layer, torch.float64)
    rows = {tuple(row): place for place, row in enumerate(x.C.tolist())}
    expected = torch.zeros(len(x), 2, dtype=torch.float64)
    for place, (scene, a, b) in enumerate(x.C.tolist()):
        for tap, (da, db) in enumerate(offsets.tolist()):
            if (scene, a + da, b + db) in rows:
                expected[place] += x.F[rows[scene, a + da, b + db]] @ layer.kernel[tap]
    torch.testing.assert_close(layer(x).F, expected)
    cube, cross = ME.RegionType.HYPER_CUBE, ME.RegionType.HYPER_CROSS
    hybrid = ME.KernelGenerator(
        3, region_type=ME.RegionType.HYBRID, axis_types=[cube, cube, cross], dimension=3
    )
    assert hybrid.kernel_volume == 11
    region, taps, volume = hybrid.get_kernel([1, 1, 1], False)
    assert region is ME.RegionType.CUSTOM
    assert len(set(map(tuple, taps.tolist()))) == volume == 11


def network():
    return nn.Sequential(
        ME.MinkowskiConvolution(3, 4, kernel_size=3, stride=2, dimension=3),
        ME.MinkowskiBatchNorm(4),
        ME.MinkowskiReLU(),
        ME.MinkowskiConvolutionTranspose(4, 2, kernel_size=2, stride=2, dimension=3),
    )


def test_copies_and_pickles_compute_the_same():
    net = network().double()
    x, _ = tensor()
    expected = net(x)
    for again in (copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        other = again(x.detach())
        out = again(net)(other)
        assert torch.equal(out.F, expected.F)
        assert torch.equal(out.C, expected.C)
        assert out.coordinate_map_key == other.coordinate_map_key


def test_workers_of_a_loader_collate():
    data = [
        (np.random.RandomState(n).rand(9, 3) * 4, np.ones((9, 2)), np.arange(9)) for n in (0, 1)
    ]
    loader = torch.utils.data.DataLoader(
        data, 2, num_workers=1, collate_fn=ME.utils.batch_sparse_collate
    )
    rows, features, labels = next(iter(loader))
    assert rows.shape == (18, 4)
    assert len(features) == len(labels) == 18


def test_autocast_computes_in_its_dtype():
    net = network()
    x, _ = tensor(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = net(x)
    assert out.dtype is torch.bfloat16
    out.F.float().sum().backward()
    assert all(parameter.grad.dtype is torch.float32 for parameter in net.parameters())
    torch.testing.assert_close(out.F.float(), net(x).F, rtol=0.05, atol=0.1)


def test_gradients_of_gradients():
    x, leaf = inputs.tensor(ME, torch.float64, inputs.scene(1)[:5], 2)
    layer = ME.MinkowskiConvolution(2, 1, kernel_size=3, stride=2, dimension=1).double()
    key, manager = x.coordinate_map_key, x.coordinate_manager

    def function(features, kernel):
        return ME.MinkowskiConvolutionFunction.apply(
            features, kernel, layer.kernel_generator, layer.convolution_mode, key, None, manager
        )

    assert torch.autograd.gradgradcheck(function, (leaf, layer.kernel))


def test_writes_into_coordinates_move_nothing():
    x, _ = tensor()
    layer = ME.MinkowskiConvolution(3, 2, kernel_size=3, dimension=3).double()
    expected = layer(x).F
    x.C[:] = 0
    assert torch.equal(layer(x).F, expected)


def test_installed_names_are_the_package():
    ME.install()
    try:
        import MinkowskiEngine
        from MinkowskiEngine.MinkowskiPooling import MinkowskiAvgPooling
        from MinkowskiEngine.modules.resnet_block import BasicBlock
        from MinkowskiEngineBackend._C import CoordinateMapKey
        from MinkowskiSparseTensor import SparseTensor

        assert MinkowskiEngine is ME
        assert MinkowskiAvgPooling is ME.MinkowskiAvgPooling
        assert CoordinateMapKey is ME.CoordinateMapKey
        assert SparseTensor is ME.SparseTensor
        assert BasicBlock.__module__ == "voxax.torch.minkowski.modules.resnet_block"
    finally:
        ME.uninstall()


def test_every_public_name_is_here():
    import minkowski_golden as golden

    printed = golden.result("utilities", "printed")
    own = {"os", "sys", "torch", "warnings", "file_dir"}
    assert set(printed["public"].tolist()) - own <= set(vars(ME))
    assert set(printed["functional"].tolist()) - {"SparseTensor", "TensorField"} <= set(
        vars(ME.MinkowskiFunctional)
    )
    assert set(printed["utils"].tolist()) <= set(vars(ME.utils))
    for name, kind in (
        ("sparse_tensor", ME.SparseTensor),
        ("tensor_field", ME.TensorField),
        ("manager", ME.CoordinateManager),
        ("key", ME.CoordinateMapKey),
    ):
        public = {item for item in printed[name].tolist() if not item.startswith("_")}
        assert public - set(dir(kind)) <= {
            "coordinate_map_key",  # fields have none
            "inverse_mapping",
            "initialize_coordinates",
            "quantization_mode",
            "unique_index",
        }


MASKED = torch.IntTensor([[0, 0, 0], [0, 1, 1], [0, 1, 1]])


def test_masks_and_labels_are_features():
    """Networks carry them along: Mask3D's masks of attention are sparse tensors."""
    mask = torch.tensor([[True, False], [False, True], [True, True]])
    x = ME.SparseTensor(mask, coordinates=MASKED)
    assert torch.equal(x.F, mask[:2])
    assert torch.equal(torch.cat(x.decomposed_features), mask[:2])
    labels = ME.TensorField(torch.arange(3)[:, None], coordinates=MASKED.float()).sparse
    x = labels(quantization_mode=ME.SparseTensorQuantizationMode.RANDOM_SUBSAMPLE)
    assert torch.equal(x.F, torch.tensor([[0], [1]]))


def test_the_binary_quantizes():
    from voxax.torch.minkowski import backend

    rows = MASKED[[0, 1, 2, 0]]
    for first, places in (backend.quantize_th(rows), backend.quantize_np(rows.numpy())):
        assert first.tolist() == [0, 1]
        assert places.tolist() == [0, 1, 1, 0]
    assert backend.quantize_np(rows.numpy())[0].dtype == np.int32


@pytest.mark.parametrize("device", [0, "cuda"])
def test_a_gpu_is_refused_by_name_and_number(device):
    with pytest.raises(ValueError, match="runs on the CPU"):
        ME.SparseTensor(torch.ones(3, 1), coordinates=MASKED, device=device)
    with pytest.raises(ValueError, match="runs on the CPU"):
        ME.utils.sparse_quantize(MASKED, device=device)


@pytest.mark.parametrize(
    "call",
    [
        ME.MinkowskiConvolution(1, 1, kernel_size=3, dimension=2),
        ME.MinkowskiSumPooling(2, 2, dimension=2),
        ME.MinkowskiGlobalAvgPooling(),
        lambda x: ME.SparseTensor(
            x.F[[0, 1, 1]],
            coordinates=MASKED,
            quantization_mode=ME.SparseTensorQuantizationMode.UNWEIGHTED_AVERAGE,
        ),
    ],
)
def test_integers_are_not_summed(call):
    x = ME.SparseTensor(torch.ones(2, 1).int(), coordinates=MASKED[:2])
    with pytest.raises(ValueError, match=r"torch.int32.*convert with .float\(\)"):
        call(x)


def test_memory_of_a_manager_ends_with_its_tensors():
    import gc
    import weakref

    net = network()
    gc.disable()
    try:
        managers = []
        for step in range(5):
            rows = inputs.scene(3, seed=step)
            out = net(ME.SparseTensor(torch.ones(len(rows), 3), coordinates=rows))
            out.F.sum().backward()
            managers.append(weakref.ref(out.coordinate_manager))
        del out
        assert not any(manager() for manager in managers)
    finally:
        gc.enable()


def test_kernel_maps_are_built_once():
    x, _ = tensor()
    layers = [ME.MinkowskiConvolution(3, 3, kernel_size=3, dimension=3).double() for _ in range(2)]
    for layer in layers:
        layer(x)
    kernel = layers[0].kernel_generator.kernel()
    key = x.coordinate_map_key
    maps = [x.coordinate_manager.relation(key, key, kernel) for _ in range(2)]
    assert maps[0] is maps[1]
    assert maps[0].symmetric


def test_taps_run_along_the_first_axis_first():
    taps = ME.KernelGenerator(3, dimension=2).kernel().offsets([2, 2]).tolist()
    assert taps == [[2 * a, 2 * b] for b, a in itertools.product((-1, 0, 1), repeat=2)]
