"""JAX primitives for the products of a convolution, and their derivatives for all algorithms.

::

    forward  y  = A w        x  [N, C_in],  w            ->  y  [M, C_out]
    dgrad    dx = dy w^T     dy [M, C_out], w            ->  dx [N, C_in]
    wgrad    dw = A^T dy     x  [N, C_in],  dy [M, C_out] ->  dw

Here A is the map: it gathers, for each tap, the input row of each output row. Every product is
bilinear, so its JVP consists of the same product. The transposes of a product are the other two
products over the same map. So convolutions have derivatives of any order, forward and reverse, and
no algorithm defines a derivative. The algorithm is chosen when a product is lowered for a platform.

The primitive ``tangent`` is a sum of two products, and ``gradients`` is a pair of two products.
Each is the transpose of the other::

    tangent    A x' w + A x w'                           ->  y'
    gradients  dy w^T, A^T dy                            ->  dx, dw

dgrad and wgrad read the same rows of dy. A kernel that is chosen for both may compute them
together, because ``gradients`` is one equation of the jaxpr.

Another primitive is the forward product with an :class:`~voxax.kernels.Epilogue`, for inference. A
kernel may apply the epilogue before it writes the result.

``vmap`` over features or weights folds the batch into groups of one grouped product.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from voxax import _compat, _native
from voxax._native.eager import on_host
from voxax.geometry.dtypes import product_dtype
from voxax.geometry.host import table_views
from voxax.geometry.kernel_maps import invert_neighbors, list_pairs
from voxax.hardware import hardware_of
from voxax.kernels import Epilogue, Layer, Parameters, Problem, Product
from voxax.kernels.kernel import Fused
from voxax.tuning import Choice, applies_epilogue, choose
from voxax.tuning.request import epoch


def _run(product: Product, platform: str, a: Any, b: Any, *views: Any, layer: Layer) -> Any:
    problem = Problem.of(product, platform, a, b, layer)
    by_name = dict(zip(layer.view_names, views, strict=True))
    choice = _chosen(problem, layer)
    by_name = _with_views(choice, by_name)
    return choice.kernel.apply(problem, choice.parameters, a, b, by_name)


def _chosen(problem: Problem, layer: Layer) -> Choice:
    """Choose the kernel for a product, among those that read only arrays in ``layer.view_names``.

    All kernels are considered if the program is lowered for a device that is absent, and the
    neighbor table is among these arrays: tracing did not know the device, and missing arrays can be
    built from the table. In an eager call on CPUs, the result is that of :func:`choice_for`.
    """
    if problem.platform == "cpu" and _compat.lowers_eager_program():
        return choice_for(problem, layer)  # the choice of the eager call
    request = dict(layer.requests)[problem.product]
    everything = _compat.absent_device() is not None and "neighbors" in layer.view_names
    views = None if everything else layer.view_names
    return choose(problem, request, views, stated=problem.product in layer.stated)


def _with_views(choice: Choice, views: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Return ``views`` (map arrays by name) plus the arrays that the chosen kernel reads.

    Arrays that ``views`` lacks are built from the neighbor table in it.
    """
    layer, found = choice.problem.layer, dict(views)
    builders = choice.kernel.views_of(choice.problem, choice.parameters)

    def get(name: str) -> jax.Array:
        view = builders.get(name)
        if name in found:
            pass
        elif view is not None:
            found[name] = view.build(get(view.table), layer.spec)
        elif name == "transposed_neighbors":
            found[name] = invert_neighbors(found["neighbors"], layer.in_capacity)
        else:
            found["pairs"], found["pair_starts"] = list_pairs(found["neighbors"])
        return found[name]

    for name in builders:
        get(name)
    return found


