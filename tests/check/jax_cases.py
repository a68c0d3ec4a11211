"""Programs of JAX, each with its verdict, and ``# expect: CODE`` on each line with a fault."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import checkify

from check.corpus import case

WEIGHT = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


@case("not static", np.ones(3, np.float32), np.ones(3, np.float32))
def and_or_not(x, y):
    """Python's own logic asks for the truth of its operands."""
    both = x.sum() > 0 and y.sum() > 0  # expect: VX101
    neither = not x.any()  # expect: VX101
    largest = max(x[0], y[0])  # expect: VX101
    return both, neither, largest


@case("not static", np.arange(4, dtype=np.float32))
def any_of_a_generator(x):
    """A generator compares, and `any` asks."""
    if any(v > 2 for v in x):  # expect: VX101
        return x * 2
    return x


@case("not static", np.ones(3, np.float32))
def asserted(x):
    """An assertion about values."""
    assert jnp.all(jnp.isfinite(x)), "not finite"  # expect: VX110
    return x * 2


@case("not static", np.zeros(3, np.float32))
def assigned_in_place(x):
    """Assignment into an array, as NumPy allows."""
    x[0] = 1.0  # expect: VX113
    x[1] += 2.0  # expect: VX113
    return x


@case("not static", np.ones((4, 3), np.float32))
class BranchOnParameter(nnx.Module):
    """A parameter decides which layers run."""

    def __init__(self):
        self.gate = nnx.Param(jnp.zeros(()))
        self.linear = nnx.Linear(3, 3, rngs=nnx.Rngs(0))

    def __call__(self, x):
        if self.gate[...] > 0:  # expect: VX101
            return self.linear(x)
        return x


@case("not static", np.arange(12, dtype=np.float32).reshape(3, 4) - 5, 0.5)
def branch_on_sum_scalar(x, threshold):
    """Model (a) with a Python threshold: the branch still depends on the tensor."""
    output = x @ WEIGHT
    if jnp.sum(output) > threshold:  # expect: VX101
        return jax.nn.relu(output)
    return jax.nn.sigmoid(output)


def linear(x):
    return x @ WEIGHT


@case("not static", np.arange(12, dtype=np.float32).reshape(3, 4) - 5)
def branch_on_sum_tensor(x):
    """Model (a): the side depends on the sum of the output."""
    output = linear(x)
    if jnp.sum(output) > 0:  # expect: VX101
        return jax.nn.relu(output)
    else:
        return jax.nn.sigmoid(output)


def cast_step(carry, row):
    return (carry + row.sum()).astype(jnp.float32), row


@case("not static", np.ones((3, 2), np.float32))
def carry_changes_type(x):
    """A scan whose carry changes its dtype: JAX's own error, at its line."""
    return jax.lax.scan(cast_step, jnp.int32(0), x)  # expect: VX190


@case("not static", np.arange(4, dtype=np.float32))
def compared_by_python(x):
    """Python's max, sorted and in compare arrays."""
    a = max(x[0], x[1])  # expect: VX101
    b = sorted([x[0], x[1]])  # expect: VX101
    c = x[0] in [1, 2]  # expect: VX101
    return a + b[0] + c


@case("not static", np.ones(3, np.float32))
def constant_branch(x):
    """Trace a constant that jnp computes inside the step."""
    if jnp.ones(3).sum() > 2:  # expect: VX101
        return x
    return -x


@case("not static", np.arange(3, dtype=np.float32), np.array([2, 0, 3], np.int32))
def counts_of_results(x, counts):
    """Values say how many results there are, and no shape bounds it; with a bound it is static."""
    spread = jnp.repeat(x, counts)  # expect: VX107
    histogram = jnp.bincount(counts)  # expect: VX107
    sums = jax.ops.segment_sum(x, counts)  # expect: VX107
    bounded = jnp.repeat(x, counts, total_repeat_length=6)
    bins = jnp.bincount(counts, length=4)
    return spread, histogram, sums, bounded, bins, jax.ops.segment_sum(x, counts, num_segments=4)


