"""Every form of a request, forward and backward: what is asked for is what is lowered.

On CPU ``cutlass_implicit_gemm`` is registered and cannot run, which makes it the unavailable
member of a list.
"""

import enum
import logging

import jax
import numpy as np
import pytest
from lowered import conv, dense_weight, depthwise, only, products, small_voxels

import voxax as vx
from voxax.kernels import names
from voxax.nn.functional import spatially_sparse_conv
from voxax.nn.functional.sparse_conv import SPARSE_CONV_BWD_ALGO_MODE as BWD
from voxax.nn.functional.sparse_conv import SPARSE_CONV_FWD_ALGO_MODE as FWD
from voxax.nn.functional.sparse_conv_depth import SPARSE_DEPTHWISE_CONV_BWD_ALGO_MODE as DEPTH_BWD
from voxax.nn.functional.sparse_conv_depth import SPARSE_DEPTHWISE_CONV_FWD_ALGO_MODE as DEPTH_FWD
from voxax.tuning import admitted, record_choices, tuner

EXPLICIT, IMPLICIT, CUTLASS = names("dense")
ANY = {EXPLICIT, IMPLICIT}


class Foreign(enum.Enum):
    """Spell the name as another library does."""

    IMPLICIT_GEMM = "implicit_gemm"


# (forward, backward) as users write them, and what may come out.
FORMS = {
    "members": (FWD.IMPLICIT_GEMM, BWD.IMPLICIT_GEMM, {IMPLICIT}),
    "other members": (FWD.EXPLICIT_GEMM, BWD.EXPLICIT_GEMM, {EXPLICIT}),
    "forward member for both": (FWD.IMPLICIT_GEMM, FWD.IMPLICIT_GEMM, {IMPLICIT}),
    "foreign members": (Foreign.IMPLICIT_GEMM, Foreign.IMPLICIT_GEMM, {IMPLICIT}),
    "lists of members": (
        [FWD.IMPLICIT_GEMM, FWD.CUTLASS_IMPLICIT_GEMM],
        [BWD.IMPLICIT_GEMM, BWD.CUTLASS_IMPLICIT_GEMM],
        {IMPLICIT},
    ),
    "unavailable first": (
        [FWD.CUTLASS_IMPLICIT_GEMM, FWD.IMPLICIT_GEMM],
        [BWD.CUTLASS_IMPLICIT_GEMM, BWD.IMPLICIT_GEMM],
        {IMPLICIT},
    ),
    "AUTO": (FWD.AUTO, BWD.AUTO, ANY),
    "ALL": (FWD.ALL, BWD.ALL, ANY),
    "strings": ("implicit_gemm", "implicit_gemm", {IMPLICIT}),
    "any case": ("Implicit_GEMM", "IMPLICIT_GEMM", {IMPLICIT}),
    "blanks": (" implicit_gemm ", "[ implicit_gemm ]", {IMPLICIT}),
    "without the ending": ("implicit", "implicit", {IMPLICIT}),
    "lists of strings": (
        ["implicit_gemm", "cutlass_implicit_gemm"],
        ["implicit_gemm", "cutlass_implicit_gemm"],
        {IMPLICIT},
    ),
    "tuples": (("implicit_gemm",), ("implicit_gemm",), {IMPLICIT}),
    "mixed lists": (
        [FWD.IMPLICIT_GEMM, "cutlass_implicit_gemm"],
        [BWD.IMPLICIT_GEMM, "cutlass_implicit_gemm"],
        {IMPLICIT},
    ),
    "lists in a string": (
        "[implicit_gemm,cutlass_implicit_gemm]",
        "[ implicit_gemm , cutlass_implicit_gemm ]",
        {IMPLICIT},
    ),
    "two that run": ([FWD.EXPLICIT_GEMM, "implicit_gemm"], "[implicit_gemm,explicit_gemm]", ANY),
    "auto": ("auto", "auto", ANY),
    "all": ("all", "ALL", ANY),
    "auto in a list": (["cutlass_implicit_gemm", "auto"], ["auto"], ANY),
    "None": (None, None, ANY),
}
DEPTHWISE_FORMS = {
    "lists of members": (
        [DEPTH_FWD.EXPLICIT, DEPTH_FWD.IMPLICIT],
        [DEPTH_BWD.EXPLICIT, DEPTH_BWD.IMPLICIT],
        {"explicit", "implicit"},
    ),
    "explicit": (DEPTH_FWD.EXPLICIT, DEPTH_BWD.EXPLICIT, {"explicit"}),
    "implicit": (DEPTH_FWD.IMPLICIT, DEPTH_FWD.IMPLICIT, {"implicit"}),
    "dense members": (FWD.IMPLICIT_GEMM, BWD.IMPLICIT_GEMM, {"implicit"}),
    "short": ("implicit", "[implicit]", {"implicit"}),
    "long": ("implicit_gemm", ["explicit_gemm"], {"implicit", "explicit"}),
    "AUTO": (DEPTH_FWD.AUTO, DEPTH_BWD.ALL, {"explicit", "implicit"}),
    "None": (None, None, {"explicit", "implicit"}),
}


