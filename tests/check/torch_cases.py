"""Programs of PyTorch, each with its verdict, and ``# expect: CODE`` on each line with a fault."""

import math
import random

import numpy as np
import torch
import torch.nn.functional as F
from torch._higher_order_ops import while_loop
from torch.nn.utils.rnn import pack_padded_sequence

from check.corpus import case

ROWS = torch.arange(12.0).reshape(3, 4) - 5


class Layered(torch.nn.Module):
    """A module with one layer."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)


@case("not static", ROWS)
def and_or_not_torch(x):
    """Each operand is asked."""
    if x[0, 0] < 0 and not x.sum() > 100:  # expect: VX101, VX101
        x = x * 2
    return x


@case("not static", torch.arange(4.0) + 1)
class AskedInABranch(torch.nn.Module):
    """A function that torch.cond traces reads a value, on the side that is not taken."""

    def forward(self, x):
        def scaled(x):
            return x / float(x.max())  # expect: VX108

        return torch.cond(x.sum() > 0, lambda x: x + 1, scaled, (x,))


@case("not static", ROWS)
def asserted_value(x):
    """An assertion about values."""
    assert torch.isfinite(x).all()  # expect: VX110
    return x * 2


@case("bounded dynamic", ROWS)
class BooleanMask(Layered):
    """Rows that a mask selects."""

    def forward(self, x):
        keep = x.sum(dim=1) > 0
        return self.linear(x[keep])  # expect: VX105


@case("not static", torch.arange(4.0))
def branch_on_rows_found(x):
    """Branch on the number of rows that are found."""
    idx = x.nonzero()  # expect: VX106
    if idx.numel() == 0:  # expect: VX101
        return x.sum()
    return x[idx[:, 0]].sum()


@case("not static", torch.ones(4, 3), torch.tensor([True, False, True, True]))
def branch_on_rows_left(x, keep):
    """Branch on the number of rows that are left."""
    y = x[keep] * 2  # expect: VX105
    if y.shape[0] > 2:  # expect: VX101
        y = y[:2]
    return y.sum() / y.size(1)


@case("not static", ROWS, 0.5)
class BranchScalar(Layered):
    """Model (a) with a Python threshold: the branch still depends on the tensor."""

    def forward(self, x, threshold):
        output = self.linear(x)
        if torch.sum(output) > threshold:  # expect: VX101
            return torch.relu(output)
        else:
            return torch.sigmoid(output)


@case("not static", ROWS)
class BranchTensor(Layered):
    """Model (a): a branch on the sum of a layer's output."""

    def forward(self, x):
        output = self.linear(x)
        if torch.sum(output) > 0:  # expect: VX101
            return torch.relu(output)
        else:
            return torch.sigmoid(output)


TABLE = torch.zeros(600, 600)


@case("static", torch.ones(2, 600))
def captured(x):
    """A large tensor that is neither parameter nor buffer."""
    return x @ TABLE  # expect: VX304


@case("not static", ROWS)
def choice_of_two(x):
    """A conditional expression on a tensor."""
    return x if x.mean() > 0 else -x  # expect: VX101


@case("not static", torch.tensor([1, 2, 1]), torch.tensor([2, 0, 1]))
class CountsFromValues(torch.nn.Module):
    """Values say how many results there are, and no shape bounds it."""

    def forward(self, labels, counts):
        histogram = torch.bincount(labels, minlength=2)  # expect: VX107
        spread = torch.repeat_interleave(labels, counts)  # expect: VX107
        classes = F.one_hot(labels)  # expect: VX107
        known = torch.repeat_interleave(labels, counts, output_size=3)
        return histogram, spread, classes.sum(0), known


@case("static", ROWS)
class CountsItsCalls(torch.nn.Module):
    """A counter of Python decides how strong the noise is."""

    def __init__(self):
        super().__init__()
        self.step = 0

    def forward(self, x):
        self.step += 1
        return x * (0.5**self.step)  # expect: VX205


@case("static", ROWS)
def drawn_by_python(x):
    """A random number of Python is frozen into the program."""
    return x * random.random()  # expect: VX205


