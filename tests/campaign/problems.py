"""Random convolutions on every CPU path, against loops over taps in float64.

Sixteen trials in a row share shapes, dtype and relation, and so programs; each has rows, values and
memory layouts of its own. Every trial runs forward, dgrad and wgrad by each algorithm, half of them
with NaN in all padding rows, and by the host's products with each instruction set.
"""

import functools
import math

import numpy as np

from campaign.trials import generator, require
from oracle import (
    box_offsets,
    coarse_rows,
    neighbor_dictionary,
    reached_rows,
    relative_error,
    sorted_rows,
)
from voxax import _native
from voxax._native import host_products

WHOLE = 2000
SECONDS = 240
SHARED = 16
MOST_WORK = 6e8  # multiplications of a product
FORMS = ("native_4", "im2col", "output_stationary", "pair_lists_1024", "tiles_256")
FLOATS = {"float32": 0.35, "float64": 0.2, "bfloat16": 0.17, "float16": 0.16}
FLOATS |= {"complex64": 0.05, "complex128": 0.03, "float8_e4m3fn": 0.02, "float8_e5m2": 0.02}
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
WIDE = ("float64", "complex128", "int64")
# On the largest difference over the largest expected value; integers are exact.
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3, "float64": 1e-12}
TOLERANCE |= {"complex64": 2e-5, "complex128": 1e-12, "float8_e4m3fn": 0.1, "float8_e5m2": 0.2}
RELATIONS = ("submanifold", "strided", "transposed", "onto", "generative", "generative transposed")
LAYOUTS = ("plain", "Fortran", "reversed", "sliced", "read-only", "transposed")


