# ruff: noqa: RUF012
"""Every advice for JAX is followed: the program that it makes of a bad one compiles."""

import ast
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import voxax as vx
from check.advice_examples import Example, followed, given_by
from voxax import check
from voxax.check import classify
from voxax.check.advice import ADVICE

pytestmark = [pytest.mark.lax_promotion, pytest.mark.filterwarnings("ignore:Explicitly requested")]

X = np.array([3.0, -1.0, 2.0], np.float32)
HALF = np.float16(X)
TWO = np.int32(2)
LAYERS = {"layer_0": X, "layer_1": X * 2}
LARGE = np.ones(1 << 19, np.float32)


class Branch(Example):
    key, inputs = "VX101", (X,)

    def bad(x):
        return x if x.sum() > 0 else -x

    def where(x):
        return jnp.where(x.sum() > 0, x, -x)

    def cond(x):
        return jax.lax.cond(x.sum() > 0, lambda: x, lambda: -x)


class Break(Example):
    key, inputs = "VX101 in a loop", (X,)

    def bad(x):
        for _ in range(5):
            if jnp.abs(x).max() < 1:
                break
            x = x / 2
        return x

    def where(x):
        for _ in range(5):
            x = jnp.where(jnp.abs(x).max() < 1, x, x / 2)
        return x

    def while_loop(x):
        unfinished = lambda s: (s[0] < 5) & (jnp.abs(s[1]).max() >= 1)  # noqa: E731
        return jax.lax.while_loop(unfinished, lambda s: (s[0] + 1, s[1] / 2), (0, x))[1]


class Continue(Example):
    key, inputs = "VX101 in a loop", (X,)

    def bad(x):
        for factor in (0.5, 2.0):
            if x.sum() > 3:
                continue
            x = x * factor
        return x

    def where(x):
        for factor in (0.5, 2.0):
            x = jnp.where(x.sum() > 3, x, x * factor)
        return x


class Raises(Example):
    key, inputs = "VX101 raises", (X,)

    def bad(x):
        if jnp.isnan(x).any():
            raise ValueError("not a number")
        return x * 2

    def outside(x):
        return x * 2

    def checked(x):
        def inner(x):
            checkify.check(~jnp.isnan(x).any(), "not a number")
            return x * 2

        return checkify.checkify(inner)(x)[1]


class While(Example):
    key, inputs = "VX102", (X,)

    def bad(x):
        while x.sum() > 1:
            x = x / 2
        return x

    def while_loop(x):
        return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)

    def bounded(x):
        return jax.lax.fori_loop(0, 9, lambda _, x: jnp.where(x.sum() > 1, x / 2, x), x)


class Loop(Example):
    key, inputs = "VX103", (X, TWO)

    def bad(x, n):
        for _ in range(n):
            x = x * 2
        return x

    def fori_loop(x, n):
        return jax.lax.fori_loop(0, n, lambda _, x: x * 2, x)

    def bounded(x, n):
        for i in range(8):
            x = jnp.where(i < n, x * 2, x)
        return x


class Slice(Example):
    key, inputs = "VX104", (X, TWO)

    def bad(x, n):
        return x[:n].sum()

    def mask(x, n):
        return jnp.where(jnp.arange(len(x)) < n, x, 0).sum()


class Window(Example):
    key, inputs = "VX104", (X, TWO)

    def bad(x, n):
        return x[n - 2 : n].sum()

    def window(x, n):
        return jax.lax.dynamic_slice_in_dim(x, n - 2, 2).sum()


class FromTheEnd(Example):
    key, inputs = "VX104", (X, -TWO)

    def bad(x, n):
        return x[:n].sum()

    def mask(x, n):
        return jnp.where(jnp.arange(len(x)) < n + len(x), x, 0).sum()