@case("not static", torch.randn(3, 4))
class EarlyExit(torch.nn.Module):
    """The loop over layers ends when a value says so."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block(x))
            if (x.abs() > 0.9).any():  # expect: VX101
                break
        return x


@case("not static", torch.ones(3), torch.ones(3))
def equal_tensors(x, y):
    """torch.equal gives Python a bool."""
    if torch.equal(x, y):  # expect: VX101
        return x
    return x - y


@case("bounded dynamic", torch.randn(6, 4))
class Experts(torch.nn.Module):
    """Each expert gets the rows that chose it."""

    def __init__(self):
        super().__init__()
        self.experts = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.router = torch.nn.Linear(4, 2)

    def forward(self, x):
        choice = self.router(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            (rows,) = torch.where(choice == i)  # expect: VX106
            out = out.index_add(0, rows, expert(x[rows]))
        return out


@case("static", torch.randn(2, 5, 8))
class FineAttention(torch.nn.Module):
    """Attention with a causal mask."""

    def __init__(self):
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = torch.nn.LayerNorm(8)

    def forward(self, x):
        length = x.shape[1]
        mask = torch.ones(length, length, device=x.device, dtype=torch.bool).triu(1)
        y, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        return self.norm(x + y)


@case("static", ROWS)
class FineAutocast(torch.nn.Module):
    """Mixed precision by autocast: it decides the dtypes."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(4, 4)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x + self.mix(x)


@case("static", ROWS, torch.tensor([2, 0, 1]))
def fine_bounded(x, counts):
    """Sizes that depend on data, with a bound."""
    rows = torch.nonzero_static(x, size=12)
    repeated = counts.repeat_interleave(counts, output_size=3)
    kept = torch.where((torch.arange(3) < counts[0])[:, None], x, 0)
    return rows, repeated, kept


@case("static", ROWS)
class FineCaught(torch.nn.Module):
    """A local list, and state in buffers."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        steps = []
        for _ in range(3):
            x = torch.tanh(x)
            steps.append(x)
        self.mean.mul_(0.9).add_(x.detach().mean(), alpha=0.1)
        return torch.stack(steps) - self.mean


@case("static", ROWS, torch.tensor([1, 0, 2]))
class FineCheckedArguments(torch.nn.Module):
    """Functions that check their arguments where these have values, and do not read them else."""

    def forward(self, x, labels):
        chosen = F.one_hot(labels, num_classes=4).to(x.dtype)
        loss = F.cross_entropy(x, labels.clamp(0, 3))
        return chosen * x, loss, F.embedding(labels, x)


@case("static", torch.arange(4.0), torch.tensor([True, True, False, True]))
class FineCompiling(torch.nn.Module):
    """Values are read only where the module is not being compiled."""

    def forward(self, x, mask):
        if not torch.compiler.is_compiling() and bool(mask.all()):
            mask = None
        if not torch._dynamo.is_compiling():
            assert x.abs().max() < 100
        if mask is not None:
            x = torch.where(mask, x, 0)
        return x.cumsum(0)


@case("static", ROWS)
class FineConfiguration(torch.nn.Module):
    """Branches on configuration and on the training flag."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))
        self.mode, self.depth = "relu", 3

    def forward(self, x, mask=None):
        for layer in self.layers:
            x = layer(x)
        if self.training:
            x = torch.nn.functional.dropout(x, 0.5)
        if mask is not None:
            x = x * mask
        if self.mode == "relu" and self.depth > 2:
            x = torch.relu(x)
        return x[:, : self.depth]


@case("static", ROWS, torch.ones(3, 1, dtype=torch.bool))
def fine_device(x, mask):
    """Tensors made on the device of another."""
    positions = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
    mask = mask.to(x.device).to(x.dtype)
    return (x + positions) * mask.to(dtype=x.dtype)


@case("static", ROWS)
class FineHigherOrder(torch.nn.Module):
    """Operators of PyTorch that take functions: both sides and the body are in the program."""

    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        x = torch.cond(x.mean() > 0, lambda x: self.up(x).relu(), lambda x: self.down(x), (x,))

        def unfinished(turn, x):
            return (x.norm() > 1e-3) & (turn < 5)

        def halved(turn, x):
            return turn + 1, x * 0.5

        return while_loop(unfinished, halved, (torch.tensor(0), x.detach()))[1]


@case("static", ROWS, torch.tensor([2, 0]), torch.tensor(1))
def fine_indices(x, rows, one):
    """Rows by integer tensors have the indices' shape."""
    best = x.argmax(dim=1)
    picked = x.gather(1, best[:, None])
    return (
        x[rows] + picked[0],
        x.index_select(0, one[None])[0],
        torch.topk(x, 2).values,
        x.scatter(1, best[:, None], 0.0),
    )


