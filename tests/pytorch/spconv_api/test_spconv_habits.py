"""What PyTorch's users do with modules: autocast, copies, compilers, processes, gradients."""

import copy
import ctypes
import gc
import io
import os
import pickle
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import voxax.torch.spconv as spconv
from own_process import run_python

pytestmark = pytest.mark.torch

SHAPE = [12, 12, 12]


def scene(seed=0, rows=150, channels=4, batch_size=2, dtype=torch.float32, scenes=None):
    generator = torch.Generator().manual_seed(seed)
    cells = torch.randperm(12**3, generator=generator)[:rows]
    places = torch.stack([cells // 144, cells // 12 % 12, cells % 12], 1)
    scenes = range(batch_size) if scenes is None else scenes
    number = torch.tensor(list(scenes))[torch.arange(rows) % len(scenes)]
    indices = torch.cat([number[:, None], places], 1).int()
    features = torch.randn(rows, channels, generator=generator).to(dtype)
    return spconv.SparseConvTensor(features, indices, SHAPE, batch_size)


class Net(nn.Module):
    """A U-Net of all kinds of convolution, with batch norm and a dense head."""

    def __init__(self):
        super().__init__()
        first = spconv.SubMConv3d(4, 8, 3, indice_key="a")
        self.stem = spconv.SparseSequential(first, nn.BatchNorm1d(8), nn.ReLU())
        self.down = spconv.SparseConv3d(8, 8, 3, 2, 1, indice_key="d")
        self.middle = spconv.SubMConv3d(8, 8, 3, indice_key="b", bias=False)
        self.up = spconv.SparseInverseConv3d(8, 8, 3, indice_key="d")
        self.mix = spconv.SubMConv3d(16, 8, 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        fine = self.stem(x)
        y = self.up(self.middle(self.down(fine)))
        y = y.replace_feature(torch.cat([y.features, fine.features], 1))
        return self.head(self.mix(y).features)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net()


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters()]


def same(a, b):
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_in_float64():
    x = scene(rows=12, dtype=torch.float64)
    torch.manual_seed(0)
    layers = [
        spconv.SubMConv3d(4, 3, 3),
        spconv.SparseConv3d(4, 3, 2, 2),
        spconv.SparseConvTranspose3d(4, 2, 2, 2),
    ]
    for layer in layers:
        layer.double()

        def out(features, weight, bias, layer=layer):
            parameters = {"weight": weight, "bias": bias}
            y = torch.func.functional_call(layer, parameters, (x.replace_feature(features),))
            return y.features

        leaves = (x.features, layer.weight, layer.bias)
        leaves = tuple(leaf.detach().clone().requires_grad_() for leaf in leaves)
        assert torch.autograd.gradcheck(out, leaves, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(net, dtype):
    x = scene()
    expected = net.eval()(x)
    found = net.to(dtype)(x.replace_feature(x.features.to(dtype)))
    assert found.dtype is dtype
    limit = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float64: 1e-5}[dtype]
    assert (found.float() - expected).abs().max() <= limit * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_for_training(net, dtype):
    x = scene()
    with torch.autocast("cpu", dtype):
        assert net.train().stem(x).features.dtype is dtype
        out = net(x)
        assert net.eval().stem[0](x).features.dtype is torch.float32
    assert out.dtype is dtype
    out.float().sum().backward()
    for parameter in net.parameters():
        assert parameter.grad.dtype is torch.float32
        assert parameter.grad.isfinite().all()


def test_copies(net):
    x = scene()
    expected = gradients(net, x)
    for made in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        same(gradients(made, x), expected)
    for made in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.shadow_copy()):
        same(gradients(net, made), expected)
    with torch.no_grad():  # PyTorch copies no tensor that has a history
        deep = copy.deepcopy(spconv.SubMConv3d(4, 4, 3, indice_key="a")(x))
    assert deep.indices is not x.indices
    assert deep.find_indice_pair("a") is not None


def test_checkpoints_on_disk(net):
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = Net()
    other.load_state_dict(torch.load(file, weights_only=True))
    same(gradients(other, scene()), gradients(net, scene()))


def test_gradient_checkpointing(net):
    x = scene()
    expected = gradients(net, x)

    class Rerun(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x):
            return checkpoint(self.net, x, use_reentrant=False)

    net.stem[1].momentum = 0  # its statistics would be updated twice
    same(gradients(Rerun(), x), expected)


def test_compiled_with_graph_breaks(net):
    x = scene()
    expected = gradients(net, x)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=False)
    same(gradients(compiled, x), expected)
    other = scene(1, rows=77)
    same([compiled(other)], [net(other)])


