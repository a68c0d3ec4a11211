"""``with vx.algorithms(...)``: part of the key of every jitted function called inside."""

import threading

import jax
import jax.numpy as jnp
import pytest
from lowered import conv, dense_weight, depthwise, small_voxels

import voxax as vx
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import record_choices

EXPLICIT, IMPLICIT = "explicit_gemm", "implicit_gemm"


@pytest.fixture(autouse=True)
def _explicit_by_default(monkeypatch):
    """Fix the choices, so that every choice here is known."""
    for stem in ("FWD", "BWD", "DEPTHWISE_CONV_FWD", "DEPTHWISE_CONV_BWD"):
        monkeypatch.setenv(f"VOXAX_{stem}_ALGO_MODE", "explicit")


def test_fields():
    with vx.algorithms(forward=IMPLICIT):
        assert conv() == (IMPLICIT, EXPLICIT, EXPLICIT)
        assert depthwise() == ("explicit", "explicit", "explicit")
    with vx.algorithms(backward=IMPLICIT):
        assert conv() == (EXPLICIT, IMPLICIT, IMPLICIT)
    with vx.algorithms(backward=IMPLICIT, dgrad=EXPLICIT):
        assert conv() == (EXPLICIT, EXPLICIT, IMPLICIT)
    with vx.algorithms(wgrad=[IMPLICIT]):
        assert conv() == (EXPLICIT, EXPLICIT, IMPLICIT)
    with vx.algorithms(depthwise_forward="implicit"):
        assert depthwise() == ("implicit", "explicit", "explicit")
    with vx.algorithms(depthwise_backward="implicit_gemm"):
        assert depthwise() == ("explicit", "implicit", "implicit")
        assert conv() == (EXPLICIT, EXPLICIT, EXPLICIT)
    with vx.algorithms():
        assert conv() == (EXPLICIT, EXPLICIT, EXPLICIT)


def test_nested():
    outer = vx.algorithms(forward=IMPLICIT, dgrad=IMPLICIT)
    with outer:
        with vx.algorithms(backward=EXPLICIT):  # an inner backward beats an outer dgrad
            assert conv() == (IMPLICIT, EXPLICIT, EXPLICIT)
        with vx.algorithms(forward=EXPLICIT), outer:  # entered inside itself
            assert conv() == (IMPLICIT, IMPLICIT, EXPLICIT)
        assert conv() == (IMPLICIT, IMPLICIT, EXPLICIT)
        with vx.algorithms(forward="auto"):
            assert conv()[0] in (EXPLICIT, IMPLICIT)
    assert conv() == (EXPLICIT, EXPLICIT, EXPLICIT)
    with outer:  # and again
        assert conv()[0] == IMPLICIT


def test_an_argument_beats_it():
    with vx.algorithms(forward=IMPLICIT, backward=IMPLICIT):
        assert conv(fwd_algo=EXPLICIT, wgrad_algo=EXPLICIT) == (EXPLICIT, IMPLICIT, EXPLICIT)


def test_left_through_an_exception():
    with pytest.raises(RuntimeError, match="inside"), vx.algorithms(forward=IMPLICIT):
        raise RuntimeError("inside")
    assert conv()[0] == EXPLICIT


def test_as_a_decorator():
    @vx.algorithms(forward=IMPLICIT)
    def decorated():
        return conv()

    assert decorated()[0] == decorated()[0] == IMPLICIT
    assert conv()[0] == EXPLICIT


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"forward": "typo"}, r"vx\.algorithms\(forward=\): unknown algorithm 'typo'; known: "),
        ({"backward": []}, r"vx\.algorithms\(backward=\): an empty list"),
        ({"dgrad": 1}, r"vx\.algorithms\(dgrad=\): 1 of type int"),
        ({"depthwise_forward": "cutlass_implicit_gemm"}, r"depthwise_forward=\): unknown"),
    ],
)
def test_names_are_checked_when_it_is_made(arguments, message):
    with pytest.raises(vx.AlgorithmError, match=message):
        vx.algorithms(**arguments)