def choice_for(problem: Problem, layer: Layer) -> Choice:
    """Choose the kernel for an eager product; choices are cached.

    If ``layer.view_names`` has the neighbor table or is empty (not set yet), all kernels are
    considered, since other arrays can be built from the table. Otherwise a kernel may read only
    arrays in ``layer.view_names``.
    """
    views = None if "neighbors" in layer.view_names or not layer.view_names else layer.view_names
    request, stated = dict(layer.requests)[problem.product], problem.product in layer.stated
    return _choice_for(problem, request, stated, views, eager_key())


def eager_key() -> Hashable:
    """Return a cache key of the settings on which an eager choice of kernels depends."""
    return epoch(), _compat.environment_key(), _native.unavailable()


@functools.lru_cache(maxsize=4096)
def _choice_for(
    problem: Problem, request: Any, stated: bool, views: tuple[str, ...] | None, key: Hashable
) -> Choice:
    del key
    return choose(problem, request, views, stated=stated)


def _run_on_host(
    product: Product, a: np.ndarray, b: np.ndarray, *views: np.ndarray, layer: Layer
) -> np.ndarray | None:
    choice = choice_for(Problem.of(product, "cpu", a, b, layer), layer)
    if choice.kernel.on_host is None:
        return None
    found = _views_on_host(choice, views, layer)
    return choice.kernel.on_host(choice.problem, choice.parameters, a, b, found)


def _views_on_host(
    choice: Choice, views: tuple[np.ndarray, ...], layer: Layer
) -> dict[str, np.ndarray]:
    """Return a dict by name of the map arrays ``views`` plus those that the chosen kernel reads.

    ``views`` are in the order of ``layer.view_names``. Missing arrays are built from the neighbor
    table, as NumPy arrays.
    """
    found = dict(zip(layer.view_names, views, strict=True))
    builders = choice.kernel.views_of(choice.problem, choice.parameters)
    missing = tuple(name for name in builders if name not in found)
    if missing:
        built = table_views(
            found["neighbors"],
            layer.spec,
            missing,
            layer.in_capacity,
            [view for view in builders.values() if view is not None],
            symmetric=layer.symmetric,
        )
        found.update(zip(missing, built, strict=True))
    return found


