"""What spconv 2.3.8 gave on a GPU, frozen: outputs, gradients, names, initial weights."""

import inspect
import pickle

import golden
import numpy as np
import pytest
import torch
from torch import nn

import voxax.torch.spconv as spconv
from voxax.torch.spconv import functional, hash, ops, test_utils, utils
from voxax.torch.spconv.core import scatter_nd

pytestmark = pytest.mark.torch

PIPELINES = [
    ("golden_ext_pool.pt", "avgp3d_subm"),
    ("golden_ext_pool.pt", "maxp3d_subm"),
    ("golden_ext_pool.pt", "maxp3d_d2"),
    ("golden_ext_pool.pt", "maxp3d_k5_kv125"),
    ("golden_misc.pt", "seq2d_mixed"),
]


@pytest.mark.parametrize(("file", "name"), PIPELINES)
def test_layers(scans, file, name):
    case = golden.load(scans, file)[name]
    assert case["training"]
    dtype = getattr(torch, case["dtype"])
    modules = nn.ModuleList(golden.layer(spec, dtype) for spec in case["layers"]).train()
    features = case["input"]["features"].clone().requires_grad_()
    out = golden.sparse(case["input"], features)
    for module in modules:
        out = module(out)
    golden.same_rows(out, case["expect"])
    golden.same_gradients(out, features, modules, case["expect"])


class UNet(nn.Module):
    """The network of the data: submanifold, strided and inverse layers with shared pairs."""

    def __init__(self):
        super().__init__()
        first = spconv.SubMConv3d(6, 16, 3, padding=1, indice_key="s0", bias=False)
        second = spconv.SubMConv3d(16, 16, 3, padding=1, indice_key="s0", bias=False)
        self.stem = spconv.SparseSequential(first, nn.BatchNorm1d(16), nn.ReLU(), second)
        self.down = spconv.SparseConv3d(16, 32, 3, 2, 1, indice_key="d0", bias=False)
        middle = spconv.SubMConv3d(32, 32, 3, padding=1, indice_key="s1", bias=False)
        self.mid = spconv.SparseSequential(middle, nn.BatchNorm1d(32), nn.ReLU())
        self.up = spconv.SparseInverseConv3d(32, 16, 3, indice_key="d0", bias=False)
        self.join = spconv.JoinTable()
        self.head = spconv.SubMConv3d(32, 8, 1)

    def forward(self, x):
        fine = self.stem(x)
        return self.head(self.join([self.up(self.mid(self.down(fine))), fine]))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_network(scans, dtype):
    case = golden.load(scans, "golden_net.pt")[f"unet3d_{dtype}"]
    model = UNet().to(getattr(torch, dtype))
    assert list(model.state_dict()) == list(case["state_dict"])
    model.load_state_dict(case["state_dict"])
    features = case["input"]["features"].clone().requires_grad_()
    out = model.train()(golden.sparse(case["input"], features))
    golden.same_rows(out, case["expect"])
    golden.same_gradients(out, features, model, case["expect"])


def test_dense(scans):
    case = golden.load(scans, "golden_misc.pt")["dense_3d"]
    x = golden.sparse(case["input"])
    assert torch.equal(x.dense(), case["expect"]["dense_cf"])
    assert torch.equal(spconv.ToDense()(x), case["expect"]["dense_cf"])
    assert torch.equal(x.dense(channels_first=False), case["expect"]["dense_cl"])


def test_from_dense(scans):
    case = golden.load(scans, "golden_misc.pt")["from_dense_3d"]
    x = spconv.SparseConvTensor.from_dense(case["dense"])
    for name, value in case["expect"].items():
        found = getattr(x, name)
        assert torch.equal(found, value) if torch.is_tensor(value) else found == value


def test_scatter_nd(scans):
    case = golden.load(scans, "golden_misc.pt")["scatter_nd"]
    found = scatter_nd(case["indices"], case["updates"], case["shape"])
    assert torch.equal(found, case["expect"]["out"])


@pytest.mark.parametrize("name", ["tables_jointable", "tables_addtable"])
def test_tables(scans, name):
    case = golden.load(scans, "golden_misc.pt")[name]
    x = golden.sparse(case["input"])
    with torch.no_grad():
        branches = [golden.layer(spec)(x) for spec in case["branch_specs"]]
        golden.same_rows(getattr(spconv, case["table"])()(branches), case["expect"])


@pytest.mark.parametrize(
    ("name", "add"),
    [
        ("sparse_add", functional.sparse_add),
        ("sparse_add_hash_based", functional.sparse_add_hash_based),
        ("add_table_misaligned", lambda a, b: spconv.AddTableMisaligned()([a, b])),
    ],
)
def test_sums_at_different_voxels(scans, name, add):
    case = golden.load(scans, "golden_misc.pt")[name]
    golden.same_rows(add(*map(golden.sparse, case["inputs"])), case["expect"])