def test_no_graph_without_gradients(net):
    x = scene()
    with torch.no_grad():
        out = net.stem(x)
    assert out.features.grad_fn is None
    kept = weakref.ref(out.features)
    y = net.down(out)
    y.features.sum().backward()
    del y, out
    gc.collect()
    assert kept() is None


def test_inference_mode_and_training_behind_it(net):
    x = scene()
    with torch.inference_mode():
        made = scene()
        net.eval()(made)
        quiet = net(x)
    same([net(x)], [quiet])
    same(gradients(net, x), gradients(net, scene()))


@pytest.mark.parametrize("frozen", ["input", "weights", "stem"])
def test_what_needs_no_gradient(net, frozen):
    x = scene()
    if frozen != "input":
        x = x.replace_feature(x.features.requires_grad_())
    for name, parameter in net.named_parameters():
        if frozen == "weights" or (frozen == "stem" and name.startswith("stem")):
            parameter.requires_grad_(False)
    expected = gradients(copy.deepcopy(net).requires_grad_(), scene())
    net(x).square().sum().backward()
    for parameter, grad in zip(net.parameters(), expected, strict=True):
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, grad)
        else:
            assert parameter.grad is None
    assert (x.features.grad is None) == (frozen == "input")


def test_a_scene_is_missing(net):
    x = scene(batch_size=4, scenes=[1, 3])
    net.eval()
    out = net(x)
    assert out.shape == (150, 3)
    assert spconv.SparseGlobalMaxPool()(x).shape == (4, 4)
    assert not spconv.SparseGlobalMaxPool()(x)[[0, 2]].any()
    assert x.dense().shape == (4, 4, *SHAPE)
    alone = x.select_by_index(x.indices[:, 0] == 3)
    torch.testing.assert_close(net(alone), out[x.indices[:, 0] == 3])


def test_scenes_do_not_meet(net):
    both = scene()
    net.eval()
    out = net(both)
    for number in range(2):
        mine = both.indices[:, 0] == number
        rows = both.indices[mine].clone()
        rows[:, 0] = 0
        alone = spconv.SparseConvTensor(both.features[mine], rows, SHAPE, 1)
        torch.testing.assert_close(net(alone), out[mine])


def test_threads_change_rounding_only(net):
    """And for a number of threads no bit differs from run to run."""
    x = scene(rows=1500)
    threads = torch.get_num_threads()
    results = []
    try:
        for number in (1, 2, 2):
            torch.set_num_threads(number)
            results.append([net(scene(rows=1500)).detach(), *gradients(net, x)])
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(results[1], results[2], strict=True):
        assert torch.equal(one, other)
    for one, other in zip(results[0], results[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "GOMP_parallel"), reason="no GNU OpenMP")