def _output_shape(
    product: Product, a: Any, b: Any, *views: Any, layer: Layer
) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of the product of ``a, b``, which may be ``ShapeDtypeStruct``."""
    shape = Problem.of(product, "any", a, b, layer).result_shape
    return jax.ShapeDtypeStruct(shape, product_dtype(a.dtype))


Parts = tuple[tuple[Product, int, int], ...]
"""The products that a primitive consists of: ``(product, i, j)``, where ``i`` and ``j`` are the
indices of the product's first and second operand among the primitive's operands."""

# The transposes of a product p(a, b), with respect to a and to b. Each entry names the product that
# computes the cotangent, and whether the cotangent of p's result is that product's first operand
# (True) or its second (False); the other operand of p is the remaining operand.
# For y = A x w: dx = dgrad(dy, w), so ("dgrad", True); dw = wgrad(x, dy), so ("wgrad", False).
_TRANSPOSES: dict[Product, tuple[tuple[Product, bool], tuple[Product, bool]]] = {
    "forward": (("dgrad", True), ("wgrad", False)),
    "dgrad": (("forward", True), ("wgrad", True)),
    "wgrad": (("dgrad", False), ("forward", False)),
}


def _cotangents(parts: Parts, cts: Any, operands: tuple, views: tuple, layer: Layer) -> list:
    """Transpose a primitive: return the cotangent of each linear operand, None for all others.

    ``parts`` are the products of the primitive, and ``cts`` has the cotangent of each product's
    result. The list has an entry for each operand, then for each of ``views``, the map's arrays.
    """
    result: list = [None] * (len(operands) + len(views))
    for ct, (product, *places) in zip(cts, parts, strict=True):
        for place, other, transpose in zip(
            places, reversed(places), _TRANSPOSES[product], strict=True
        ):
            if isinstance(ct, _compat.Zero) or not _compat.is_undefined_primal(operands[place]):
                continue
            name, leads = transpose
            pair = (ct, operands[other]) if leads else (operands[other], ct)
            result[place] = _PRIMITIVES[name].bind(*pair, *views, layer=layer)
    return result


def _batch(product: Product, args: Any, dims: Any, *, layer: Layer) -> tuple[Any, int]:
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    a, b, *views = args
    # Dynamic products branch on their sizes: computed one after the other, each runs one branch.
    if layer.kind == "dynamic" or any(d is not None for d in dims[2:]):
        return _batch_maps(product, args, dims, layer), 0

    def batched(operand: Any, dim: int | None) -> Any:
        """Return ``operand`` with its batch axis ``dim`` moved to axis 1.

        If ``dim`` is None, the operand is repeated for each of the ``size`` batch entries.
        """
        if dim is None:
            shape = (operand.shape[0], size, *operand.shape[1:])
            return jnp.broadcast_to(operand[:, None], shape)
        return jnp.moveaxis(operand, dim, 1)

    def rows(operand: Any) -> Any:
        return operand.reshape(operand.shape[0], -1)

    a, b = rows(batched(a, dims[0])), batched(b, dims[1])
    if product == "wgrad" or layer.kind == "depthwise":
        b = rows(b)
    else:
        b = b.reshape(b.shape[0], -1, *b.shape[-2:])
    grouped = layer
    if layer.kind != "depthwise":
        grouped = dataclasses.replace(layer, kind="grouped", groups=layer.groups * size)
    out = _PRIMITIVES[product].bind(a, b, *views, layer=grouped)
    if product != "wgrad" or layer.kind == "depthwise":
        return out.reshape(out.shape[0], size, -1), 1
    inner = (layer.groups,) if layer.kind == "grouped" else ()
    return out.reshape(out.shape[0], size, *inner, *out.shape[-2:]), 1


def _batch_maps(product: Product, args: Any, dims: Any, layer: Layer) -> Any:
    """Compute a product for each batch entry in a loop; return the results stacked on axis 0.

    ``dims`` has the batch axis of each array in ``args``, or None. The loop is for entries with
    maps of their own, and for dynamic convolutions.
    """
    moved = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    batched = [m for m, d in zip(moved, dims, strict=True) if d is not None]

    def one(entries: Any) -> Any:
        queue = iter(entries)
        operands = [m if d is None else next(queue) for m, d in zip(moved, dims, strict=True)]
        return _PRIMITIVES[product].bind(*operands, layer=layer)

    return jax.lax.map(one, batched)


# Operands of ``tangent`` are x', w, x, w'; operands of ``gradients`` are dy, x, w.


def _run_tangent(
    platform: str, tx: Any, w: Any, x: Any, tw: Any, *views: Any, layer: Layer
) -> jax.Array:
    one = _run("forward", platform, tx, w, *views, layer=layer)
    return one + _run("forward", platform, x, tw, *views, layer=layer)


def _run_gradients(
    platform: str, dy: Any, x: Any, w: Any, *views: Any, layer: Layer
) -> tuple[jax.Array, jax.Array]:
    by_name = dict(zip(layer.view_names, views, strict=True))
    problems = (
        Problem.of("dgrad", platform, dy, w, layer),
        Problem.of("wgrad", platform, x, dy, layer),
    )
    first, second = (_chosen(p, layer) for p in problems)
    by_name = _with_views(second, _with_views(first, by_name))
    kernel, other = first.kernel, second.kernel
    fused, parameters = _fused(first, second)
    if fused is not None:
        return fused.apply(first.problem, parameters, dy, x, w, by_name)
    dx = kernel.apply(first.problem, first.parameters, dy, w, by_name)
    return dx, other.apply(second.problem, second.parameters, x, dy, by_name)


def _fused(dgrad: Choice, wgrad: Choice) -> tuple[Fused | None, Parameters]:
    """Return the program that computes dgrad and wgrad together, and the program's parameters.

    The program is None unless one kernel is chosen for both products and has such a program for
    this problem.
    """
    fused = dgrad.kernel.fused
    if dgrad.kernel is not wgrad.kernel or fused is None:
        return None, ()
    hardware, _ = hardware_of(dgrad.problem.platform)
    parameters = fused.heuristic(dgrad.problem, hardware, dgrad.parameters)
    return (None, ()) if parameters is None else (fused, parameters)


def _run_tangent_on_host(
    tx: np.ndarray, w: np.ndarray, x: np.ndarray, tw: np.ndarray, *views: Any, layer: Layer
) -> np.ndarray | None:
    one = _run_on_host("forward", tx, w, *views, layer=layer)
    other = _run_on_host("forward", x, tw, *views, layer=layer)
    return None if one is None or other is None else np.add(one, other, out=one)


def _run_gradients_on_host(
    dy: np.ndarray, x: np.ndarray, w: np.ndarray, *views: Any, layer: Layer
) -> tuple[np.ndarray, np.ndarray] | None:
    problems = Problem.of("dgrad", "cpu", dy, w, layer), Problem.of("wgrad", "cpu", x, dy, layer)
    first, second = (choice_for(p, layer) for p in problems)
    fused, parameters = _fused(first, second)
    if fused is not None:
        if fused.on_host is None:
            return None
        found = _views_on_host(first, views, layer)
        return fused.on_host(first.problem, parameters, dy, x, w, found)
    dx = _run_on_host("dgrad", dy, w, *views, layer=layer)
    dw = _run_on_host("wgrad", x, dy, *views, layer=layer)
    return None if dx is None or dw is None else (dx, dw)


def _transpose_tangent(
    ct: Any, tx: Any, w: Any, x: Any, tw: Any, *views: Any, layer: Layer
) -> list:
    operands = tx, w, x, tw
    linear = [_compat.is_undefined_primal(operand) for operand in operands]
    if linear == [True, False, False, True] and not isinstance(ct, _compat.Zero):
        dx, dw = gradients_p.bind(ct, x, w, *views, layer=layer)
        return [dx, None, None, dw, *(None for _ in views)]
    return _cotangents(_TANGENT, (ct, ct), operands, views, layer)


def _transpose_gradients(cts: Any, dy: Any, x: Any, w: Any, *views: Any, layer: Layer) -> list:
    if _compat.is_undefined_primal(dy) and not any(isinstance(ct, _compat.Zero) for ct in cts):
        both = tangent_p.bind(cts[0], w, x, cts[1], *views, layer=layer)
        return [both, None, None, *(None for _ in views)]
    return _cotangents(_GRADIENTS, cts, (dy, x, w), views, layer)


def _bilinear(product: Product) -> Any:
    """Create the JAX primitive of a product, with its JVP, transpose and batching rules.

    The JVP is the product itself, once for each operand with a tangent (product rule). For the
    forward product it is the primitive ``tangent`` if both operands have a tangent.
    """

    def jvp(primals: Any, tangents: Any, *, layer: Layer) -> tuple[Any, Any]:
        a, b, *views = primals
        ta, tb, *_ = tangents
        out = primitive.bind(a, b, *views, layer=layer)
        moves_a, moves_b = (not isinstance(t, _compat.Zero) for t in (ta, tb))
        if product == "forward" and moves_a and moves_b:
            return out, tangent_p.bind(ta, b, a, tb, *views, layer=layer)
        terms = [primitive.bind(ta, b, *views, layer=layer)] if moves_a else []
        terms += [primitive.bind(a, tb, *views, layer=layer)] if moves_b else []
        return out, _sum_of(terms, out)

    def transpose(ct: Any, a: Any, b: Any, *views: Any, layer: Layer) -> list:
        return _cotangents(((product, 0, 1),), (ct,), (a, b), views, layer)

    run, shape = functools.partial(_run, product), functools.partial(_output_shape, product)
    eager = on_host(functools.partial(_run_on_host, product))
    primitive = _compat.staged_primitive(f"voxax_{product}", run, shape, many=False, eager=eager)
    _compat.set_rules(primitive, jvp, transpose, functools.partial(_batch, product))
    return primitive


def _composed(name: str, parts: Parts, run: Any, transpose: Any, eager: Any, *, many: bool) -> Any:
    """Create a primitive that returns the results of several products (``many``), or their sum.

    JVP and batching are those of the products. A program that needs only one of several results
    computes only that product. All products share the map's arrays, which follow the operands.

    Args:
      name: the primitive's name, as it appears in a jaxpr.
      parts: the products and their operands, see :data:`Parts`.
      run: a function of ``(platform, *operands, *views, layer=)`` that returns the result.
      transpose: a function of ``(cotangents, *operands, *views, layer=)`` that returns one
        cotangent or None for each operand and view.
      eager: ``run`` for NumPy arrays, without ``platform``; it returns None if it cannot run.
      many: whether the primitive returns a tuple of results instead of their sum.
    """
    first_view = 1 + max(place for _, *places in parts for place in places)
    primitives = [(_PRIMITIVES[product], i, j) for product, i, j in parts]

    def shapes(*operands: Any, layer: Layer) -> Any:
        every = [_output_shape(p, operands[i], operands[j], layer=layer) for p, i, j in parts]
        return every if many else every[0]

    def spelled_out(*args: Any, **params: Any) -> Any:
        views = args[first_view:]
        results = [part.bind(args[i], args[j], *views, **params) for part, i, j in primitives]
        return tuple(results) if many else functools.reduce(_compat.add_tangents, results)

    def jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
        out, views = primitive.bind(*primals, **params), primals[first_view:]
        moves = [not isinstance(t, _compat.Zero) for t in tangents]
        terms: list[list[Any]] = []
        for part, i, j in primitives:
            terms.append([])
            if moves[i]:
                terms[-1].append(part.bind(tangents[i], primals[j], *views, **params))
            if moves[j]:
                terms[-1].append(part.bind(primals[i], tangents[j], *views, **params))
        if many:
            return out, [_sum_of(*pair) for pair in zip(terms, out, strict=True)]
        return out, _sum_of([term for own in terms for term in own], out)

    def batch(args: Any, dims: Any, **params: Any) -> tuple[Any, Any]:
        out = jax.vmap(functools.partial(spelled_out, **params), tuple(dims))(*args)
        return out, (0,) * len(out) if many else 0

    def drop_unused(used: Sequence[bool], equation: Any) -> tuple[list[bool], Any]:
        operands = equation.invars
        if sum(used) != 1:
            return [any(used)] * len(operands), equation if any(used) else None
        output = list(used).index(True)
        part, *own = primitives[output]
        kept = (*own, *range(first_view, len(operands)))
        alone = equation.replace(
            primitive=part,
            invars=[operands[i] for i in kept],
            outvars=[equation.outvars[output]],
        )
        return [i in kept for i in range(len(operands))], alone

    primitive = _compat.staged_primitive(name, run, shapes, many=many, eager=on_host(eager))
    _compat.set_rules(primitive, jvp, transpose, batch)
    if many:
        _compat.set_dce_rule(primitive, drop_unused)
    return primitive


After = Callable[[jax.Array, Epilogue], jax.Array]
"""A function that applies an epilogue to the result of a forward product, in ordinary JAX."""


def convolved(x: Any, w: Any, views: Sequence[Any], epilogue: Epilogue, after: After, layer: Layer):
    """Convolve ``x`` with ``w`` to y; return ``after(y, epilogue)``, as one equation of the jaxpr.

    ``views`` are the kernel map's arrays, as named in ``layer.view_names``.
    """
    leaves, tree = jax.tree.flatten(epilogue)
    operands = _compat.vary_alike(x, w, *leaves, *views)
    return epilogue_p.bind(*operands, layer=layer, tree=tree, after=after)


def _parted(rest: Sequence[Any], tree: Any) -> tuple[Epilogue, Sequence[Any]]:
    """Split ``rest``, the operands after x and w, into the epilogue and the map's arrays.

    ``tree`` is the pytree structure of the epilogue.
    """
    number = tree.num_leaves
    return jax.tree.unflatten(tree, rest[:number]), rest[number:]


def _run_epilogue(
    platform: str, x: Any, w: Any, *rest: Any, layer: Layer, tree: Any, after: After
) -> jax.Array:
    epilogue, views = _parted(rest, tree)
    problem = Problem.of("forward", platform, x, w, layer)
    choice = _chosen(problem, layer)
    by_name = _with_views(choice, dict(zip(layer.view_names, views, strict=True)))
    kernel, arguments = choice.kernel, (problem, choice.parameters, x, w, by_name)
    made = None
    if kernel.with_epilogue is not None and applies_epilogue(choice):
        made = kernel.with_epilogue(*arguments, epilogue)
    return after(kernel.apply(*arguments), epilogue) if made is None else made


def _epilogue_spelled_out(
    x: Any, w: Any, *rest: Any, layer: Layer, tree: Any, after: After
) -> jax.Array:
    epilogue, views = _parted(rest, tree)
    return after(forward_p.bind(x, w, *views, layer=layer), epilogue)


def _epilogue_jvp(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    moves = [place for place, t in enumerate(tangents) if not isinstance(t, _compat.Zero)]

    def function(*moved: Any) -> jax.Array:
        values = dict(enumerate(primals)) | dict(zip(moves, moved, strict=True))
        return _epilogue_spelled_out(*values.values(), **params)

    at, along = ([values[place] for place in moves] for values in (primals, tangents))
    return jax.jvp(function, at, along)


def _epilogue_batch(args: Any, dims: Any, **params: Any) -> tuple[Any, int]:
    run = functools.partial(_epilogue_spelled_out, **params)
    return jax.vmap(run, tuple(dims))(*args), 0


def _sum_of(terms: list[Any], like: Any) -> Any:
    return functools.reduce(_compat.add_tangents, terms) if terms else _compat.no_tangent(like)


forward_p, dgrad_p, wgrad_p = _bilinear("forward"), _bilinear("dgrad"), _bilinear("wgrad")
_PRIMITIVES: dict[Product, Any] = {"forward": forward_p, "dgrad": dgrad_p, "wgrad": wgrad_p}

_TANGENT: Parts = (("forward", 0, 1), ("forward", 2, 3))
_GRADIENTS: Parts = (("dgrad", 0, 2), ("wgrad", 1, 0))

tangent_p = _composed(
    "voxax_tangent", _TANGENT, _run_tangent, _transpose_tangent, _run_tangent_on_host, many=False
)
gradients_p = _composed(
    "voxax_gradients",
    _GRADIENTS,
    _run_gradients,
    _transpose_gradients,
    _run_gradients_on_host,
    many=True,
)

epilogue_p = _compat.staged_primitive(
    "voxax_forward_epilogue",
    _run_epilogue,
    lambda x, w, *rest, layer, **_: _output_shape("forward", x, w, layer=layer),
    many=False,
)
_compat.set_rules(epilogue_p, _epilogue_jvp, None, _epilogue_batch)

PARTS: dict[Any, Parts] = {
    **{primitive: ((product, 0, 1),) for product, primitive in _PRIMITIVES.items()},
    tangent_p: _TANGENT,
    gradients_p: _GRADIENTS,
    epilogue_p: (("forward", 0, 1),),
}
"""The products that each primitive consists of."""

for _primitive in PARTS:
    _compat.save_as_matrix_product(_primitive)