class Mask(Example):
    key, inputs = "VX105", (X,)

    def bad(x):
        return x[x > 0].sum()

    def where(x):
        return jnp.where(x > 0, x, 0).sum()

    def reduction(x):
        return x.sum(where=x > 0)

    def rows(x):
        found = jnp.nonzero(x > 0, size=3, fill_value=0)[0]
        return jnp.where(jnp.arange(3) < (x > 0).sum(), x[found], 0).sum()


class MaskBeforeALayer(Example):
    key, inputs = "VX105", (X,)

    def bad(x):
        return (x[x > 0] * 2 + 1).sum()

    def after(x):
        return jnp.where(x > 0, x * 2 + 1, 0).sum()


class Trimmed(Example):
    key, inputs = "VX106", (X,)

    def bad(x):
        return jnp.trim_zeros(x).sum()

    def mask(x):
        return jnp.where(x != 0, x, 0).sum()


class Repeated(Example):
    key, inputs = "VX106 with an argument", (X, np.array([1, 0, 2]))

    def bad(x, counts):
        return jnp.repeat(x, counts)

    def length(x, counts):
        return jnp.repeat(x, counts, total_repeat_length=3)


class Counted(Example):
    key, inputs = "VX106 with an argument", (np.array([1, 0, 2]),)

    def bad(x):
        return jnp.bincount(x)

    def length(x):
        return jnp.bincount(x, length=3)


class Segments(Example):
    key, inputs = "VX106 with an argument", (X, np.array([0, 0, 1]))

    def bad(x, of):
        return jax.ops.segment_sum(x, of)

    def number(x, of):
        return jax.ops.segment_sum(x, of, num_segments=2)


class Unique(Example):
    key, inputs = "VX106 with a filling", (np.array([3, 1, 3]),)

    def bad(x):
        return jnp.unique(x).sum()

    def bound(x):
        return jnp.unique(x, size=3, fill_value=0).sum()


class Roots(Example):
    key, inputs = "VX106 with a flag", (np.array([1.0, -3.0, 2.0], np.float32),)

    def bad(x):
        return jnp.roots(x)

    def flag(x):
        return jnp.roots(x, strip_zeros=False)


class Divided(Example):
    key, inputs = "VX106 with a flag", (np.array([1.0, -3.0, 2.0], np.float32),)

    def bad(x):
        return jnp.polydiv(x, x[:2], trim_leading_zeros=True)[0]

    def flag(x):
        return jnp.polydiv(x, x[:2], trim_leading_zeros=False)[0]


class Deleted(Example):
    key, inputs = "VX106 with a flag", (X, np.array([1]))

    def bad(x, i):
        return jnp.delete(x, i)

    def flag(x, i):
        return jnp.delete(x, i, assume_unique_indices=True)


class Shape(Example):
    key, inputs = "VX107", (X, TWO)

    def bad(x, n):
        return jnp.ones(n).sum() * x

    def bound(x, n):
        return jnp.where(jnp.arange(8) < n, jnp.ones(8), 0).sum() * x

    @jax.jit(static_argnames=("n",))
    def static(x, n):
        return jnp.ones(n).sum() * x

    given = {"static": (X, 2)}


def scaled(x, factor):
    return x * factor


def row(n):
    return jnp.ones(n)


class Number(Example):
    key, inputs = "VX108", (X,)

    def bad(x):
        return scaled(x, float(x.sum()))

    def array(x):
        return scaled(x, x.sum().astype(jnp.float32))

    def outside(x):
        return x, x.sum()

    differs = ("outside",)


class Size(Example):
    key, inputs = "VX108", (np.array([2, 0, 1]),)

    def bad(x):
        n = int(x.max()) + 1
        return row(n).sum()

    def bound(x):
        return jnp.where(jnp.arange(8) < x.max() + 1, row(8), 0).sum()

    @jax.jit(static_argnames=("n",))
    def static(x, n):
        return row(n).sum()

    given = {"static": (np.array([2, 0, 1]), 3)}