NAMES = {1: "one"}


@case("not static", np.zeros(3, np.float32), np.int32(1))
def formatted(x, key):
    """A value in a message, and as a key."""
    text = f"{x[0]:.2f}"  # expect: VX114
    name = NAMES[key]  # expect: VX115
    return x + len(text) + len(name)


@case("not static", np.ones(3, np.float32))
def handed_to_numpy(x):
    """NumPy inside of the step."""
    total = np.sum(np.asarray(x))  # expect: VX109
    listed = x.tolist()  # expect: VX109
    return total, len(listed)


def host(x):
    return np.asarray(x) * 2


@case("static", np.ones(3, np.float32))
def host_in_the_step(x):
    """Callbacks to Python and a transfer."""
    y = jax.pure_callback(host, jax.ShapeDtypeStruct(x.shape, x.dtype), x)  # expect: VX302
    return jax.device_put(y, jax.devices()[0])  # expect: VX303


@case("static", np.ones(3, np.float32))
def ignored(x):
    """Findings that the source ignores, with the reason."""
    if x.sum() > 0:  # voxax: ignore[VX101] runs eagerly, once a day
        x = -x
    # voxax: ignore[VX108, VX109] this too
    return x * float(x[0])


def branching_loss(w, x):
    y = (w * x).sum()
    return y if y > 0 else 2 * y  # expect: VX101


@case("not static", np.ones(4, np.float32), np.arange(4, dtype=np.float32))
def in_a_loss(w, x):
    """A loss that is differentiated branches."""
    return jax.grad(branching_loss)(w, x)


@case("not static", np.arange(4, dtype=np.float32))
def index_of_a_fori_loop(x):
    """The index of a compiled loop has no value."""

    def body(i, v):
        if i % 2 == 0:  # expect: VX101
            return v * 2
        return v + 1

    return jax.lax.fori_loop(0, 5, body, x)


@case("static", np.ones((3, 2), np.float32), jnp.int32(1))
def innocent_caught(x, index):
    """A fast path for known values: the error is caught, as libraries do."""
    try:
        row = x[int(index)]
    except jax.errors.ConcretizationTypeError:
        row = jnp.take(x, index, axis=0)
    return row


def checked(x):
    checkify.check(jnp.all(x < 9), "too large: {most}", most=x.max())
    return jax.lax.map(rooted, x)


def rooted(value):
    checkify.check(value >= 0, "negative: {value}", value=value)
    return jnp.sqrt(value)


@case("static", np.array([1.0, 4.0, 2.0], np.float32))
def innocent_checkify(x):
    """Errors of checkify are values of the program; their numbers differ from trace to trace."""
    error, result = checkify.checkify(checked)(x)
    again, total = checkify.checkify(jnp.log, errors=checkify.all_checks)(result.sum())
    return error, result, again, total


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int = 3
    activation: str = "relu"


def apply(config, x):
    for _ in range(config.layers):
        x = x * 2
    if config.activation == "relu":
        x = jax.nn.relu(x)
    return x[: config.layers]


# Static configuration: a frozen record, a closure, a string.
innocent_configuration = case("static", np.ones(4, np.float32))(functools.partial(apply, Config()))


@case("static per value", np.ones(3, np.float32), 2, "negative", static=("reps", "mode"))
@functools.partial(jax.jit, static_argnames=("reps", "mode"))
def innocent_declared(x, reps, mode):
    """Static arguments that are declared: known, and no finding."""
    for _ in range(reps):
        x = x + 1
    return -x if mode == "negative" else x


LAYER = {"w": np.eye(3, dtype=np.float32), "b": np.zeros(3, np.float32)}


