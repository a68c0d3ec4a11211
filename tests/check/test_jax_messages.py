"""What is said about what JAX refuses: JAX's own message, whole, and nothing that is not so."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import voxax as vx

pytestmark = pytest.mark.lax_promotion

X = np.array([3.0, -1.0, 2.0], np.float32)


def scan_of_another_dtype(x):
    return jax.lax.scan(lambda total, v: (total + v * 1.5, total), jnp.int32(0), x)


def scan_with_a_bad_body_later(x):
    return jax.lax.scan(lambda c, v: (jnp.stack([c, c]), v), x[0], x)


def while_of_another_length(x):
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1], 2.0), (0, x))


def branches_of_other_structures(x):
    return jax.lax.cond(x.sum() > 0, lambda x: (x, x), lambda x: x, x)


def branches_of_other_dtypes(x):
    return jax.lax.cond(x.sum() > 0, lambda x: x, lambda x: x.astype(jnp.int32), x)


def loop_that_grows(x):
    return jax.lax.fori_loop(0, 3, lambda _, c: jnp.concatenate([c, c]), x)


def switch_of_other_shapes(x):
    return jax.lax.switch(1, [lambda x: x, lambda x: x[:2]], x)


REFUSED = (
    scan_of_another_dtype,
    scan_with_a_bad_body_later,
    while_of_another_length,
    branches_of_other_structures,
    branches_of_other_dtypes,
    loop_that_grows,
    switch_of_other_shapes,
)


@pytest.mark.parametrize("model", REFUSED, ids=lambda f: f.__name__)
def test_message_is_that_of_jax(model):
    (finding,) = vx.check_static(model, X).findings
    assert finding.code == "VX190"
    with pytest.raises(TypeError) as raised:
        jax.jit(model)(X)
    assert " ".join(str(raised.value).split()) in finding.message
    assert "\n" not in finding.message
    assert "without jit it runs" not in finding.fix  # there JAX traces the bodies too


def test_carry_is_named():
    (finding,) = vx.check_static(scan_of_another_dtype, X).findings
    assert "The input carry total has type int32[]" in finding.message


def mistake_of_shapes(x):
    return jax.lax.map(lambda v: v, x) @ jnp.ones(99)


def mistake_in_a_body(x):
    return jax.lax.scan(lambda c, v: (c + jnp.ones((4, 4)) @ x, v), 0.0, x)


def mistake_of_types(x):
    return x @ "text"


def axes_of_other_lengths(x):
    return jax.vmap(lambda a, b: a + b)(x, jnp.ones(7))


@pytest.mark.parametrize(
    "model", [mistake_of_shapes, mistake_in_a_body, mistake_of_types, axes_of_other_lengths]
)
def test_own_mistakes_stay_own(model):
    (finding,) = vx.check_static(model, X).findings
    assert finding.code == "VX191"
    with pytest.raises((TypeError, ValueError)) as raised:
        model(jnp.asarray(X))
    if model is not mistake_of_types:  # which names its operands
        assert " ".join(str(raised.value).split()) in finding.message


def test_other_mistakes_beside_a_question_are_those_of_jax():
    def model(x):
        if x.sum() > 0:
            x = x * 2
        return scan_of_another_dtype(x)

    found = {f.code: f for f in vx.check_static(model, X).findings}
    assert "VX101" in found
    assert "VX191" not in found


NAMES = {f"layer_{i}": X * i for i in range(3)}


def test_value_in_a_name_is_a_key():
    def model(params, x, i):
        return x * params[f"layer_{i}"]

    (finding,) = vx.check_static(model, NAMES, X, jnp.int32(1)).findings
    assert finding.code == "VX115"
    assert finding.arguments == ("i",)
    report = vx.check_static(model, NAMES, X, 1, verify=True)
    assert report.verdict == "static per value"
    assert report.static_arguments == ("i",)
    assert report.verification.holds


def test_text_that_names_nothing_is_no_finding(capsys):
    def model(x):
        print(f"the sum is {x.sum()}")  # noqa: T201
        return x if x.sum() > 0 else -x

    assert [f.code for f in vx.check_static(model, X).findings] == ["VX101"]
    assert "the sum is 4.0" in capsys.readouterr().out


OPTIMIZER = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))


def stepped(loss):
    def step(params, state, x):
        gradients = jax.grad(loss)(params, x)
        updates, state = OPTIMIZER.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    params = jnp.ones(3)
    return vx.check_static(step, params, OPTIMIZER.init(params), X)


def test_clipped_gradients_are_not_differentiated():
    assert not stepped(lambda params, x: ((params * x) ** 2).sum()).findings


def test_loss_of_a_step_is():
    def loss(params, x):
        y = params * x
        return jnp.where(y > 0, jnp.sqrt(y), 0.0).sum()

    (finding,) = stepped(loss).findings
    assert finding.code == "VX307"
    assert "jnp.sqrt(y)" in finding.excerpt()


@pytest.mark.parametrize("name", ["roots", "trim_zeros"])
def test_results_that_a_size_bounds(name):
    report = vx.check_static(lambda x: getattr(jnp, name)(x), X)
    assert report.verdict == "bounded dynamic", str(report)
    assert [f.code for f in report.findings] == ["VX106"]