class Host(Example):
    key, inputs = "VX109", (X,)

    def bad(x):
        return jnp.asarray(sorted(x.tolist()))

    def same(x):
        return jnp.sort(x)

    def outside(x):
        return x

    differs = ("outside",)


class Twin(Example):
    key, inputs = "VX109 twin", (X,)

    def bad(x):
        return jnp.asarray(np.sin(x))

    def twin(x):
        return jnp.sin(x)


class Asserted(Example):
    key, inputs = "VX110", (X,)

    def bad(x):
        assert x.sum() > 0
        return x * 2

    outside, checked = Raises.outside, Raises.checked


class Container(Example):
    key, inputs = "VX111", (X, TWO)

    def bad(x, i):
        return x * [1.0, 2.0, 3.0][i]

    def stacked(x, i):
        return x * jnp.asarray([1.0, 2.0, 3.0])[i]


class Functions(Example):
    key, inputs = "VX111", (X, TWO)

    def bad(x, i):
        return (jnp.sin, jnp.cos, jnp.exp)[i](x)

    def switch(x, i):
        return jax.lax.switch(i, (jnp.sin, jnp.cos, jnp.exp), x)


class Axis(Example):
    key, inputs = "VX112", (np.ones((2, 3), np.float32), np.int32(1))

    def bad(x, axis):
        return x.sum(axis=axis)

    @jax.jit(static_argnames=("axis",))
    def static(x, axis):
        return x.sum(axis=axis)

    given = {"static": (np.ones((2, 3), np.float32), 1)}


class Assigned(Example):
    key, inputs = "VX113", (X,)

    def bad(x):
        x[0] = 1
        return x

    def at(x):
        return x.at[0].set(1)

    differs = ("at",)  # arrays of JAX refuse the assignment


class Formatted(Example):
    key, inputs = "VX114", (X,)

    def bad(x):
        print(f"{x.sum():.1f}")  # noqa: T201
        return x

    def printed(x):
        jax.debug.print("{:.1f}", x.sum())
        return x

    def outside(x):
        return x, x.sum()

    differs = ("outside",)


class Key(Example):
    key, inputs = "VX115", (LAYERS, X, np.int32(1))

    def bad(params, x, i):
        return x * params[f"layer_{i}"]

    def stacked(params, x, i):
        return x * jnp.stack([params["layer_0"], params["layer_1"]])[i]

    def outside(layer, x):
        return x * layer

    given = {"outside": (LAYERS["layer_1"], X)}


class KeyOfAnotherLine(Key):
    def bad(params, x, i):
        name = f"layer_{i}"
        return x * params[name]


class Named:
    layer_1 = LAYERS["layer_1"]


class NamedByAttribute(Key):
    def bad(params, x, i):
        return x * getattr(Named, f"layer_{i}")


class Carry(Example):
    key, inputs = "VX190", (X,)

    def bad(x):
        return jax.lax.scan(lambda c, v: (c + v, v), jnp.int32(0), x)[0]

    def revised(x):
        return jax.lax.scan(lambda c, v: (c + v, v), jnp.float32(0), x)[0]

    differs = ("revised",)  # `bad` cannot be called


class Text(Example):
    key, inputs = "VX190 runs", (X,)

    def bad(x):
        return x * 2, "twice"

    def revised(x):
        return x * 2

    differs = ("revised",)


class Plain:
    __hash__ = None
    factor = 2.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    factor: float


@dataclasses.dataclass(frozen=True)
class Frozen:
    factor: float


class Unhashable(Example):
    key, inputs = "VX190 hash", (X, Plain())

    def bad(x, options):
        return x * options.factor

    def registered(x, options):
        return x * options.factor

    @jax.jit(static_argnames=("options",))
    def frozen(x, options):
        return x * options.factor

    given = {"registered": (X, Registered(2.0)), "frozen": (X, Frozen(2.0))}


