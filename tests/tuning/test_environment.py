"""Check the requests of the environment, and when it is read."""

import logging
import threading

import jax
import pytest
from lowered import conv, dense_weight, depthwise, only, small_voxels

import voxax as vx
from voxax.nn.functional import spatially_sparse_conv
from voxax.tuning import admitted, record_choices, request

EXPLICIT, IMPLICIT = "explicit_gemm", "implicit_gemm"
ANY = {EXPLICIT, IMPLICIT}


@pytest.fixture(autouse=True)
def _clean():
    request._warn_of_peer.cache_clear()


@pytest.fixture
def setenv(monkeypatch):
    """``setenv(FWD="auto")`` sets ``VOXAX_FWD_ALGO_MODE``."""

    def set_variables(prefix="VOXAX", **values):
        for stem, value in values.items():
            monkeypatch.setenv(f"{prefix}_{stem}_ALGO_MODE", value)

    return set_variables


VALUES = {
    "implicit_gemm": {IMPLICIT},
    "[implicit_gemm,cutlass_implicit_gemm]": {IMPLICIT},
    "[explicit_gemm,implicit_gemm]": ANY,
    "auto": ANY,
    " [ Implicit_GEMM , cutlass_implicit_gemm ] ": {IMPLICIT},
    "": ANY,
}
DEPTHWISE_VALUES = {
    "explicit": {"explicit"},
    "implicit_gemm": {"implicit"},
    "[explicit,implicit]": {"explicit", "implicit"},
    "[explicit_gemm,implicit_gemm]": {"explicit", "implicit"},
    "auto": {"explicit", "implicit"},
}


@pytest.mark.parametrize(("value", "expected"), VALUES.items())
def test_dense_variables(setenv, value, expected):
    setenv(FWD=value, BWD=value)
    assert set(conv()) <= expected


@pytest.mark.parametrize(("value", "expected"), DEPTHWISE_VALUES.items())
def test_depthwise_variables(setenv, value, expected):
    setenv(DEPTHWISE_CONV_FWD=value, DEPTHWISE_CONV_BWD=value)
    assert set(depthwise()) <= expected


def test_names_from_warpconvnet(setenv):
    """Check that values under the other prefix admit the same."""
    setenv("WARPCONVNET", FWD="implicit_gemm", BWD="[explicit_gemm,cutlass_implicit_gemm]")
    assert conv() == (IMPLICIT, EXPLICIT, EXPLICIT)
    setenv("WARPCONVNET", DEPTHWISE_CONV_FWD="implicit_gemm", DEPTHWISE_CONV_BWD="explicit")
    assert depthwise() == ("implicit", "explicit", "explicit")
    for values, stem in ((VALUES, ""), (DEPTHWISE_VALUES, "DEPTHWISE_CONV_")):
        kind = "depthwise" if stem else "dense"
        for value in values:
            setenv("WARPCONVNET", **{f"{stem}FWD": value, f"{stem}BWD": value})
            for product in ("forward", "dgrad", "wgrad"):
                asked = admitted(value or "auto", kind=kind, product=product).names
                assert admitted(None, kind=kind, product=product).names == asked


def test_each_variable_has_its_products(setenv):
    setenv(FWD="implicit_gemm", BWD="explicit_gemm")
    assert conv() == (IMPLICIT, EXPLICIT, EXPLICIT)
    setenv(WGRAD="implicit_gemm")
    assert conv() == (IMPLICIT, EXPLICIT, IMPLICIT)
    setenv(DGRAD="implicit_gemm", WGRAD=" ")
    assert conv() == (IMPLICIT, IMPLICIT, EXPLICIT)
    setenv(DEPTHWISE_CONV_FWD="implicit", DEPTHWISE_CONV_BWD="explicit")
    assert depthwise() == ("implicit", "explicit", "explicit")


def test_who_decides(setenv):
    """Argument, then overlay, then VOXAX_, then WARPCONVNET_."""
    setenv("WARPCONVNET", FWD="implicit_gemm", DGRAD="explicit_gemm", BWD="implicit_gemm")
    assert conv() == (IMPLICIT, EXPLICIT, IMPLICIT)
    setenv(FWD="explicit_gemm", BWD="implicit_gemm")
    assert conv() == (EXPLICIT, IMPLICIT, IMPLICIT)
    with vx.algorithms(forward="implicit_gemm"):
        assert conv() == only(IMPLICIT)
        assert conv(fwd_algo="explicit_gemm")[0] == EXPLICIT
    with vx.algorithms(forward="auto"):
        assert conv()[0] in ANY
    assert conv(fwd_algo="auto")[0] in ANY


@pytest.mark.parametrize("value", ["typo", "[]", "[implicit_gemm", "a,b"])
def test_a_bad_value_is_an_error_that_names_the_variable(setenv, value):
    setenv(FWD=value)
    with pytest.raises(vx.AlgorithmError) as caught:
        conv()
    assert f"VOXAX_FWD_ALGO_MODE={value}: " in str(caught.value)
    assert conv(fwd_algo="implicit_gemm", bwd_algo="implicit_gemm") == only(IMPLICIT)