def forms(table):
    return pytest.mark.parametrize(("fwd", "bwd", "expected"), table.values(), ids=table.keys())


@forms(FORMS)
def test_arguments(fwd, bwd, expected):
    assert set(conv(fwd_algo=fwd, bwd_algo=bwd)) <= expected


@forms(DEPTHWISE_FORMS)
def test_depthwise_arguments(fwd, bwd, expected):
    assert set(depthwise(fwd_algo=fwd, bwd_algo=bwd)) <= expected


def test_overlays_take_every_form():
    """An overlay admits what the same argument would; that it is used is in test_overlay."""
    for fwd, bwd, _ in FORMS.values():
        with vx.algorithms(forward=fwd, backward=bwd):
            for product, request in (("forward", fwd), ("dgrad", bwd), ("wgrad", bwd)):
                asked = admitted(request, kind="dense", product=product).names
                assert admitted(None, kind="grouped", product=product).names == asked
    for fwd, bwd, _ in DEPTHWISE_FORMS.values():
        with vx.algorithms(depthwise_forward=fwd, depthwise_backward=bwd):
            for product, request in (("forward", fwd), ("dgrad", bwd), ("wgrad", bwd)):
                asked = admitted(request, kind="depthwise", product=product).names
                assert admitted(None, kind="depthwise", product=product).names == asked


def test_the_two_directions_apart():
    """Each product has its own request, so neither argument can leak into the other."""
    assert conv(fwd_algo=FWD.IMPLICIT_GEMM, bwd_algo=BWD.EXPLICIT_GEMM) == (
        IMPLICIT, EXPLICIT, EXPLICIT,
    )  # fmt: skip
    assert conv(fwd_algo="explicit_gemm", bwd_algo="implicit_gemm", wgrad_algo="explicit_gemm") == (
        EXPLICIT, IMPLICIT, EXPLICIT,
    )  # fmt: skip
    assert conv(fwd_algo="explicit_gemm", dgrad_algo="explicit_gemm", wgrad_algo="implicit_gemm")[
        1:
    ] == (EXPLICIT, IMPLICIT)
    assert depthwise(fwd_algo="implicit", bwd_algo="explicit") == (
        "implicit", "explicit", "explicit",
    )  # fmt: skip


BOTH = (IMPLICIT, CUTLASS)
# (forward, backward) as users write them, and the names that the module keeps.
MODULE_FORMS = {
    "members": (FWD.IMPLICIT_GEMM, BWD.IMPLICIT_GEMM, ((IMPLICIT,), (IMPLICIT,))),
    "lists": (
        [FWD.IMPLICIT_GEMM, FWD.CUTLASS_IMPLICIT_GEMM],
        [BWD.IMPLICIT_GEMM, "cutlass_implicit_gemm"],
        (BOTH, BOTH),
    ),
    "string": ("[implicit_gemm]", "implicit_gemm", ((IMPLICIT,), (IMPLICIT,))),
}