@case("static", {"1": LAYER, "2": {"w": LAYER["w"]}}, np.ones((2, 3), np.float32))
def innocent_dictionary(parameters, x, mask=None):
    """Python containers that are walked through while tracing; None and is."""
    for name in sorted(parameters):
        layer = parameters[name]
        x = x @ layer["w"] + layer["b"] if "b" in layer else x @ layer["w"]
    if mask is not None:
        x = jnp.where(mask, x, 0)
    return {"out": x, "rows": [row * 2 for row in x]}


@case("static", np.arange(4, dtype=np.float32))
def innocent_functional(x):
    """Splitting, reducing and naming by shapes."""
    parts = jnp.split(x, 2)
    total = functools.reduce(jnp.add, parts)
    names = {f"p{i}_{p.shape[0]}": p for i, p in enumerate(parts)}
    ordered = [names[k] for k in sorted(names)]
    return total, jnp.stack(ordered), jnp.asarray([p.size for p in parts])


class Widths:
    widths = (2, 3)

    @property
    def total(self):
        return sum(self.widths)


def chunks(x, widths):
    at = 0
    for w in widths:
        yield x[at : at + w]
        at += w


@case("static", np.arange(8, dtype=np.float32))
def innocent_generator(x):
    """A generator of parts of constant width."""
    config = Widths()
    return [c.sum() for c in chunks(x, config.widths)], x[: config.total]


@case("static", np.ones((2, 5), np.float32))
def innocent_host_constants(x):
    """NumPy on constants and shapes, before anything is traced."""
    frequencies = np.exp(-np.arange(x.shape[-1]) / 4).astype(np.float32)
    if frequencies.sum() > 1:
        frequencies = frequencies / float(frequencies.max())
    order = np.argsort(frequencies)
    return x[:, order] * frequencies[order][: int(np.ceil(x.shape[-1]))]


@case("static", np.arange(4, dtype=np.float32), jnp.int32(1))
def innocent_lax(x, n):
    """The rewrites of all faults."""
    y = jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x)
    y = jax.lax.fori_loop(0, n, lambda i, a: a + x, y)
    y = jax.lax.while_loop(lambda a: a.sum() < 10, lambda a: a + 1, y)
    (rows,) = jnp.nonzero(x, size=3, fill_value=-1)
    y = jnp.where(jnp.arange(4) < n, y, 0)
    window = jax.lax.dynamic_slice_in_dim(y, n, 2)
    y = y.at[0].set(1.0).at[n].add(2.0)
    z = jax.lax.switch(n, [jnp.sin, jnp.cos, jnp.tan, jnp.exp], y)
    return y, rows, window, z, jnp.sum(x, where=x > 0), jnp.stack([x, y])[n]


@jax.custom_jvp
def root(x):
    return jnp.where(x > 0, jnp.sqrt(x), 0.0)


@root.defjvp
def _root(primals, tangents):
    (x,), (t,) = primals, tangents
    safe = jnp.where(x > 0, x, 1.0)
    return root(x), jnp.where(x > 0, t / (2 * jnp.sqrt(safe)), 0.0)


@case("static", np.ones((3, 4), np.float32), np.array([True, False, True]))
def innocent_normalization(x, mask):
    """Masked normalization and softmax: what is divided by cannot be zero or negative."""
    rows = mask[:, None]
    mean_square = jnp.mean(x**2, axis=1, keepdims=True)
    rms_norm = jnp.where(rows, x * jax.lax.rsqrt(mean_square + 1e-6), 0.0)
    magnitude = jnp.where(rows, x / jnp.sqrt(jnp.mean(jnp.abs(x)) + 1e-6), 0.0)
    weights = jnp.exp(x - jax.lax.stop_gradient(jnp.max(x, axis=1, keepdims=True)))
    softmax = jnp.where(rows, weights / jnp.sum(weights, axis=1, keepdims=True), 0.0)
    log = jnp.where(rows, jnp.log(jnp.sum(jnp.exp(x), axis=1, keepdims=True)), 0.0)
    rectified = jnp.where(rows, jnp.sqrt(jnp.max(jax.nn.relu(x), axis=1) + 1e-6)[:, None], 0.0)
    return jnp.sum(rms_norm + magnitude + softmax + log + rectified + root(x))


