"""Requests of dynamic convolutions: arguments, overlays and the environment, as of static ones."""

import jax
import jax.numpy as jnp
import pytest
from lowered import dynamic, only

import voxax as vx
from voxax.kernels import names
from voxax.nn.functional import DYNAMIC_CONV_ALGO_MODE as MODE
from voxax.nn.functional import dynamic_conv
from voxax.tuning import admitted, record_choices

VARIABLES = [f"VOXAX_DYNAMIC_CONV_{way}_ALGO_MODE" for way in ("FWD", "BWD")]


# What users write, and what may come out; ``specialized`` needs sizes that are known. Every form is
# in test_requests.
FORMS = {
    "member": (MODE.TILED, {"tiled"}),
    "unavailable first": ([MODE.SPECIALIZED, MODE.TILED], {"tiled"}),
    "AUTO": (MODE.AUTO, set(names("dynamic"))),
    "any case, blanks": (" Tiled ", {"tiled"}),
    "mixed list": ([MODE.SPECIALIZED, "selected"], {"selected"}),
    "list in a string": ("[ specialized , tiled ]", {"tiled"}),
    "None": (None, set(names("dynamic"))),
}


def test_members_are_the_registered_names():
    assert [member.value for member in MODE] == [*names("dynamic"), "auto", "all"]


@pytest.mark.parametrize(("request_", "expected"), FORMS.values(), ids=FORMS.keys())
def test_arguments(request_, expected):
    """Check that overlays admit what the argument would."""
    assert set(dynamic(algorithm=request_)) <= expected
    with vx.algorithms(dynamic_forward=request_, dynamic_backward=request_):
        for product in ("forward", "dgrad", "wgrad"):
            asked = admitted(request_, kind="dynamic", product=product).names
            assert admitted(None, kind="dynamic", product=product).names == asked
            assert admitted(None, kind="dense", product=product).names == names("dense")


def test_the_environment(monkeypatch):
    monkeypatch.setenv(VARIABLES[0], " [specialized, Tiled] ")
    monkeypatch.setenv(VARIABLES[1], "masked")
    assert dynamic() == ("tiled", "masked", "masked")
    for kind in ("dense", "grouped", "depthwise"):
        assert admitted(None, kind=kind, product="dgrad").names == names(kind)


def test_who_decides(monkeypatch):
    """The argument, then the overlay, then the environment; those of other kinds never."""
    monkeypatch.setenv("VOXAX_FWD_ALGO_MODE", "explicit_gemm")
    monkeypatch.setenv("WARPCONVNET_DYNAMIC_CONV_FWD_ALGO_MODE", "selected")
    monkeypatch.setenv(VARIABLES[0], "tiled")
    monkeypatch.setenv(VARIABLES[1], "tiled")
    assert dynamic() == only("tiled")
    with vx.algorithms(dynamic_forward="masked", forward="implicit_gemm"):
        assert dynamic() == ("masked", "tiled", "tiled")
        assert dynamic(algorithm="selected") == only("selected")
        with vx.algorithms(dynamic_backward="grouped"):
            assert dynamic() == ("masked", "grouped", "grouped")
    monkeypatch.delenv(VARIABLES[0])
    assert dynamic()[0] in names("dynamic")


def test_an_overlay_is_part_of_the_key_of_jit():
    @jax.jit
    def f(x):
        return dynamic_conv(x, jnp.ones((3, 1, 2)), size=x[..., 0].astype(jnp.int32))

    x = jnp.ones((1, 7, 1))
    found = []
    for name in ("tiled", "masked", "tiled"):
        with vx.algorithms(dynamic_forward=name), record_choices() as records:
            f(x)
        found.append([choice.algorithm for choice in records])
    assert found == [["tiled"], ["masked"], []]


def test_refused(monkeypatch):
    with pytest.raises(vx.AlgorithmError, match=r"dynamic_forward=\): unknown algorithm 'typo'"):
        vx.algorithms(dynamic_forward="typo")
    with pytest.raises(vx.AlgorithmError, match=r"algorithm: unknown algorithm 'explicit_gemm'"):
        dynamic(algorithm="explicit_gemm")
    monkeypatch.setenv(VARIABLES[0], "typo")
    with pytest.raises(vx.AlgorithmError, match=f"{VARIABLES[0]}=typo: unknown"):
        dynamic()
    monkeypatch.setenv(VARIABLES[0], "specialized")
    with pytest.raises(vx.AlgorithmError, match="they are traced here"):
        dynamic()
    # Where only one way is there, a pin of another is an error that says who asked.
    monkeypatch.setenv(VARIABLES[0], "tiled")
    with pytest.raises(vx.AlgorithmError, match=f"{VARIABLES[0]}=tiled admits tiled: .*'masked'"):
        dynamic_conv(jnp.ones((1, 4, 1)), jnp.ones((3, 1, 1)), mask=jnp.ones((1, 4, 3)))


def test_modules():
    nnx = pytest.importorskip("flax.nnx")
    from voxax.nn.modules import DynamicConv

    def graph(algorithm):
        return nnx.split(DynamicConv(2, 2, 3, algorithm=algorithm))[0]

    assert graph("TILED") == graph([MODE.TILED])
    assert graph("auto") != graph(None)  # the environment may say otherwise
    x = jnp.ones((1, 4, 4, 2))
    module = DynamicConv(2, 2, 3)
    with vx.algorithms(dynamic_forward="tiled"), record_choices() as records:
        jax.jit(lambda x: module(x, size=2)).lower(x)
    assert [choice.algorithm for choice in records] == ["tiled"]