@pytest.mark.parametrize("name", ["init_subm3d", "init_conv2d_k23", "init_convt3d", "init_inv3d"])
def test_initial_weights_by_seed(scans, name):
    case = golden.load(scans, "golden_proto.pt")[name]
    torch.manual_seed(case["seed"])
    layer = getattr(spconv, case["cls"])(**case["ctor"])
    assert torch.equal(layer.weight, case["expect"]["weight"])
    if case["expect"]["bias"] is None:
        assert layer.bias is None
    else:
        assert torch.equal(layer.bias, case["expect"]["bias"])


@pytest.mark.parametrize("name", ["sd_subm3d", "sd_conv3d_nobias", "sd_conv3d_rvc", "sd_maxpool"])
def test_names_in_checkpoints(scans, name):
    case = golden.load(scans, "golden_proto.pt")[name]
    state = getattr(spconv, case["cls"])(**case["ctor"]).state_dict()
    assert sorted(state) == case["expect"]["keys"]
    assert {key: list(state[key].shape) for key in case["expect"]["shapes"]} == (
        case["expect"]["shapes"]
    )


@pytest.mark.parametrize("name", ["repr_subm3d", "repr_conv3d_full", "repr_maxpool"])
def test_how_layers_print(scans, name):
    case = golden.load(scans, "golden_proto.pt")[name]
    layer = getattr(spconv, case["cls"])(**case["ctor"])
    assert layer.extra_repr() == case["expect"]["extra_repr"]


def test_pickles(scans):
    expected = golden.load(scans, "golden_proto.pt")["pickle_flags"]["expect"]
    assert expected == {"layer": True, "sptensor": True}
    layer = spconv.SubMConv3d(2, 3, 3)
    assert torch.equal(pickle.loads(pickle.dumps(layer)).weight, layer.weight)


def test_autocast_in_evaluation_changes_nothing(scans):
    case = golden.load(scans, "golden_proto.pt")["autocast_subm3d"]
    layer = golden.layer(case["layers"][0]).eval()
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        out = layer(golden.sparse(case["input"]))
    shape = {"out_spatial_shape": list(case["input"]["spatial_shape"])}
    golden.same_rows(out, {**case["expect"], **shape})
    assert str(out.features.dtype) == case["expect"]["out_dtype"]


@pytest.mark.parametrize("name", ["p2v_cpu_basic", "p2v_cpu_trunc", "p2v_cpu_cap"])
def test_points_to_voxels_bit_for_bit(scans, name):
    case = golden.load(scans, "golden_ext_p2v.pt")[name]
    made = utils.PointToVoxel(**case["ctor"], device=torch.device("cpu"))
    found = made.generate_voxel_with_id(case["points"])
    names = ("voxels", "indices", "num_per_voxel", "pc_voxel_id")
    for value, key in zip(found, names, strict=True):
        assert value.dtype == case["expect"][key].dtype
        assert torch.equal(value, case["expect"][key]), key


@pytest.mark.parametrize("name", ["p2v1d_basic", "p2v4d_basic"])
def test_points_to_voxels_of_a_gpu(scans, name):
    """There the order of voxels and of points is not defined, and which are dropped neither."""
    case = golden.load(scans, "golden_ext_p2v.pt")[name]
    made = utils.PointToVoxel(**case["ctor"], device=torch.device("cpu"))
    voxels, indices, numbers = made(case["points"])
    expected = case["expect"]
    order = torch.from_numpy(np.lexsort(indices.numpy().T[::-1]))
    assert torch.equal(indices[order].long(), expected["indices_canon"])
    assert torch.equal(numbers[order].long(), expected["num_per_voxel_canon"])
    if expected["check_contents"]:
        for row, stored in zip(voxels[order], expected["voxels_canon"], strict=True):
            assert torch.equal(in_order(row.double()), in_order(stored))


def in_order(rows):
    return rows[np.lexsort(rows.numpy().T[::-1])]


def test_random_data(scans):
    case = golden.load(scans, "golden_ext_misc.pt")["test_utils_gsd"]
    np.random.seed(case["seed"])  # noqa: NPY002 (spconv draws from the global generator)
    found = test_utils.generate_sparse_data(case["shape"], case["num_points"], case["num_channels"])
    assert set(found) == set(case["expect"])
    for name, value in case["expect"].items():
        assert torch.equal(torch.from_numpy(found[name]), value), name


def test_every_case_is_read(scans):
    """A case that is added to the data does not go unnoticed."""
    tested = inspect.getsource(inspect.getmodule(test_every_case_is_read))
    for file in ("ext_misc", "ext_p2v", "ext_pool", "misc", "net", "proto"):
        for name in golden.load(scans, f"golden_{file}.pt"):
            assert name in tested or name.startswith("unet3d_"), name


@pytest.mark.parametrize(
    ("group", "module"),
    [
        ("pytorch", spconv),
        ("ops", ops),
        ("functional", functional),
        ("pytorch_utils", utils),
        ("hash", hash),
    ],
)
def test_names(scans, group, module):
    assert [name for name in golden.api(scans)[group] if not hasattr(module, name)] == []


def test_constructor_arguments(scans):
    for name, expected in golden.api(scans)["ctors"].items():
        found = list(inspect.signature(getattr(spconv, name).__init__).parameters)
        assert [argument for argument in found if argument != "self"] == expected, name