@case(
    "static",
    np.ones(4, np.float32),
    np.array([True, False, True, True]),
    [np.ones(4, np.float32)] * 2,
)
def innocent_optional(x, mask=None, bias=None):
    """Arguments that may be None, or lists."""
    if mask is not None:
        x = jnp.where(mask, x, 0)
    if isinstance(bias, (list, tuple)):
        x = x + sum(bias)
    return x


@case("static", np.ones(3, np.float32), 0.5, 3)
def innocent_scalar(x, rate, steps):
    """A Python number that is only computed with is traced: one program for all values."""
    return jnp.where(steps > 2, x * rate, x / (rate + 1)) + steps


def scanned_loss(weight, x):
    def step(carry, row):
        carry = jnp.tanh(carry @ weight + row)
        return carry, carry.sum()

    _, sums = jax.lax.scan(step, jnp.zeros(3), x)
    return jnp.mean(sums)


@case("static", np.eye(3, dtype=np.float32), np.ones((4, 3), np.float32))
def innocent_scan(weight, x):
    """A scan and a vmap over rows, with a gradient."""
    return jax.value_and_grad(jax.checkpoint(scanned_loss))(weight, x)


@case("static", np.ones((4, 3), np.float32))
def innocent_shapes(x):
    """Branches, loops and slices by shapes are static."""
    if x.shape[0] > 2 and x.ndim == 2:
        x = x[: x.shape[0] // 2]
    for i in range(len(x)):
        x = x + i
    assert x.dtype == jnp.float32
    while x.shape[0] > 1:
        x = x[: x.shape[0] // 2]
    return x.reshape(x.size, 1), jnp.zeros(x.shape)


@case("static", np.ones(3, np.float32), np.ones(3, np.float32))
def innocent_where(x, y):
    """Gradients of where that are safe: the operand is made safe first."""
    safe = jnp.where(x > 0, x, 1.0)
    root = jnp.where(x > 0, jnp.sqrt(safe), 0.0)
    ratio = jnp.where(y != 0, x / jnp.where(y != 0, y, 1.0), 0.0)
    log = jnp.where(x > 0, jnp.log(jnp.maximum(x, 1e-6)), 0.0)
    relu = jnp.where(x > 0, x, 0.1 * x)
    soft = jnp.where(x > 0, 1 / (1 + x**2), jnp.sqrt(1 + y * y))
    return jnp.sum(root + ratio + log + relu + soft)


@case("static per value", np.ones(3, np.float32), True, static=("training",))
@jax.jit
def jit_without_static_names(x, training):
    """A function that is compiled already, whose flag was not declared static."""
    if training:  # expect: VX201
        return jnp.maximum(x, 0)
    return x


LARGE = jnp.asarray(np.ones((1024, 512), np.float32))


@case("static", np.ones((2, 1024), np.float32))
def large_constant(x):
    """Parameters that are captured and not passed."""
    return x @ LARGE  # expect: VX304


LAYERS = [np.ones(3, np.float32), np.zeros(3, np.float32)]


TABLE = np.arange(6)


@case("not static", np.ones(3, np.float32), np.int32(1))
def layer_by_index(x, which):
    """A Python list of parameters and a NumPy table, looked up with a tensor."""
    chosen = x + LAYERS[which]  # expect: VX111
    return chosen, TABLE[which]  # expect: VX111


SEEN = []


@case("static", np.ones(3, np.float32))
def leaked(x):
    """A value of the trace is kept in a global."""
    SEEN.append(x * 2)  # expect: VX301
    return x


@case("static per value", np.arange(4, dtype=np.float32), 3, static=("reps",))
def loop_count_scalar(x, reps):
    """Model (c): as many turns as a Python number says."""
    res = x
    for _ in range(reps):  # expect: VX201
        res = res + x
    return res


@case("not static", np.arange(4, dtype=np.float32), jnp.int32(3))
def loop_count_tensor(x, reps):
    """Model (c): as many turns as a tensor says."""
    res = x
    for _ in range(reps):  # expect: VX103
        res = res + x
    return res


@case("not static", np.array([1.0, 2.0, 3.0], np.float32), jnp.int32(2))
def many_faults(x, n):
    """Everything at once: all are found in one pass, in both sides of a branch."""
    if x[0] > 0:  # expect: VX101
        rows = x[x > 1]  # expect: VX105
        total = rows.sum()
    else:
        count = int(x.max())  # expect: VX104
        total = x[:count].sum()
    (where,) = jnp.nonzero(x)  # expect: VX106
    grid = jnp.zeros((n, 2))  # expect: VX107
    host = np.asarray(x)  # expect: VX109
    return total, where, grid, host


@case("bounded dynamic", np.array([0.2, 0.7, 0.9], np.float32), np.ones((3, 4), np.float32))
def masked_rows(scores, boxes):
    """Rows chosen by a mask, and a mean over them."""
    keep = scores > 0.5
    chosen = boxes[keep]  # expect: VX105
    return chosen, jnp.mean(scores[keep])  # expect: VX105


@case("not static", np.arange(4, dtype=np.float32), np.int32(0))
def matched(x, mode):
    """A `match` compares the value of an array."""
    match int(mode):  # expect: VX108
        case 0:
            return x
        case _:
            return -x


@case("static", np.ones(3, np.float32), np.ones(3, np.float32))
def nan_where(x, y):
    """where protects the value, and not the gradient."""
    root = jnp.where(x > 0, jnp.sqrt(x), 0.0)  # expect: VX307
    ratio = jnp.where(y != 0, x / y, 0.0)  # expect: VX307
    return jnp.sum(root + ratio)


@case("static", np.ones(3, np.float32), np.array([True, False, True]))
def nan_where_of_sums(x, mask):
    """Sums that can be zero: lengths, and counts that are divided by."""
    length = jnp.sqrt(jnp.sum(x * x))
    unit = jnp.where(length > 0, x / length, 0.0)  # expect: VX307
    total, count = jnp.sum(jnp.where(mask, x, 0.0)), jnp.sum(mask)
    mean = jnp.where(count > 0, total / count, 0.0)  # expect: VX307
    return jnp.sum(unit) + mean


@jax.jit
def branching_jit(x):
    if x.sum() > 0:  # expect: VX101
        return x
    return -x


def branching_step(carry, row):
    carry = carry + (row.sum() if row[0] > 0 else 0.0)  # expect: VX101
    return carry, row


@case("not static", np.ones((3, 2), np.float32))
def nested_jit(x):
    """A fault in a function that is compiled on its own, and one in a scan."""
    total, rows = jax.lax.scan(branching_step, 0.0, branching_jit(x))
    return total, rows


@case("static", np.ones(3, np.float32))
def not_repeatable(x):
    """A random number of NumPy is frozen into the program."""
    return x + np.random.default_rng().normal(size=3).astype(np.float32)  # expect: VX205


@case("not static", np.array([1.0, 4.0, 2.0], np.float32))
def python_numbers(x):
    """Numbers taken out of arrays."""
    scale = float(x[0])  # expect: VX108
    root = math.sqrt(x[1])  # expect: VX108
    last = x[2].item()  # expect: VX108
    return x * scale * root * last


@case("not static", np.array([1.0, 2.0, 2.0, 0.0], np.float32), jnp.int32(2))
def shapes_from_values(x, n):
    """Shapes computed from a tensor."""
    steps = jnp.arange(n)  # expect: VX107
    padded = jnp.zeros(n + 1)  # expect: VX107
    side = int(x.max())  # expect: VX107
    square = x[: 2 * 2].reshape(side, 2)
    return steps, padded, square


@case("bounded dynamic", np.array([1, 2, 2, 0], np.int32))
def sizes_of_results(x):
    """Functions whose results are as many as the values say."""
    values = jnp.unique(x)  # expect: VX106
    rows = jnp.argwhere(x > 1)  # expect: VX106
    flat = jnp.flatnonzero(x)  # expect: VX106
    (where,) = jnp.where(x > 1)  # expect: VX106
    return values, rows, flat, where


@case(
    "static per value", np.arange(24, dtype=np.float32).reshape(8, 3), 0.75, static=("size_factor",)
)
def slice_by_factor_scalar(output, size_factor):
    """Model (b): the slice ends where a Python number says."""
    return output[: int(size_factor * 5)]  # expect: VX201


@case("bounded dynamic", np.arange(24, dtype=np.float32).reshape(8, 3), jnp.float32(0.75))
def slice_by_factor_tensor(output, size_factor):
    """Model (b): the slice ends where a tensor says."""
    return output[: int(size_factor * 5)]  # expect: VX104


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    x: jax.Array
    step: jax.Array


@case("not static", State(jnp.ones(3), jnp.int32(1)))
def state_decides(state):
    """A field of the state, handed on, decides."""
    if state.step % 10 == 0:  # expect: VX101
        return State(state.x * 0.5, state.step + 1)
    return State(state.x, state.step + 1)


@case("not static", np.array([0, 1, 1], np.int32), jnp.int32(1), jnp.int32(2))
def static_argument(x, axis, classes):
    """Values where JAX needs Python numbers: an axis, a number of classes."""
    total = jnp.diff(x, n=axis)  # expect: VX112
    labels = jax.nn.one_hot(x, classes)  # expect: VX107
    return total, labels


@case("not static", np.arange(4, dtype=np.float32))
def swallowed(x):
    """The error of tracing is caught, so the program silently goes another way."""
    try:
        if x.sum() > 0:  # expect: VX101
            return x * 2
    except Exception:
        pass
    return x


@case("not static", np.array([[1.0, 2.0], [0.0, 0.0]], np.float32))
def ternary(x):
    """A conditional expression, and one in a comprehension."""
    sign = 1.0 if x.sum() > 0 else -1.0  # expect: VX101
    return [row for row in x if row.any()], sign  # expect: VX101


def per_row(row):
    return row if row.sum() > 0 else -row  # expect: VX101


def indexed_loss(x):
    if x[0, 0] > 0:  # expect: VX101
        return jnp.sum(x**2)
    return jnp.sum(x)


@jax.checkpoint
def block(x):
    return x * float(x[0, 0])  # expect: VX108


def shrink(x):
    return x[: int(x[0, 0])].sum()  # expect: VX104


@case("not static", np.ones((3, 2), np.float32))
def under_transformations(x):
    """Faults under vmap, grad, checkpoint and in the branch of a cond."""
    rows = jax.vmap(per_row)(x)
    slope = jax.grad(indexed_loss)(x)
    some = jax.lax.cond(x[0, 0] > 5, shrink, jnp.sum, x)
    return rows, slope, block(x), some


@case("not static", np.array([3.0, -7.0], np.float32))
def while_until_converged(x):
    """A while loop on an error."""
    while jnp.max(jnp.abs(x)) > 1.0:  # expect: VX102
        x = x * 0.5
    return x


@case("static", jnp.ones(3, jnp.bfloat16), np.ones(3, np.float32))
def wide_and_cut(x, scale):
    """64 bits asked for and not given; half precision widened by its other operand."""
    total = x.astype(jnp.float64).sum()  # expect: VX305
    return x * scale, total  # expect: VX306
