# ruff: noqa: RUF012
"""A bad program of PyTorch for every advice, and what the advice makes of it."""

import random

import torch
import torch.nn.functional as F

from check.advice_examples import Example

X = torch.tensor([3.0, -1.0, 2.0])
TWO = torch.tensor(2)
ROWS = torch.arange(6.0).reshape(2, 3)
LABELS = torch.tensor([1, 0, 2])
LARGE = torch.ones(1 << 19)


class Branch(Example):
    key, inputs = "torch VX101", (X,)

    def bad(x):
        return x.sin() if x.sum() > 0 else x.cos()

    def where(x):
        return torch.where(x.sum() > 0, x.sin(), x.cos())

    def cond(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


class Finished(Example):
    key, inputs = "torch VX101 in a loop", (X,)

    def bad(x):
        for _ in range(5):
            finished = x.abs().max() < 1
            if finished:
                break
            x = x / 2
        return x

    def where(x):
        for _ in range(5):
            finished = x.abs().max() < 1
            x = torch.where(finished, x, x / 2)
        return x


class Raises(Example):
    key, inputs = "torch VX101 raises", (X,)

    def bad(x):
        if x.isnan().any():
            raise ValueError("not a number")
        return x * 2

    def outside(x):
        return x * 2

    def asserted(x):
        torch._assert_async(~x.isnan().any())
        return x * 2


class While(Example):
    key, inputs = "torch VX102", (X,)

    def bad(x):
        while x.sum() > 1:
            x = x / 2
        return x

    def bounded(x):
        for _ in range(9):
            x = torch.where(x.sum() > 1, x / 2, x)
        return x

    def while_loop(x):
        from torch._higher_order_ops import while_loop

        return while_loop(lambda x: x.sum() > 1, lambda x: (x / 2,), (x,))[0]


class Loop(Example):
    key, inputs = "torch VX103", (X, TWO)

    def bad(x, n):
        for _ in range(int(n)):
            x = x * 2
        return x

    def bounded(x, n):
        for i in range(8):
            x = torch.where(i < n, x * 2, x)
        return x


class Slice(Example):
    key, inputs = "torch VX104", (ROWS, TWO)

    def bad(x, n):
        return x[:n].sum()

    def mask(x, n):
        return torch.where(torch.arange(len(x))[:, None] < n, x, 0).sum()


class Mask(Example):
    key, inputs = "torch VX105", (X,)

    def bad(x):
        return x[x > 0].mean()

    def mask(x):
        return torch.where(x > 0, x, 0).sum() / (x > 0).sum()


class Biased(Example):
    key = "torch VX105"

    class Model(torch.nn.Module):
        def __init__(self, late):
            super().__init__()
            torch.manual_seed(0)
            self.linear, self.late = torch.nn.Linear(3, 2), late

        def forward(self, x, mask):
            if self.late:
                return torch.where(mask[:, None], self.linear(x), 0).sum(0)
            return self.linear(x[mask]).sum(0)

    inputs = (ROWS, torch.tensor([True, False]))
    bad, after, Model = Model(False), Model(True), None


class Found(Example):
    key, inputs = "torch VX106 nonzero", (ROWS,)

    def bad(x):
        return x.flatten()[torch.nonzero(x.flatten() > 2)[:, 0]].sum()

    def mask(x):
        return torch.where(x > 2, x, 0).sum()

    def rows(x):
        x = x.flatten()
        found = torch.nonzero_static(x > 2, size=6, fill_value=0)[:, 0]
        return torch.where(torch.arange(6) < (x > 2).count_nonzero(), x[found], 0).sum()


class FoundByWhere(Found):
    def bad(x):
        return x.flatten()[torch.where(x.flatten() > 2)[0]].sum()


class FoundByArgwhere(Found):
    def bad(x):
        return x.flatten()[torch.argwhere(x.flatten() > 2)[:, 0]].sum()


class Unique(Example):
    key, inputs = "torch VX106", (torch.tensor([3, 1, 3]),)

    def bad(x):
        return torch.unique(x).sum()

    def mask(x):
        ordered = x.sort()[0]
        first = torch.cat([ordered.new_ones(1) > 0, ordered[1:] != ordered[:-1]])
        return torch.where(first, ordered, 0).sum()


class Shape(Example):
    key, inputs = "torch VX107", (X, TWO)

    def bad(x, n):
        return torch.ones(int(n)).sum() * x

    def bound(x, n):
        return torch.where(torch.arange(8) < n, torch.ones(8), 0).sum() * x

    def number(x, n):
        return torch.ones(n).sum() * x

    given = {"number": (X, 2)}


class Repeated(Example):
    key, inputs = "torch VX107 repeat_interleave", (X, torch.tensor([1, 0, 2]))

    def bad(x, counts):
        return torch.repeat_interleave(x, counts)

    def size(x, counts):
        return torch.repeat_interleave(x, counts, output_size=3)


class Counted(Example):
    key, inputs = "torch VX107 bincount", (LABELS,)

    def bad(x):
        return torch.bincount(x)

    def one_hot(x):
        return F.one_hot(x, 3).sum(0)

    def added(x):
        return torch.zeros(3, dtype=x.dtype).index_add(0, x, torch.ones_like(x))


class OneHot(Example):
    key, inputs = "torch VX107 one_hot", (LABELS,)

    def bad(x):
        return F.one_hot(x)

    def classes(x):
        return F.one_hot(x, num_classes=3)


def scaled(x, factor):
    return x * factor


def row(n):
    return torch.ones(n)


class Number(Example):
    key, inputs = "torch VX108", (X,)

    def bad(x):
        return scaled(x, float(x.sum()))

    def tensor(x):
        return scaled(x, x.sum().to(torch.float32))

    def outside(x):
        return x, x.sum()

    differs = ("outside",)


class Nodes(Example):
    key, inputs = "torch VX108", (torch.tensor([[0, 1], [1, 2]]),)

    def bad(edges):
        n = int(edges.max()) + 1
        return row(n).sum()

    def bound(edges):
        return torch.where(torch.arange(8) < edges.max() + 1, row(8), 0).sum()

    def number(edges, n):
        return row(n).sum()

    given = {"number": (torch.tensor([[0, 1], [1, 2]]), 3)}


class Host(Example):
    key, inputs = "torch VX109", (X,)

    def bad(x):
        return torch.tensor(sorted(x.tolist()))

    def same(x):
        return x.sort()[0]

    def outside(x):
        return x

    differs = ("outside",)


class Asserted(Example):
    key, inputs = "torch VX110", (X,)

    def bad(x):
        assert x.sum() > 0
        return x * 2

    outside = Raises.outside

    def asserted(x):
        torch._assert_async(x.sum() > 0)
        return x * 2


class Container(Example):
    key, inputs = "torch VX111", (X, TWO)

    def bad(x, i):
        return x * [1.0, 2.0, 3.0][i]

    def stacked(x, i):
        return x * torch.stack([x.new_tensor(v) for v in (1.0, 2.0, 3.0)])[i.reshape(1)][0]

    def chosen(x, i):
        return torch.where(i == 0, x, torch.where(i == 1, x * 2, x * 3))


class Axis(Example):
    key, inputs = "torch VX112", (ROWS, torch.tensor(1))

    def bad(x, k):
        return torch.topk(x, k)[0]

    def number(x, k):
        return torch.topk(x, k)[0]

    given = {"number": (ROWS, 1)}


class Row(Example):
    key, inputs = "torch VX112 row", (ROWS, torch.tensor(1))

    def bad(x, i):
        return x[i]

    def selected(x, i):
        return x.index_select(0, i.reshape(1))[0]


class Formatted(Example):
    key, inputs = "torch VX114", (X,)

    def bad(x):
        print(f"{x.sum():.1f}")  # noqa: T201
        return x

    def outside(x):
        return x, x.sum()

    differs = ("outside",)


class Mistake(Example):
    key, inputs = "torch VX191", (X,)

    def bad(x):
        return x @ torch.ones(4, 4)

    accepted = bad
    given = {"accepted": (torch.ones(4),)}


class Slope(torch.nn.Module):
    """A gradient in the forward pass: by autograd, which export refuses, or by hand."""

    def __init__(self, by_hand):
        super().__init__()
        torch.manual_seed(0)
        self.linear, self.by_hand = torch.nn.Linear(3, 3), by_hand

    def forward(self, x):
        if self.by_hand:
            return 2 * self.linear(x) @ self.linear.weight
        x = x.detach().requires_grad_()
        return torch.autograd.grad(self.linear(x).square().sum(), x)[0]


class Gradient(Example):
    key, inputs = "torch VX192", (X,)
    bad, revised = Slope(False), Slope(True)


class Cache:
    def __init__(self, rows):
        self.rows = rows


class Registered(Cache):
    pass


torch.utils._pytree.register_pytree_node(
    Registered,
    lambda cache: ([cache.rows], None),
    lambda rows, _: Registered(*rows),
    flatten_with_keys_fn=lambda cache: (
        [(torch.utils._pytree.GetAttrKey("rows"), cache.rows)],
        None,
    ),
)


class Output(Example):
    key, inputs = "torch VX192 output", (X,)

    def bad(x):
        return x * 2, Cache(x)

    def tensors(x):
        return x * 2, x

    def registered(x):
        return x * 2, Registered(x)

    differs = ("tensors", "registered")


class Attribute(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cache = Cache(X)

    def forward(self, x):
        return x * self.cache.rows


class Input(Example):
    key, inputs = "torch VX192 input", (X, Cache(X))

    def bad(x, cache):
        return x * cache.rows

    def tensors(x, rows):
        return x * rows

    registered, attribute = bad, Attribute()
    given = {"tensors": (X, X), "registered": (X, Registered(X)), "attribute": (X,)}


class PerValue(Example):
    key, inputs = "torch VX201 and", (X, 2)

    def bad(x, n):
        for _ in range(n):
            x = x * 2
        return x

    def tensor(x, n):
        for i in range(8):
            x = torch.where(i < n, x * 2, x)
        return x

    given = {"tensor": (X, TWO)}


class HiddenNumber(Example):
    key, inputs = "torch VX201", (X, True)

    def bad(x, keepdim):
        return x.sum(dim=0, keepdim=keepdim)

    def tensor(x, keepdim):
        return torch.where(keepdim, x.sum(0, keepdim=True), x.sum(0))

    given = {"tensor": (X, torch.tensor(True))}


class Random(Example):
    key, inputs = "torch VX205", (X,)

    def bad(x):
        return x * random.random()

    def argument(x, factor):
        return x * factor

    def drawn(x):
        return x * torch.rand(())

    given = {"argument": (X, torch.tensor(0.5))}
    differs = ("argument", "drawn")


class Kept(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(3)

    def forward(self, x):
        self.mean = 0.9 * self.mean + x
        return self.mean


class Returned(Kept):
    def forward(self, x, mean):
        return 0.9 * mean + x


class Buffer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        self.mean.copy_(0.9 * self.mean + x)
        return self.mean.clone()


class State(Example):
    key, inputs = "torch VX301", (X,)
    bad, returned, buffer = Kept(), Returned(), Buffer()
    given = {"returned": (X, torch.zeros(3))}
    differs = ("returned", "buffer")  # `bad` has been called more often


class Moved(Example):
    key, inputs = "torch VX303", (X,)

    def bad(x):
        return x.to("cpu") * torch.arange(3).cpu()

    def before(x):
        return x * torch.arange(3, device=x.device)


class Captured(Example):
    key, inputs = "torch VX304", (X,)

    class Constant(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("large", LARGE)

        def forward(self, x):
            return x * self.large.sum()

    def bad(x):
        return x * LARGE.sum()

    def argument(x, large):
        return x * large.sum()

    buffer, Constant = Constant(), None
    given = {"argument": (X, LARGE)}


class Promoted(Example):
    key, inputs = "torch VX306", (X.half(), X)

    def bad(x, y):
        return x * y

    def other(x, y):
        return x * y.to(torch.float16)

    def meant(x, y):
        return x.to(torch.float32) * y


class Unsafe(Example):
    key, inputs = "torch VX307", (X,)

    def bad(x):
        return torch.where(x > 0, torch.sqrt(x), 0.0)

    def safe(x):
        return torch.where(x > 0, torch.sqrt(torch.where(x > 0, x, 1.0)), 0.0)


class KeyCache(torch.nn.Module):
    """A cache of fixed size, as of language models: one layer writes a row in each call."""

    def __init__(self, detached=False, guarded=False):
        super().__init__()
        torch.manual_seed(0)
        self.project = torch.nn.Linear(3, 3)
        self.register_buffer("keys", torch.zeros(4, 3))
        self.detached, self.guarded = detached, guarded

    def forward(self, x, position):
        with torch.set_grad_enabled(not self.guarded):
            key = torch.tanh(self.project(x))
            self.keys.index_copy_(0, position, key.detach() if self.detached else key)
            return (self.keys * x).sum(0)


class History(Example):
    key, inputs = "torch VX311", (torch.ones(1, 3), torch.tensor([1]))
    bad, detached = KeyCache(), KeyCache(detached=True)
    without_gradients = KeyCache(guarded=True)


EXAMPLES = [c for c in Example.__subclasses__() if c.__module__ == __name__]
EXAMPLES += [FoundByWhere, FoundByArgwhere]