@case("static", torch.randn(2, 3, 8, 8))
class FineLayers(torch.nn.Sequential):
    """Layers of the library, in training."""

    def __init__(self):
        super().__init__(
            torch.nn.Conv2d(3, 8, 3, padding=1),
            torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(),
            torch.nn.MaxPool2d(2),
            torch.nn.Dropout(0.1),
            torch.nn.Flatten(),
            torch.nn.Linear(8 * 16, 5),
        )


@case("static", torch.arange(24.0).reshape(2, 3, 4) - 5)
class FineLazy(torch.nn.Sequential):
    """Parameters whose shapes the first call decides."""

    def __init__(self):
        super().__init__(
            torch.nn.LazyConv1d(3, 2),
            torch.nn.LazyBatchNorm1d(),
            torch.nn.Flatten(),
            torch.nn.LazyLinear(2),
        )


@case("static", torch.arange(4.0), torch.tensor([True, False, True, True]))
def fine_masked_assignment(x, mask):
    """Assigning through a mask keeps the shape."""
    y = x.clone()
    y[mask] = 0.0
    y[y > 2] = -1.0
    return y


@case("static", torch.arange(3.0), torch.ones(3))
def fine_maximum(x, y):
    """Python's max and min of tensors, which torch.export replaces by operators."""
    return max(x.sum(), y.sum()) + min(x[0], 1.0) * max(x.shape[0], 2)


@case("static", ROWS, 0.5, 3.0)
def fine_numbers(x, scale, shift):
    """Python numbers that are only computed with."""
    y = x * scale + shift
    y = torch.clamp(y, min=-scale)
    return torch.add(y, x, alpha=scale) ** 2 - torch.full((4,), shift)


@case("static", torch.arange(4.0))
def fine_questions(x):
    """Questions about types, layouts and modes."""
    if isinstance(x, torch.Tensor) and torch.is_tensor(x) and x.is_floating_point():
        x = x.float()
    if x.requires_grad:
        x = x.detach()
    if not torch.is_grad_enabled():
        x = x + 1
    if x.is_contiguous() and x.numel():
        x = x.view(-1)
    for s in x.shape:
        x = x + s
    return x.to(torch.float32).type_as(x)


@case("static", ROWS)
class FineRandom(torch.nn.Module):
    """Random numbers of PyTorch are part of the program."""

    def __init__(self):
        super().__init__()
        self.dropout = torch.nn.Dropout(0.3)

    def forward(self, x):
        noise = torch.randn_like(x)
        return self.dropout(x) + 0.1 * noise + torch.rand(1)


@case("static", {"rows": ROWS})
def fine_rows(xs):
    """Python loops over rows and layers are unrolled: their number is a shape."""
    total = 0
    for x in xs["rows"]:
        total = total + x.sum()
    parts = [part.mean() for part in xs["rows"].unbind(0)]
    a, b = xs["rows"].split([1, 2])
    return total, torch.stack(parts), {"a": a, "b": b.t()}