def draw(seed, number):
    """Shapes from the number's group, data from the number."""
    rng = generator("problems", seed, number // SHARED)
    ndim = int(rng.choice([1, 2, 3, 4], p=[0.1, 0.2, 0.55, 0.15]))
    relation = str(rng.choice(RELATIONS))
    largest = {1: 9, 2: 5, 3: 4, 4: 3}[ndim]
    size = [int(n) for n in rng.integers(1, largest + 1, ndim)]
    stride = [1] * ndim if relation == "submanifold" else [int(n) for n in rng.integers(1, 4, ndim)]
    if relation not in ("submanifold", "onto") and set(stride) == {1}:
        stride[0] = 2
    generates = relation.startswith("generative")
    taps = math.prod(size)
    most_rows = min(3000, 6000 // taps) if generates else 3000
    kind = str(rng.choice(["dense", "grouped", "depthwise"], p=[0.6, 0.2, 0.2]))
    channels = [round(math.exp(rng.uniform(0, math.log(300)))) for _ in range(2)]
    groups = int(rng.integers(2, 5)) if kind == "grouped" else 1
    if kind == "depthwise":
        channels[1] = channels[0]
    channels = [max(1, c // groups) * groups for c in channels]
    capacity = round(math.exp(rng.uniform(0, math.log(most_rows))))
    work = taps * (channels[0] if kind == "depthwise" else math.prod(channels) / groups)
    own = generator("problem", seed, number)
    capacity = max(1, min(capacity, int(MOST_WORK / work)))
    integers = rng.random() < 0.15
    return {
        "ndim": ndim,
        "relation": relation,
        "size": size,
        "stride": stride,
        "dilation": [int(n) for n in rng.choice([1, 1, 2, 3], ndim)],
        "kind": kind,
        "groups": groups,
        "channels": channels,
        "capacity": capacity,
        "dtype": str(
            rng.choice(INTEGERS) if integers else rng.choice(list(FLOATS), p=list(FLOATS.values()))
        ),
        "batch_size": int(rng.integers(1, 4)),
        "rows": int(
            own.choice([0, 1, own.integers(0, capacity + 1), capacity], p=[0.1, 0.1, 0.5, 0.3])
        ),
        "occupancy": float(own.uniform(0.05, 0.9)),
        "layouts": [str(name) for name in own.choice(LAYOUTS, 3)],
        "simd": str(own.choice(["portable", "avx2", "avx512"], p=[0.2, 0.3, 0.5])),
        "poisoned": bool(own.random() < 0.5),
        "data": int(own.integers(2**31)),
    }


def start(folder):
    """Register every form of every algorithm; programs are compiled without optimizations."""
    import jax

    from conformance.forms import registered

    del folder
    jax.config.update("jax_disable_most_optimizations", True)
    forms = registered()
    forms.__enter__()
    return functools.partial(attempt, held=forms)


def attempt(trial, held=None):
    """Compare all products on all paths; count how many."""
    import jax

    del held  # the registry, which the forms leave with it
    with jax.enable_x64(trial["dtype"] in WIDE):
        return Problem(trial).run()


def laid_out(array, layout):
    """The same numbers in other memory."""
    match layout:
        case "Fortran":
            return np.asfortranarray(array)
        case "reversed":
            return np.ascontiguousarray(array[::-1])[::-1]
        case "sliced":
            room = np.zeros([2 * n + 1 for n in array.shape], array.dtype)
            room[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)] = array
            return room[tuple(slice(1, 2 * n + 1, 2) for n in array.shape)]
        case "read-only":
            fixed = array.copy()
            fixed.flags.writeable = False
            return fixed
        case "transposed":
            return np.ascontiguousarray(array.T).T
        case _:
            return array


class Problem:
    """One trial: its arrays, the map and the products by loops, and the comparison."""

    def __init__(self, trial):
        self.trial = trial
        self.rng = np.random.default_rng(trial["data"])
        self.dtype = np.dtype(_numpy_type(trial["dtype"]))
        self.offsets = box_offsets(trial["size"], trial["stride"])

    def run(self):
        self._make()
        count = {"rows": len(self.sites), f"of {self.trial['dtype']}": 1, self.trial["relation"]: 1}
        count[self.trial["kind"]] = 1
        for name in set(self.trial["layouts"]):
            count[f"memory {name}"] = 1
        self._check_map()
        count |= {f"products by {form}": self._check_form(form) for form in FORMS}
        count["products on the host"] = self._check_host()
        count["dilated"] = int(max(self.trial["dilation"]) > 1 and max(self.trial["size"]) > 1)
        return count

    def _make(self):
        import jax.numpy as jnp

        import voxax as vx

        t, rng = self.trial, self.rng
        rows = _distinct_rows(rng, t["ndim"], t["rows"], t["occupancy"], t["batch_size"])
        features = self._values((len(rows), t["channels"][0]))
        self.weight = self._values(self._weight_shape(), 1 / math.sqrt(len(self.offsets)))
        layouts = t["layouts"]
        given = laid_out(rows.astype(rng.choice(["i4", "i8"])), layouts[0])
        self.voxels = vx.Voxels.from_coords(
            given,
            laid_out(features, layouts[1]),
            t["batch_size"],
            capacity=t["capacity"],
            reduction="first",
        )
        order = np.lexsort(rows.T[::-1])
        self.wide = np.complex128 if self.dtype.kind == "c" else np.float64
        self.sites, self.features = rows[order], features[order].astype(self.wide)
        self._make_target()
        self.kmap = self._kernel_map()
        self.dy = self._values((self.kmap.out_capacity, t["channels"][1]))
        x = np.zeros((t["capacity"], t["channels"][0]), self.dtype)
        x[: len(order)] = features[order]
        require(np.array_equal(np.asarray(self.voxels.features), x), "features in another order")
        if t["poisoned"] and self.dtype.kind not in "iu":
            x[len(order) :] = np.nan
            self.dy[len(self.targets) :] = np.nan
        self.x, self.w = jnp.asarray(x), laid_out(self.weight, layouts[2])

    def _weight_shape(self):
        t, taps = self.trial, len(self.offsets)
        c_in, c_out, groups = *t["channels"], t["groups"]
        if t["kind"] == "depthwise":
            return taps, c_in
        return (
            (taps, groups, c_in // groups, c_out // groups) if groups > 1 else (taps, c_in, c_out)
        )

    def _values(self, shape, scale=1.0):
        if self.dtype.kind in "iu":
            return self.rng.integers(0, 4, shape).astype(self.dtype)
        if self.trial["dtype"].startswith("float8"):
            scale /= 8  # they end at 448
        values = self.rng.normal(size=shape) * scale
        if self.dtype.kind == "c":
            values = values + 1j * self.rng.normal(size=shape) * scale
        return values.astype(self.dtype)

    def _make_target(self):
        """Rows of the outputs, by loops, and the voxels to produce where the caller gives them."""
        import voxax as vx

        t, relation = self.trial, self.trial["relation"]
        arguments = t["stride"], t["dilation"]
        self.out_voxels = None
        if relation == "submanifold":
            self.targets = self.sites
        elif relation == "strided":
            self.targets = coarse_rows(self.sites, t["stride"])
        elif relation.startswith("generative"):
            self.targets = reached_rows(
                self.sites, t["size"], *arguments, relation.endswith("transposed")
            )
        else:
            number = min(len(self.sites) + 3, t["capacity"])
            rows = _distinct_rows(self.rng, t["ndim"], number, 0.5, t["batch_size"])
            self.targets = sorted_rows(map(tuple, rows.tolist()), rows.shape[1])
            self.out_voxels = vx.Voxels.from_coords(
                rows,
                np.zeros((len(rows), 1), np.float32),
                t["batch_size"],
                capacity=t["capacity"],
                stride=1 if relation == "transposed" else t["stride"],
            )
        if relation == "transposed":
            v = self.voxels
            self.voxels = vx.Voxels.from_coords(
                v.coords, v.features, v.batch_size, capacity=v.capacity, stride=t["stride"],
                reduction="first",
            )  # fmt: skip

    def _kernel_map(self):
        import voxax as vx

        t = self.trial
        generates = t["relation"].startswith("generative")
        if t["relation"] == "generative transposed":
            v = self.voxels
            self.voxels = vx.Voxels.from_coords(
                v.coords, v.features, v.batch_size, capacity=v.capacity, stride=t["stride"],
                reduction="first",
            )  # fmt: skip
        return vx.kernel_map(
            self.voxels,
            t["size"],
            t["stride"],
            t["dilation"],
            transposed=t["relation"].endswith("transposed"),
            generative=generates,
            out_voxels=self.out_voxels,
            capacity=t["capacity"] * len(self.offsets) if generates else None,
        )

    def _check_map(self):
        t = self.trial
        found = np.asarray(self.kmap.out_geometry.coords)
        number = int(self.kmap.out_geometry.count)
        require(np.array_equal(found[:number], self.targets), "other outputs than by loops")
        self.neighbors = neighbor_dictionary(
            self.sites, self.targets, self.offsets, t["stride"], t["dilation"],
            t["relation"].endswith("transposed"),
        )  # fmt: skip
        table = np.asarray(self.kmap.neighbors)
        require(np.array_equal(table[:number], self.neighbors), "another map than by loops")
        require((table[number:] == -1).all(), "padding rows have neighbors")

    def _check_form(self, form):
        _native.use_simd(self.trial["simd"])  # or keep the best, where this CPU lacks it
        x, dy = self.features, self.dy[: len(self.targets)].astype(self.wide)
        expected = products(x, self.weight.astype(self.wide), dy, self.neighbors)
        found = _program(form, self.trial["groups"], self.dtype.kind in "iu")(
            self.voxels, self.kmap, self.x, self.w, self.dy
        )
        rows = len(self.targets), len(self.sites), None
        for name, value, exact, number in zip(
            ("y", "dx", "dw"), found, expected, rows, strict=False
        ):
            value = np.asarray(value).astype(self.wide)
            self._compare(f"{name} by {form}", value[:number], exact)
            if number is not None:
                require((value[number:] == 0).all(), f"{name} by {form}: padding is not zero")
        return len(found)

    def _compare(self, what, found, expected):
        require(np.isfinite(found).all(), f"{what}: not finite")
        error, limit = _error(found, expected), TOLERANCE.get(self.trial["dtype"], 0)
        require(error <= limit, f"{what}: error {error:.2e} of {expected.shape}, limit {limit:.0e}")

    def _check_host(self):
        """The products without JAX, with each instruction set, weights in any memory."""
        groups, dtype = self.trial["groups"], self.trial["dtype"]
        takes = dtype in ("float32", "float64", "bfloat16") and self.weight.ndim == 3
        if not takes or groups > 1 or _native.unavailable() is not None:
            return 0
        bits = (lambda a: a.view(np.uint16)) if dtype == "bfloat16" else (lambda a: a)
        dy = np.ascontiguousarray(self.dy[: len(self.targets)])
        x = self.features.astype(self.dtype)
        exact = products(
            self.features, self.weight.astype(np.float64), dy.astype(np.float64), self.neighbors
        )
        count = 0
        for simd in ("portable", "avx2", "avx512"):
            if not _native.use_simd(simd):
                continue
            y, dw = np.empty_like(dy), np.empty_like(self.weight)
            for threads in (1, 3):
                host_products.product(
                    bits(x), bits(self.w), self.neighbors, bits(y), threads=threads
                )
                self._compare(f"y on the host, {simd}", y.astype(np.float64), exact[0])
                host_products.weight_product(
                    bits(x), bits(dy), self.neighbors, bits(dw), threads=threads
                )
                self._compare(f"dw on the host, {simd}", dw.astype(np.float64), exact[2])
                count += 2
        _native.use_simd(None)
        return count


def _error(found, expected):
    if expected.dtype.kind == "c":
        found, expected = (np.stack([a.real, a.imag]) for a in (found, expected))
    return relative_error(found, expected)


def _distinct_rows(rng, ndim, number, occupancy, batch_size):
    """``number`` distinct rows in any order at about this occupancy, also below zero."""
    edge = max(2, math.ceil((number / batch_size / occupancy) ** (1 / ndim)))
    places = rng.choice(batch_size * edge**ndim, number, replace=False)
    axes = np.unravel_index(places, (batch_size, *[edge] * ndim))
    rows = np.stack(axes, axis=1).astype(np.int32).reshape(number, 1 + ndim)
    rows[:, 1:] -= edge // 2
    return rows


def products(x, weight, dy, neighbors):
    """``(y, dx, dw)`` in float64: a loop over the taps of the definition."""
    groups = weight.shape[1] if weight.ndim == 4 else 1
    split = x.reshape(len(x), groups, x.shape[1] // groups)
    dys = dy.reshape(len(dy), groups, dy.shape[1] // groups)
    y, dx, dw = np.zeros_like(dys), np.zeros_like(split), np.zeros_like(weight)
    for tap in range(weight.shape[0]):
        to = np.flatnonzero(neighbors[:, tap] >= 0)
        rows = neighbors[to, tap]
        if weight.ndim == 2:
            w = weight[tap]
            y[to, 0] += split[rows, 0] * w
            dx[rows, 0] += dys[to, 0] * w  # no two outputs share an input in one tap
            dw[tap] = (split[rows, 0] * dys[to, 0]).sum(0)
            continue
        for group in range(groups):
            w = weight[tap, group] if weight.ndim == 4 else weight[tap]
            y[to, group] += split[rows, group] @ w
            dx[rows, group] += dys[to, group] @ w.T
            part = split[rows, group].T @ dys[to, group]
            dw[(tap, group) if weight.ndim == 4 else tap] = part
    return y.reshape(dy.shape), dx.reshape(x.shape), dw


@functools.cache
def _program(form, groups, forward_only):
    import jax

    import voxax as vx
    from voxax.nn.functional import spatially_sparse_conv, spatially_sparse_depthwise_conv

    def forward(voxels, kmap, x, weight):
        if weight.ndim == 2:
            return spatially_sparse_depthwise_conv(x, weight, kmap, fwd_algo=form, bwd_algo=form)
        given = vx.Voxels(voxels.geometry, x)
        pins = {"fwd_algo": form, "bwd_algo": form}
        return spatially_sparse_conv(given, weight, groups=groups, kernel_map=kmap, **pins).features

    @jax.jit
    def run(voxels, kmap, x, weight, dy):
        if forward_only:
            return (forward(voxels, kmap, x, weight),)
        y, back = jax.vjp(functools.partial(forward, voxels, kmap), x, weight)
        return y, *back(dy.astype(y.dtype))

    return run


def _numpy_type(name):
    import ml_dtypes

    return getattr(ml_dtypes, name) if name.startswith(("bfloat", "float8")) else name