def test_layers_run_on_the_threads_of_pytorch():
    layer, x = spconv.SubMConv3d(32, 32, 3), scene(rows=1500, channels=32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        torch.ones(10**6).add(1)
        threads = len(os.listdir("/proc/self/task"))
        layer(x).features.sum().backward()
        assert len(os.listdir("/proc/self/task")) <= threads + 1  # autograd's own
    finally:
        torch.set_num_threads(before)


LOADER = """
import torch
import voxax.torch.spconv as spconv
from torch.utils.data import DataLoader, Dataset

class Scenes(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, number):
        cells = torch.randperm(512, generator=torch.Generator().manual_seed(number))[: 50 + number]
        places = torch.stack([cells // 64, cells // 8 % 8, cells % 8], 1)
        indices = torch.cat([torch.zeros(len(cells), 1), places], 1).int()
        x = spconv.SparseConvTensor(torch.ones(len(cells), 2), indices, [8, 8, 8], 1)
        torch.manual_seed(0)
        with torch.no_grad():
            return spconv.SubMConv3d(2, 2, 3)(x)

if __name__ == "__main__":
    parent = [Scenes()[number].features.sum().item() for number in range(6)]
    for context in ("fork", "spawn"):
        loader = DataLoader(
            Scenes(), batch_size=None, num_workers=2, multiprocessing_context=context
        )
        found = [x.features.sum().item() for x in loader]
        assert found == parent, (context, found, parent)
    print("same")
"""


def test_data_loader_workers(tmp_path):
    """Layers run in workers too, forked ones included: no JAX program runs in them."""
    (tmp_path / "loader.py").write_text(LOADER)
    assert run_python("loader.py", cwd=tmp_path, timeout=300).strip() == "same"


DDP = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import voxax.torch.spconv as spconv

rank, file = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
torch.set_num_threads(1)
torch.manual_seed(0)
net = spconv.SparseSequential(
    spconv.SubMConv3d(2, 4, 3, indice_key="a"), nn.ReLU(), spconv.SparseConv3d(4, 3, 2, 2)
)

def scene(number):
    cells = torch.randperm(512, generator=torch.Generator().manual_seed(number))[: 60 + 20 * number]
    places = torch.stack([cells // 64, cells // 8 % 8, cells % 8], 1)
    indices = torch.cat([torch.zeros(len(cells), 1), places], 1).int()
    return spconv.SparseConvTensor(torch.ones(len(cells), 2), indices, [8, 8, 8], 1)

model = DistributedDataParallel(net)
model(scene(rank)).features.square().mean().backward()
shared = [p.grad.clone() for p in net.parameters()]
net.zero_grad()
(sum(net(scene(n)).features.square().mean() for n in range(2)) / 2).backward()
for got, p in zip(shared, net.parameters()):
    torch.testing.assert_close(got, p.grad)
print("same")
dist.destroy_process_group()
"""


def test_two_processes_share_gradients(tmp_path):
    (tmp_path / "ddp.py").write_text(DDP)
    running = [
        subprocess.Popen(
            [sys.executable, "ddp.py", str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        for rank in range(2)
    ]
    for process in running:
        out, errors = process.communicate(timeout=300)
        assert out.strip() == "same", errors[-2000:]


PURE = """
import os, warnings
os.environ["VOXAX_NATIVE"] = "off"
import torch
import voxax.torch.spconv as spconv

def scene():
    cells = torch.arange(0, 512, 3)
    places = torch.stack([cells // 64, cells // 8 % 8, cells % 8], 1)
    indices = torch.cat([torch.zeros(len(cells), 1), places], 1).int()
    return spconv.SparseConvTensor(torch.ones(len(cells), 2), indices, [8, 8, 8], 1)

torch.manual_seed(0)
net = spconv.SparseSequential(
    spconv.SubMConv3d(2, 4, 3), spconv.SparseConv3d(4, 3, 3, 2, 1), spconv.SparseMaxPool3d(2, 2)
)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    out = net(scene())
    out.features.sum().backward()
slow = [str(w.message) for w in caught if "slower" in str(w.message)]
print(len(slow), out.indices.tolist(), [round(v, 5) for v in out.features.flatten().tolist()])
"""


def test_without_native_kernels():
    """The same on PyTorch alone, which says once that it is slow."""
    texts = [PURE, PURE.replace('os.environ["VOXAX_NATIVE"] = "off"', "")]
    pure, native = (run_python("-c", text).partition(" ") for text in texts)
    assert pure[0] == "1"
    assert native[0] == "0" or native[0] == pure[0]  # the latter where there are none
    assert pure[2] == native[2]


def test_no_program_is_compiled_for_a_size(net):
    """Layers run without JAX's compiler, whatever the number of voxels."""
    code = """
import jax, torch
from jax._src import monitoring
seen = []
monitoring.register_event_duration_secs_listener(lambda name, *a, **k: seen.append(name))
import voxax.torch.spconv as spconv
layer = spconv.SubMConv3d(1, 1, 3)
for size in (10, 20, 30):
    indices = torch.zeros(size, 4, dtype=torch.int32)
    indices[:, 1] = torch.arange(size)
    x = spconv.SparseConvTensor(torch.ones(size, 1), indices, [32, 4, 4], 1)
    layer(spconv.SparseMaxPool3d(2, 2)(layer(x))).features.sum().backward()
print([name for name in seen if "compile" in name])
"""
    assert run_python("-c", code).strip() == "[]"


VIEWS = {
    "transposed": lambda x: x.t().contiguous().t(),
    "every second column": lambda x: torch.stack([x, x], 2).reshape(len(x), -1)[:, ::2],
    "later rows": lambda x: torch.cat([x[:3], x])[3:],
    "expanded": lambda x: x[:, :1].expand(-1, 4),
    "flipped": lambda x: x.flip(1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_features_that_are_views(net, view):
    x = scene()
    features = VIEWS[view](x.features)
    pool = spconv.SparseSequential(spconv.SparseMaxPool3d(2), spconv.SparseAvgPool3d(2))
    view, copied = (x.replace_feature(given) for given in (features, features.contiguous()))
    same(gradients(net, view), gradients(net, copied))
    assert torch.equal(pool(view).features, pool(copied).features)


def test_gradients_that_are_views(net):
    x = scene()
    for layer in (net.stem[0], spconv.SparseMaxPool3d(2), spconv.SparseAvgPool3d(2)):
        found = []
        for ones in (False, True):
            leaf = x.features.clone().requires_grad_()
            y = layer(x.replace_feature(leaf)).features
            (y * torch.ones_like(y) if ones else y).sum().backward()
            found.append(leaf.grad)
        same(found[:1], found[1:])


@pytest.mark.parametrize("change", ["operand", "result"])
def test_writes_between_forward_and_backward(net, change):
    """Autograd notices that an operand has changed; a result is the caller's."""
    x = scene()
    leaf = x.features.clone().requires_grad_()
    operand = leaf * 1.0
    y = net.stem[0](x.replace_feature(operand)).features
    if change == "operand":
        operand.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
    else:
        kept = y.detach().clone()
        y.relu_()
        same([net.stem[0](x.replace_feature(operand)).features], [kept])


def test_an_optimizer_that_writes_into_weights(net):
    x = scene()
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=True)
    losses = []
    for _ in range(10):
        optimizer.zero_grad(set_to_none=False)
        loss = (net(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    other = Net().eval()
    other.load_state_dict(net.state_dict())
    same([other(scene())], [net.eval()(x)])


def test_functional_transforms(net):
    """With maps that the transformation sees first, and with those of calls before it."""
    poolings = spconv.SparseMaxPool3d(2, 1), spconv.SparseAvgPool3d(2, 1), spconv.ToDense()
    net, pool = net.eval(), spconv.SparseSequential(*poolings)

    def loss(parameters, features, x):
        out = torch.func.functional_call(net, parameters, (x.replace_feature(features),))
        return out.square().sum() + pool(x.replace_feature(features)).square().sum()

    parameters = {name: p.detach() for name, p in net.named_parameters()}
    for x in (scene(), scene()):
        found = torch.func.grad(loss, argnums=(0, 1))(parameters, x.features, x)
        leaf = x.features.clone().requires_grad_()
        net.zero_grad()
        loss(dict(net.named_parameters()), leaf, x).backward()
        same(found[0].values(), [p.grad for p in net.parameters()])
        same([found[1]], [leaf.grad])


def test_compiled_under_autocast(net):
    x = scene()
    compiled = torch.compile(net, backend="aot_eager", fullgraph=False)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = compiled(x), net(x)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    "layers",
    [
        [spconv.SubMConv3d(4, 4, 3)],
        [spconv.SparseConv3d(4, 4, 3, 2, indice_key="d"), spconv.SparseInverseConv3d(4, 4, 3, "d")],
        [spconv.SparseConvTranspose3d(4, 4, 2, 2), spconv.SparseMaxPool3d(2)],
        [spconv.SparseAvgPool3d(2), spconv.SubMConv3d(4, 4, 3)],
    ],
)
def test_voxels_and_maps_go_with_the_last_tensor(layers):
    """At once: what waits for Python's collector adds up over the steps of a training."""
    layers = spconv.SparseSequential(*layers)
    layers(scene()).features.sum().backward()
    gc.collect()
    gc.disable()
    try:
        x = scene()
        y = layers(x)
        y.features.sum().backward()
        kept_map = x.sites().submanifold([3] * 3, [1] * 3)
        kept = x, x.indices, x.sites(), kept_map, y.indices, y.sites()
        kept = [weakref.ref(value) for value in kept]
        del x, y, kept_map
        assert [ref() for ref in kept] == [None] * 6
    finally:
        gc.enable()