@case("static", ROWS)
def fine_shapes(x):
    """Branches, loops and slices by shapes."""
    if x.shape[0] > 2 and x.dim() == 2:
        x = x[: x.size(0) // 2 + 1]
    for i in range(len(x)):
        x = x + i
    assert x.dtype == torch.float32
    while x.shape[0] > 1:
        x = x[: x.shape[0] // 2]
    return x.reshape(x.numel(), 1), x.new_zeros(x.shape)


@case("static", ROWS)
class FineStored(torch.nn.Module):
    """Tensors that a module stores in each call, and that no later call reads."""

    def __init__(self):
        super().__init__()
        self.mix = torch.nn.Linear(4, 4)
        self.pyramid = []
        self.last = {}
        self.anchors = [torch.arange(4.0), torch.ones(4)]

    def forward(self, x):
        self.pyramid = [x]
        for _ in range(2):
            self.pyramid.append(self.mix(self.pyramid[-1]))
        self.last["mean"] = x.mean()
        self.anchors = [anchor.to(x.dtype) for anchor in self.anchors]
        return sum(self.pyramid) - self.last["mean"] + self.anchors[0]


@case("static", ROWS, torch.ones(3, 4, dtype=torch.bool))
def fine_where(x, keep):
    """torch.where and masks that keep the shape."""
    y = torch.where(x.sum() > 0, torch.relu(x), torch.sigmoid(x))
    y = y.masked_fill(~keep, 0.0)
    y[y > 3] = 3.0
    return y.sum() / keep.sum().clamp(min=1)


@case("static", torch.arange(6.0).reshape(3, 2), torch.ones(3, 2, dtype=torch.bool))
def fine_where_safe(x, mask):
    """Operands made safe before where, and by clamping."""
    safe = torch.where(x > 0, x, torch.ones_like(x))
    y = torch.where(x > 0, torch.log(safe), torch.zeros_like(x))
    n = x.norm(dim=-1, keepdim=True).clamp(min=1e-6)
    z = torch.where(mask, x / n, 0.0)
    w = torch.where(x > 0, torch.sqrt(x.abs() + 1e-6), x)
    d = torch.softmax(x.masked_fill(~mask, -1e9) / math.sqrt(x.shape[-1]), -1)
    return y, z, w, d, torch.where(mask, x / mask.sum().clamp(min=1), 0)


@case("static per value", ROWS, True, static=("residual",))
def flag(x, residual):
    """A flag of Python: two programs."""
    y = x * 2
    if residual:  # expect: VX201
        y = y + x
    return y


@case("static", ROWS)
class Grows(torch.nn.Module):
    """A list that every call makes longer."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x.mean())  # expect: VX301
        return x * 2


@case("not static", ROWS)
def handed_to_the_host(x):
    """NumPy, lists and plain numbers."""
    host = x.detach().numpy()  # expect: VX109
    values = x.tolist()  # expect: VX109
    other = np.asarray(x)  # expect: VX109
    return torch.from_numpy(host + other) * len(values)


@case("not static", torch.randn(3, 4), torch.tensor(1))
class HeadByValue(torch.nn.Module):
    """A tensor names the layer."""

    def __init__(self):
        super().__init__()
        self.heads = torch.nn.ModuleDict({"0": torch.nn.Linear(4, 2), "1": torch.nn.Linear(4, 2)})

    def forward(self, x, task):
        return self.heads[str(task.item())](x)  # expect: VX111


@case("static", ROWS)
def ignored_torch(x):
    """Hold findings that the source ignores."""
    if x.sum() > 0:  # voxax: ignore[VX101] runs eagerly
        return x
    return -x


@case("not static", torch.randn(3, 4))
class InAHook(torch.nn.Module):
    """A hook branches on the output."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.linear.register_forward_hook(self.after)

    def after(self, module, args, out):
        if out.mean() > 0:  # expect: VX101
            return out * 2
        return out

    def forward(self, x):
        return self.linear(x)


class Gate(torch.nn.Module):
    def forward(self, x):
        if torch.any(x < 0):  # expect: VX101
            return x.abs()
        return x


@case("not static", ROWS)
class InASubmodule(torch.nn.Sequential):
    """The fault is in a module that is used twice."""

    def __init__(self):
        super().__init__(Gate(), torch.nn.ReLU(), Gate())


@case("not static", ROWS)
class InnerGradient(torch.nn.Module):
    """Autograd in the forward pass, which torch.export refuses."""

    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh())

    def forward(self, x):
        x = x.detach().requires_grad_(True)
        energy = self.net(x).square().sum()
        (slope,) = torch.autograd.grad(energy, x)  # expect: VX192
        return energy, -slope


@case("not static", ROWS)
class ItemInABranch(Layered):
    """The number is taken first, and tested some lines later."""

    def forward(self, x):
        largest = x.max().item()  # expect: VX101
        y = self.linear(x)
        if largest > 3:
            y = y / largest
        return y


@case("not static", ROWS, torch.tensor(1))
class LayerByValue(torch.nn.Module):
    """Select a layer by a value."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(3))

    def forward(self, x, which):
        return self.layers[which](x)  # expect: VX111


@case("static", torch.randn(3, 4))
class LayersDropped(torch.nn.Module):
    """Python draws which layers run."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(8)])
        # Two runs drop equally many, but others. Unseeded they drop the same in 1 of 256 cases.
        random.seed(6)

    def forward(self, x):
        for layer in self.layers:
            if self.training and random.random() < 0.5:
                continue
            x = layer(x)  # expect: VX205
        return x


@case("not static", torch.arange(4.0))
def loop_over_found(x):
    """A loop over as many rows as are found."""
    rows = torch.nonzero(x > 1)  # expect: VX106
    total = x.sum()
    for row in rows:  # expect: VX103
        total = total + x[row[0]]  # expect: VX112
    return total


@case("static per value", torch.arange(4.0), 3, static=("reps",))
class LoopScalar(torch.nn.Module):
    """Model (c): as many turns as a Python number says."""

    def forward(self, x, reps):
        res = x
        for _ in range(reps):  # expect: VX201
            res = res + x
        return res


@case("not static", torch.arange(4.0), torch.tensor(3))
class LoopTensor(torch.nn.Module):
    """Model (c): as many turns as a tensor says."""

    def forward(self, x, reps):
        res = x
        for _ in range(reps):  # expect: VX103
            res = res + x
        return res


@case("not static", ROWS, torch.tensor(2))
class ManyAtOnce(Layered):
    """All faults in one call, on both sides of a branch."""

    def forward(self, x, n):
        y = self.linear(x)
        if y.sum() > 0:  # expect: VX101
            rows = y[y > 0]  # expect: VX105
            total = rows.sum()
        else:
            count = int(y.argmax())  # expect: VX104
            total = y[:count].sum()
        where = torch.nonzero(x)  # expect: VX106
        grid = torch.ones(int(n))  # expect: VX107
        return total, where, grid, x.tolist()  # expect: VX109


@case("bounded dynamic", ROWS)
def masked_select(x):
    """The entries that a mask selects."""
    return torch.masked_select(x, x > 0).mean()  # expect: VX105


@case("not static", -torch.arange(12.0).reshape(3, 4))
class NormByValue(torch.nn.Module):
    """Run a normalization, which writes to its buffers, depending on a value."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() < 0:  # expect: VX101
            x = self.norm(x)
        return self.linear(x)


def repeated(x, times):
    if times > 2:  # expect: VX201
        x = x * 2
    return x


@case("static per value", torch.arange(4.0), 3, static=("count",))
def number_in_a_helper(x, count):
    """The number decides in another function."""
    return repeated(x, count + 1)


@case("not static", ROWS)
def number_in_arithmetic(x):
    """A number of Python, only computed with."""
    scale = float(x.abs().max())  # expect: VX108
    return x * math.exp(scale)


@torch.library.custom_op("voxax_cases::survivors", mutates_args=())
def survivors(scores: torch.Tensor, least: float) -> torch.Tensor:
    return torch.nonzero(scores > least)[:, 0]


@survivors.register_fake
def _(scores, least):
    return torch.empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.int64)


@torch.library.custom_op("voxax_cases::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@doubled.register_fake
def _(x):
    return torch.empty_like(x)


@case("bounded dynamic", torch.arange(4.0), torch.tensor([0.1, 0.9, 0.7, 0.2]))
class OperatorsOfOthers(torch.nn.Module):
    """The kernel of an operator for tensors without values says that a size depends on data."""

    def forward(self, x, scores):
        keep = survivors(scores, 0.5)  # expect: VX106
        return doubled(x)[keep]


@case("not static", torch.arange(12.0).reshape(2, 3, 2), torch.tensor([3, 2]))
class Packed(torch.nn.Module):
    """Lengths that PyTorch reads to pack sequences."""

    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(2, 3, batch_first=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first=True)  # expect: VX109
        return self.rnn(packed)[1][0]


@case("not static", ROWS)
def printed(x):
    """Text of a value."""
    total = x.sum()
    told = f"sum {total:.2f}"  # expect: VX114
    return x - total * len(told)


@case("not static", torch.arange(4.0))
class Raises(torch.nn.Module):
    """A check raises."""

    def forward(self, x):
        if torch.isnan(x).any():  # expect: VX101
            raise ValueError("NaN")
        return x * 2


@torch.jit.script
def capped(x):
    if x.max() > 1.0:  # expect: VX101
        x = x / x.max()
    return x


@case("not static", torch.arange(4.0))
class Scripted(torch.nn.Module):
    """A branch in a scripted function is found at its own line."""

    def forward(self, x):
        return capped(x * 2)


@case("not static", torch.arange(12.0), torch.tensor(3))
def shapes_of_numbers(x, n):
    """Shapes that tensors decide."""
    grid = torch.zeros(n, 2)  # expect: VX107
    rows = torch.arange(int(n))  # expect: VX107
    return grid, rows, x.view(n.item(), -1)  # expect: VX107


@case("not static", ROWS, torch.tensor(1))
def single_index(x, i):
    """PyTorch reads a single index as a number."""
    return x[i] * 2  # expect: VX112


@case("bounded dynamic", torch.arange(4.0), torch.tensor([1, 2, 1]))
def sizes_from_values(x, labels):
    """Functions whose result's size depends on values."""
    rows = torch.nonzero(x)  # expect: VX106
    (same,) = torch.where(labels == 1)  # expect: VX106
    classes = labels.unique()  # expect: VX106
    return rows, same, classes


@case("bounded dynamic", torch.arange(12.0).reshape(4, 3))
def sizes_handed_on(x):
    """A size that depends on data is handed on, and nothing asks for it."""
    kept = x[x[:, 0] > 1]  # expect: VX105
    n, c = kept.shape
    y = kept.view(n, -1) @ torch.ones(c, 2)
    if c > 2 and kept.dim() == 2 and y.shape[1] == 2:
        y = y + torch.arange(n)[:, None] / n
    return y.mean(0), torch.nn.functional.layer_norm(kept, (c,)).sum()


@case(
    "static per value",
    torch.arange(16.0).reshape(1, 1, 4, 4),
    2.0,
    0.1,
    0.5,
    0.5,
    static=("ratio", "scale", "step"),
)
class SizesOfFactors(torch.nn.Module):
    """Numbers that functions take as values, and from which they make shapes."""

    def forward(self, x, scale, slope, ratio, step):
        x = F.leaky_relu(x, slope) * slope
        large = F.interpolate(x, scale_factor=scale, mode="nearest")  # expect: VX201
        small = F.interpolate(x, scale_factor=(ratio, 1.0), mode="nearest")  # expect: VX201
        return large, small, torch.arange(0.0, 3.0, step)  # expect: VX201


@case("static per value", torch.arange(12.0), 3, 2, static=("groups", "keep"))
def sizes_of_python(x, groups, keep):
    """Sizes that are Python numbers: a program for each."""
    x = x.reshape(groups, -1)  # expect: VX201
    grid = torch.zeros(groups)  # expect: VX201
    return x.sum(dim=1) + grid, x.narrow(1, 0, keep)  # expect: VX201


@case("static per value", torch.arange(24.0).reshape(8, 3), 0.75, static=("size_factor",))
class SliceScalar(torch.nn.Module):
    """Model (b): the slice ends where a Python number says."""

    def forward(self, output, size_factor):
        return output[: int(size_factor * 5)]  # expect: VX201


@case("bounded dynamic", torch.arange(24.0).reshape(8, 3), torch.tensor(0.75))
class SliceTensor(torch.nn.Module):
    """Model (b): the slice ends where a tensor says."""

    def forward(self, output, size_factor):
        return output[: int(size_factor * 5)]  # expect: VX104


@case("not static", torch.arange(6.0), torch.tensor([1, 3, 2]))
def split_by_lengths(x, lengths):
    """Lengths of ragged rows."""
    parts = torch.split(x, lengths.tolist())  # expect: VX109
    return torch.stack([part.sum() for part in parts])


@case("static", ROWS)
class StoredAndRead(torch.nn.Module):
    """A tensor that one call stores and the next one reads, as itself and as a view."""

    def __init__(self):
        super().__init__()
        self.before = torch.zeros(4)
        self.rows = [torch.zeros(3, 4)]

    def forward(self, x):
        change = x.mean(0) - self.before + self.rows[0][1]
        self.before = x.mean(0)  # expect: VX301
        self.rows[0] = x * 2  # expect: VX301
        return change


@case("static", ROWS)
def through_the_host(x):
    """Move a tensor to the CPU and back."""
    y = x.cpu()  # expect: VX303
    return y * 2


@case("static", torch.tensor([0.5, 0.2, 0.3]))
class UnsafeWhere(torch.nn.Module):
    """The side that is not taken has an infinite slope."""

    def forward(self, p):
        return torch.where(p > 0, p * torch.log(p), 0.0).sum()  # expect: VX307


@case("not static", torch.arange(4.0))
def while_until_small(x):
    """A loop until a norm is small."""
    while x.norm() > 1:  # expect: VX102
        x = x / 2
    return x


@case("static", ROWS)
def widened(x):
    """A float64 operand makes the result wide."""
    weight = torch.linspace(0, 1, 4, dtype=torch.float64)
    return x * weight  # expect: VX306