class Declared(Example):
    key, inputs = "VX190 declared", (X, [0])

    @jax.jit(static_argnames=("axes",))
    def bad(x, axes):
        return x.sum(tuple(axes))

    @jax.jit(static_argnames=("axes",))
    def tuples(x, axes):
        return x.sum(axes)

    given = {"tuples": (X, (0,))}
    differs = ("tuples",)  # `bad` cannot be called


class Mistake(Example):
    key, inputs = "VX191", (X,)

    def bad(x):
        return x @ jnp.ones((4, 4))

    def accepted(x):
        return x @ jnp.ones((4, 4))

    given = {"accepted": (np.ones(4, np.float32),)}


class ByName(Example):
    key, inputs = "VX191 by name", (X,)

    def bad(x, *, scale):
        return x * scale

    def named(x, *, scale):
        return x * scale

    given = {"named": {"scale": 2.0}}


class NoEnd(Example):
    key, inputs, options = "VX191 no end", (X,), {"seconds": 0.4}

    def bad(x):
        while True:
            x = x + 1
        return x

    def ends(x):
        for _ in range(3):
            x = x + 1
        return x

    differs = ("ends",)


class PerValue(Example):
    key, inputs = "VX201", (X, 2)

    def bad(x, n):
        for _ in range(n):
            x = x * 2
        return x

    static = jax.jit(bad, static_argnames=("n",))

    def array(x, n):
        return jax.lax.fori_loop(0, n, lambda _, x: x * 2, x)


class Shapes(Example):
    key, inputs, options = "VX202", (X,), {"also": [(X[:2],)]}

    def bad(x):
        return x.sum()

    def padded(x):
        return x.sum()

    given = {"padded": (np.pad(X, (0, vx.bucket_capacity(3) - 3)),)}


class Dtypes(Example):
    key, inputs, options = "VX203", (X, 1.0), {"also": [(X, np.float32(1))]}

    def bad(x, y):
        return x * y

    converted = bad
    given = {"converted": (X, jnp.asarray(1.0, jnp.float32))}


@jax.jit
def stepped(x, y):
    return x * y


class CalledTwice(Example):
    key, inputs = "VX203 call", (X, np.float32(2))

    def bad(x, y):
        return stepped(stepped(x, y), 2.0)

    def arrays(x, y):
        return stepped(stepped(x, y), jnp.asarray(2.0, "float32"))


class State(Example):
    key, inputs = "VX203 state", (X, 0.0)

    def bad(x, total):
        total = total + x.sum()
        return x, total

    array = bad
    given = {"array": (X, jnp.asarray(0.0, "float32"))}


class Structures(Example):
    key, inputs, options = "VX204", ({"a": X},), {"also": [({"b": X},)]}

    def bad(x):
        return jax.tree.leaves(x)[0]

    same = bad


class Random(Example):
    key, inputs = "VX205", (X,)

    def bad(x):
        return x * np.random.rand()  # noqa: NPY002

    def argument(x, factor):
        return x * factor

    def drawn(x, key):
        return x * jax.random.uniform(key)

    given = {"argument": (X, np.float32(0.5)), "drawn": (X, jax.random.key(0))}
    differs = ("argument", "drawn")


SEEN = []


class Leaked(Example):
    key, inputs = "VX301", (X,)

    def bad(x):
        SEEN.append(x * 2)
        return x

    def returned(x):
        return x, x * 2

    differs = ("returned",)


class Callback(Example):
    key, inputs = "VX302", (X,)

    def bad(x):
        return jax.pure_callback(lambda v: v * 2, jax.ShapeDtypeStruct((3,), jnp.float32), x)

    def computed(x):
        return x * 2

    def outside(x):
        return x

    differs = ("outside",)


class Moved(Example):
    key, inputs = "VX303", (X,)

    def bad(x):
        return jax.device_put(x, jax.devices()[0]) * 2

    def before(x):
        return x * 2