def test_repr():
    made = vx.algorithms(forward="Implicit", depthwise_backward="auto")
    assert repr(made) == (
        "voxax.algorithms(forward=['implicit_gemm'], depthwise_backward=['auto'])"
    )


def test_it_has_its_reason_when_nothing_is_left():
    with (
        pytest.raises(vx.AlgorithmError, match="GPU"),
        vx.algorithms(wgrad="cutlass_implicit_gemm"),
    ):
        conv()


def loss(weight):
    return jnp.sum(spatially_sparse_conv(small_voxels(), weight).features ** 2)


def forward_choice(function, *arguments):
    """The algorithm that forward is lowered with in a call, None where nothing is lowered."""
    with record_choices() as records:
        function(*arguments)
    found = {c.algorithm for c in records if c.problem.product == "forward"}
    return found.pop() if found else None


def scanned(weight):
    def step(total, _):
        return total + loss(weight), None

    return jax.lax.scan(step, jnp.zeros(()), None, length=2)[0]


# Called, or only lowered where that says as much in less time.
TRANSFORMED = {
    "jit": lambda: jax.jit(loss),
    "nnx.jit": lambda: pytest.importorskip("flax.nnx").jit(loss),
    "grad": lambda: jax.jit(jax.grad(loss)).lower,
    "vmap": lambda: jax.jit(lambda w: jax.vmap(loss)(jnp.stack([w, w]))).lower,
    "scan": lambda: jax.jit(scanned).lower,
    "checkpoint": lambda: jax.jit(jax.grad(jax.checkpoint(loss))).lower,
    "jit in jit": lambda: jax.jit(lambda w: jax.jit(loss)(w)).lower,
}


@pytest.mark.parametrize("transform", TRANSFORMED.values(), ids=TRANSFORMED.keys())
def test_retraced_for_a_new_overlay_found_again_for_an_old_one(transform):
    function = transform()
    weight = dense_weight()
    assert forward_choice(function, weight) == EXPLICIT
    with vx.algorithms(forward=IMPLICIT):
        assert forward_choice(function, weight) == IMPLICIT
    assert forward_choice(function, weight) is None
    with vx.algorithms(forward=["Implicit"]):  # the same overlay, made anew and spelled otherwise
        assert forward_choice(function, weight) is None
    with vx.algorithms(forward=EXPLICIT), vx.algorithms(forward=IMPLICIT):
        assert forward_choice(function, weight) is None


def test_eager_calls():
    weight = dense_weight()
    with record_choices() as records:
        for name in (EXPLICIT, IMPLICIT):
            vx.reload_environment()
            with vx.algorithms(forward=name):
                loss(weight)
    assert [choice.algorithm for choice in records] == [EXPLICIT, IMPLICIT]


def test_entered_inside_a_traced_function():
    def mixed(weight):
        with vx.algorithms(forward=IMPLICIT):
            inside = jax.jit(loss)(weight)
        return inside + jax.jit(loss)(weight)

    with record_choices() as records:
        jax.jit(mixed).lower(dense_weight())
    assert sorted(choice.algorithm for choice in records) == [EXPLICIT, IMPLICIT]


def test_threads():
    """A thread inherits none, may enter the same object, and leaves the others alone."""
    shared, found = vx.algorithms(forward=IMPLICIT), {}
    inside, leave = threading.Event(), threading.Event()

    def plain():
        found["plain"] = conv()[0]

    def entered():
        with shared:
            inside.set()
            leave.wait(30)
            found["entered"] = conv()[0]

    other = threading.Thread(target=entered)
    other.start()
    inside.wait(30)
    assert conv()[0] == EXPLICIT
    with shared:
        inner = threading.Thread(target=plain)
        inner.start()
        inner.join()
        leave.set()
        other.join()
        assert conv()[0] == IMPLICIT
    assert found == {"plain": EXPLICIT, "entered": IMPLICIT}
    assert conv()[0] == EXPLICIT