def test_names_of_a_peer_are_skipped_with_one_warning(setenv):
    setenv("WARPCONVNET", FWD="[cute_grouped,implicit_gemm]", BWD="mask_implicit_gemm")
    with pytest.warns(UserWarning, match="voxax has no algorithm") as warned:
        assert conv()[0] == IMPLICIT
    texts = sorted(str(w.message) for w in warned)
    assert len(texts) == 2  # one for each variable, although BWD decides for two products
    assert "WARPCONVNET_BWD_ALGO_MODE=mask_implicit_gemm" in texts[0]
    assert "all algorithms are admitted" in texts[0]
    assert "no algorithm 'cute_grouped'; the others are used" in texts[1]
    assert "VOXAX_FWD_ALGO_MODE takes precedence" in texts[1]
    conv()  # no second warning, which would be an error here


def layer():
    """A jitted convolution and ``called()``: what its call lowered, () if nothing."""
    voxels = small_voxels()
    function = jax.jit(lambda w: spatially_sparse_conv(voxels, w).features)

    def called():
        with record_choices() as records:
            function(dense_weight())
        return tuple(choice.algorithm for choice in records)

    return called


def test_reload_reaches_compiled_programs(setenv):
    setenv(FWD="explicit_gemm")
    called = layer()
    assert called() == (EXPLICIT,)
    setenv(FWD="implicit_gemm")
    assert called() == ()  # already compiled: keeps its choice
    vx.reload_environment()
    assert called() == (IMPLICIT,)
    assert called() == ()
    # Back again: what was compiled for another environment in between is not taken for this one.
    setenv(FWD="explicit_gemm")
    vx.reload_environment()
    assert called() == (EXPLICIT,)


def test_reload_reaches_other_threads_and_overlays(setenv):
    setenv(FWD="explicit_gemm")
    called, found = layer(), {}
    assert called() == (EXPLICIT,)
    setenv(FWD="implicit_gemm")
    with vx.algorithms(backward="explicit_gemm"):
        vx.reload_environment()
        assert called() == (IMPLICIT,)
        setenv(FWD="explicit_gemm")
        vx.reload_environment()
        assert called() == (EXPLICIT,)
    setenv(FWD="implicit_gemm")
    vx.reload_environment()
    thread = threading.Thread(target=lambda: found.update(chosen=called()))
    thread.start()
    thread.join()
    assert found == {"chosen": (IMPLICIT,)}


def test_reload_reaches_the_eager_programs():
    """They are jitted per product, and would keep what ``VOXAX_AUTOTUNE`` made them choose."""
    voxels, weight = small_voxels(), dense_weight()

    def called():
        with record_choices() as records:
            spatially_sparse_conv(voxels, weight, fwd_algo=["implicit_gemm", "explicit_gemm"])
        return len(records)

    called()
    assert called() == 0
    vx.reload_environment()
    assert called() == 1
    assert called() == 0


def test_reload_on_jax_0_10_0(monkeypatch):
    """Check that caches are cleared if a context has no global value."""
    from voxax import _compat

    cleared = []
    monkeypatch.setattr(_compat, "_environment_token", object())
    monkeypatch.setattr(jax, "clear_caches", lambda: cleared.append(True))
    vx.reload_environment()
    assert cleared == [True]


@pytest.mark.parametrize(
    ("value", "expected"), [("", "on"), ("on", "on"), (" CACHED ", "cached"), ("Off", "off")]
)
def test_autotune_modes(monkeypatch, value, expected):
    monkeypatch.setenv("VOXAX_AUTOTUNE", value)
    assert request.autotune_mode() == expected


READERS = {
    "VOXAX_AUTOTUNE": request.autotune_mode,
    "VOXAX_AUTOTUNE_LOG": request.configure_log,
}


@pytest.mark.parametrize("variable", READERS)
def test_unknown_modes(monkeypatch, variable):
    monkeypatch.setenv(variable, "maybe")
    with pytest.raises(vx.InputError, match=rf"{variable}=maybe: expected one of .*off"):
        READERS[variable]()


@pytest.fixture
def logger(monkeypatch):
    """The tuner's logger, as in a program that has set up no logging."""
    logger = logging.Manager(logging.RootLogger(logging.WARNING)).getLogger("voxax.tuning")
    monkeypatch.setattr(request, "LOGGER", logger)
    monkeypatch.setattr(request, "_configured", ("", None))
    return logger


def test_log_levels(monkeypatch, logger, capsys):
    monkeypatch.setenv("VOXAX_AUTOTUNE_LOG", "")
    request.configure_log()
    assert logger.handlers == []  # unset: the application's own business
    monkeypatch.setenv("VOXAX_AUTOTUNE_LOG", "info")
    request.configure_log()
    request.configure_log()
    logger.info("a line")
    logger.debug("too much")
    assert capsys.readouterr().err == "voxax.tuning: a line\n"
    monkeypatch.setenv("VOXAX_AUTOTUNE_LOG", "DEBUG")
    request.configure_log()
    logger.debug("another")
    assert capsys.readouterr().err == "voxax.tuning: another\n"
    monkeypatch.setenv("VOXAX_AUTOTUNE_LOG", "off")
    request.configure_log()
    assert not logger.isEnabledFor(logging.CRITICAL)
    monkeypatch.delenv("VOXAX_AUTOTUNE_LOG")
    request.configure_log()
    assert logger.level == logging.NOTSET
    assert logger.handlers == []


def test_log_lines_are_not_doubled(monkeypatch, logger):
    """An application's own handler gets the lines, and no other is added."""
    handler = logging.NullHandler()
    logger.addHandler(handler)
    monkeypatch.setenv("VOXAX_AUTOTUNE_LOG", "info")
    request.configure_log()
    assert logger.handlers == [handler]
    assert logger.level == logging.INFO