class Captured(Example):
    key, inputs = "VX304", (np.float32(2),)

    def bad(x):
        return (LARGE * x).sum()

    def argument(x, large):
        return (large * x).sum()

    given = {"argument": (np.float32(2), LARGE)}


class Cut(Example):
    key, inputs = "VX305", (X,)

    def bad(x):
        return x.astype(jnp.float64)

    def narrow(x):
        return x.astype(jnp.float32)


class Promoted(Example):
    key, inputs = "VX306", (HALF, X)

    def bad(x, y):
        return x * y

    def other(x, y):
        return x * y.astype("float16")

    def meant(x, y):
        return x.astype("float32") * y


class Unsafe(Example):
    key, inputs = "VX307", (X,)

    def bad(x):
        return jnp.where(x > 0, jnp.sqrt(x), 0.0)

    def safe(x):
        return jnp.where(x > 0, jnp.sqrt(jnp.where(x > 0, x, 1.0)), 0.0)


class Printed(Example):
    key, inputs = "VX308", (X,)

    def bad(x):
        jax.debug.print("{}", x.sum())
        return x

    def removed(x):
        return x


EXAMPLES = [c for c in Example.__subclasses__() if c.__module__ == __name__]
EXAMPLES += [KeyOfAnotherLine, NamedByAttribute]
# Their pages follow the advice, which needs voxels: `test_pages` runs them.
ON_PAGES = ("VX309", "VX310")


def as_array(value):
    return jnp.asarray(value) if hasattr(value, "dtype") else value


def assert_close(one, two):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(np.sort(np.ravel(a)), np.sort(np.ravel(b)), rtol=2e-3)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.__name__)
def test_advice_compiles(example):
    bad = vars(example)["bad"]
    report = vx.check_static(bad, *example.inputs, **example.options)
    assert given_by(report, example.key), str(report)
    codes = {f.code for f in given_by(report, example.key)}
    ways = followed(example)
    assert ways
    for name, function in ways.items():
        given = example.given.get(name, example.inputs)
        named = given if isinstance(given, dict) else {}
        inputs = example.inputs if named else given
        again = vx.check_static(function, *inputs, kwargs=named)
        left = codes & {f.code for f in again.findings}
        assert not left, f"{name}: {again}"
        assert again.verdict in ("static", "static per value"), f"{name}: {again}"
        made = (function if hasattr(function, "trace") else jax.jit(function))(*inputs, **named)
        if name not in example.differs and example.key not in ("VX191", "VX191 by name", "VX202"):
            assert_close(made, bad(*jax.tree.map(as_array, example.inputs)))


def test_every_advice_for_jax_has_an_example():
    asked = {key for key in ADVICE if not key.startswith("torch ")}
    assert asked == {e.key for e in EXAMPLES} | set(ON_PAGES)
    flags = {f.split()[1].strip("`") for f in map(_fix, EXAMPLES) if "assume" in f or "zeros" in f}
    assert set(classify._FLAGS) <= flags


def _fix(example):
    if example.key != "VX106 with a flag":
        return "- - -"
    report = vx.check_static(vars(example)["bad"], *example.inputs)
    return given_by(report, example.key)[0].fix


def test_no_advice_stands_elsewhere():
    """A text that is written beside a finding would have no example."""
    for file in Path(check.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("Finding", "Finding.at", "dataclasses.replace"):
                given = [k.value for k in node.keywords if k.arg == "fix"]
                given += node.args[3:4] if called == "Finding.at" else []
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("fix", "words"):
                given = [node.value]
            else:
                continue
            texts = [n for value in given for n in _plain_texts(value)]
            assert not texts, f"{file.name}:{node.lineno} {texts}"


def _plain_texts(node):
    """Texts of a value that are no key of advice."""
    if isinstance(node, ast.Subscript):
        return []
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) and node.value else []
    return [t for child in ast.iter_child_nodes(node) for t in _plain_texts(child)]