@forms(MODULE_FORMS)
def test_modules(fwd, bwd, expected):
    """Every spelling becomes the canonical names, in the user's order, hashable since modules are
    compared by their static attributes; other requests stay open."""
    nnx = pytest.importorskip("flax.nnx")
    from voxax.nn.modules import SpatiallySparseConv

    module = SpatiallySparseConv(
        in_channels=3, out_channels=4, kernel_size=3, fwd_algo=fwd, bwd_algo=bwd
    )
    graph, state = nnx.split(module)
    hash(tuple(module.options.values()))
    assert (module.options["fwd_algo"], module.options["bwd_algo"]) == expected
    assert (module.options["dgrad_algo"], module.options["wgrad_algo"]) == (None, None)

    def layer(features, weight):
        merged = nnx.merge(graph, state, copy=True)
        merged.weight[...] = weight
        return merged(small_voxels().replace_features(features)).features

    assert products(layer, dense_weight()) == only(IMPLICIT)


def test_modules_are_equal_whatever_the_spelling():
    nnx = pytest.importorskip("flax.nnx")
    from voxax.nn.modules import SpatiallySparseConv, SpatiallySparseDepthwiseConv

    def graph(fwd, bwd):
        return nnx.split(SpatiallySparseConv(2, 2, 1, fwd_algo=fwd, bwd_algo=bwd))[0]

    assert graph("IMPLICIT_GEMM", None) == graph([FWD.IMPLICIT_GEMM], None)
    assert graph("auto", None) != graph(None, None)  # the environment may say otherwise
    with pytest.raises(vx.AlgorithmError, match=r"bwd_algo: unknown algorithm 'typo'; known: "):
        SpatiallySparseConv(2, 2, bwd_algo="typo")
    with pytest.raises(vx.AlgorithmError, match=r"fwd_algo: unknown.*'cutlass_implicit_gemm'"):
        SpatiallySparseDepthwiseConv(2, fwd_algo=[FWD.CUTLASS_IMPLICIT_GEMM])


def test_the_unavailable_member_is_skipped_with_one_logged_reason(caplog):
    tuner._warn_once.cache_clear()  # once in a process
    with caplog.at_level(logging.DEBUG, logger="voxax.tuning"):
        chosen = conv(
            fwd_algo=[FWD.IMPLICIT_GEMM, FWD.CUTLASS_IMPLICIT_GEMM],
            bwd_algo=[BWD.IMPLICIT_GEMM, BWD.CUTLASS_IMPLICIT_GEMM],
        )
    assert chosen == only(IMPLICIT)
    (line,) = [r.getMessage() for r in caplog.records if CUTLASS in r.getMessage()]
    assert "GPU" in line


@pytest.mark.parametrize("product", ["fwd_algo", "bwd_algo", "dgrad_algo", "wgrad_algo"])
def test_pinned_alone_it_is_an_error_with_the_reason(product):
    with pytest.raises(vx.AlgorithmError, match=r"cutlass_implicit_gemm.*GPU"):
        conv(**{product: "cutlass_implicit_gemm"})


def test_a_pin_runs_eagerly_too():
    with pytest.raises(vx.AlgorithmError, match=r"cutlass_implicit_gemm.*GPU"):
        spatially_sparse_conv(small_voxels(), dense_weight(), fwd_algo="cutlass_implicit_gemm")


def test_requests_are_fixed_when_the_forward_is_traced():
    """A function that ``jax.vjp`` returned, called where something else is asked for."""
    with vx.algorithms(backward="implicit_gemm"):
        _, back = jax.vjp(
            lambda w: spatially_sparse_conv(small_voxels(), w).features, dense_weight()
        )

    cotangent = np.ones((small_voxels().capacity, 4), np.float32)
    with vx.algorithms(backward="explicit_gemm"), record_choices() as records:
        jax.jit(lambda ct: back(ct)).lower(cotangent)
    assert [(c.problem.product, c.algorithm) for c in records] == [("wgrad", IMPLICIT)]


@pytest.mark.parametrize(
    ("members", "kind"),
    [(FWD, "dense"), (BWD, "dense"), (DEPTH_FWD, "depthwise"), (DEPTH_BWD, "depthwise")],
)
def test_members_are_the_registered_names(members, kind):
    assert [member.value for member in members] == [*names(kind), "auto", "all"]
    assert members.AUTO == "auto"
    assert names("grouped") == names("dense")
