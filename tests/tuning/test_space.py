"""Check the candidates of a problem: those of the request that run here, with their views."""

import itertools
import json

import pytest

import problems
from voxax.geometry import PAIR_ROOM, KernelSpec
from voxax.hardware import HardwareInfo
from voxax.kernels import lookup, names
from voxax.tuning.entry import Measured
from voxax.tuning.space import Candidate, space_of, views_of

CPU, GPU, TPU = (HardwareInfo(platform=p, device_kind="some") for p in ("cpu", "gpu", "tpu"))
PRODUCTS = ("forward", "dgrad", "wgrad")
KINDS = ("dense", "grouped", "depthwise")


def make_problem(product="forward", kind="dense", rows=1000, out_rows=None, **changes):
    fields = {
        "product": product,
        "kind": kind,
        "in_capacity": rows,
        "out_capacity": rows if out_rows is None else out_rows,
        "num_offsets": 27,
        "in_channels": 16,
        "out_channels": 16,
        "groups": 4 if kind == "grouped" else 1,
        "dtype": "float32",
        "precision": "highest",
        "symmetric": True,
        "platform": "cpu",
    }
    return problems.make_problem(**{**fields, **changes})


def everything(problem, hardware=CPU, views=None):
    return space_of(problem, names(problem.layer.kind), hardware, views)


EVERY_PROBLEM = [
    make_problem(product, kind, rows, out_rows, platform=hardware.platform)
    for product, kind, (rows, out_rows), hardware in itertools.product(
        PRODUCTS,
        KINDS,
        ((0, 0), (1, 1), (48, 48), (1000, 7), (10**4, 10**5), (2**21, 2**21)),
        (CPU, GPU, TPU),
    )
]


def test_every_problem_has_candidates_with_parameters_in_order():
    for problem in EVERY_PROBLEM:
        hardware = {"cpu": CPU, "gpu": GPU, "tpu": TPU}[problem.platform]
        space = everything(problem, hardware)
        assert {c.kernel.name for c in space.candidates} >= set(names(problem.layer.kind)[:2])
        identities = [c.identity for c in space.candidates]
        assert len(set(identities)) == len(identities)
        for _, parameters, _ in identities:
            assert list(parameters) == sorted(parameters)
            assert all(type(value) in (int, str) for _, value in parameters)
        assert set(space.heuristics) <= set(space.candidates)


def test_every_algorithm_that_can_run_has_one_heuristic_in_the_requests_order():
    for request in itertools.permutations(names("dense")):
        space = space_of(make_problem(), request, CPU)
        runnable = [name for name in request if name != "cutlass_implicit_gemm"]
        assert [c.kernel.name for c in space.heuristics] == runnable
        seen = dict.fromkeys(c.kernel.name for c in space.candidates)
        assert list(seen) == runnable


def test_what_cannot_run_is_refused_with_its_reason():
    for problem, hardware, reason in (
        (make_problem(), CPU, "runs on NVIDIA GPUs only, not on cpu"),
        (make_problem(platform="gpu"), GPU, "how much shared memory"),
    ):
        space = space_of(problem, ("cutlass_implicit_gemm",), hardware)
        assert space.candidates == space.heuristics == ()
        ((name, why),) = space.refused
        assert name == "cutlass_implicit_gemm"
        assert reason in why
    ((name, why),) = space_of(make_problem(dtype="bool"), ("implicit_gemm",), CPU).refused
    assert "got bool" in why


def test_depthwise_has_algorithms_of_its_own():
    space = everything(make_problem(kind="depthwise"))
    assert {c.kernel.name for c in space.candidates} == {"explicit", "implicit"}
    assert space.refused == ()


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_only_what_the_views_serve(product, symmetric):
    problem = make_problem(product, symmetric=symmetric)
    table = "transposed_neighbors" if product == "dgrad" and not symmetric else "neighbors"

    tables = everything(problem, views=(table,))
    assert tables.candidates
    assert all(dict(c.parameters).get("formulation") != "pair_lists" for c in tables.candidates)
    assert set(tables.heuristics) <= set(tables.candidates)

    lists = everything(problem, views=("pairs", "pair_starts"))
    assert {dict(c.parameters).get("formulation") for c in lists.candidates} == {"pair_lists"}
    assert ("implicit_gemm", "the map came without the views it reads") in lists.refused

    nothing = everything(problem, views=())
    assert nothing.candidates == ()
    assert {name for name, _ in nothing.refused} == set(names("dense"))

    every = everything(problem)
    assert every == everything(problem, views=(table, "pairs", "pair_starts", "other"))
    assert set(every.candidates) == {*tables.candidates, *lists.candidates}


def test_what_is_preferred_for_views_that_did_not_come_has_no_advantage():
    tpu = HardwareInfo("tpu", "TPU v5 lite", vmem_bytes=2**27, smem_bytes=2**20, cores=1)
    problem = make_problem(
        platform="tpu", spec=KernelSpec.make(3, 3, 1), dtype="bfloat16", rows=4096
    )
    first = [everything(problem, tpu, views).heuristics[0] for views in (None, ("neighbors",))]
    assert dict(first[0].parameters)["body"] == "windows"
    assert first[1].kernel.name == "explicit_gemm"


def parameters_of(problem, name, hardware=CPU):
    return [dict(c.parameters) for c in space_of(problem, (name,), hardware).candidates]


@pytest.mark.parametrize("rows", [1, 48, 1000, 10**5])
def test_explicit_gemm_has_three_formulations(rows):
    found = parameters_of(make_problem(rows=rows, platform="gpu"), "explicit_gemm", GPU)
    assert {p["formulation"] for p in found} == {"im2col", "output_stationary", "pair_lists"}
    for parameters in found:
        assert ("block" in parameters) == (parameters["formulation"] == "pair_lists")
        assert parameters.get("block", 1) <= PAIR_ROOM, "read beyond the end of the lists"


def test_no_list_of_pairs_is_longer_than_32_bits_count():
    most = (2**31 - 2**15) // 27
    for rows, there in ((most, True), (2**31 // 27, False), (2**29, False)):
        found = parameters_of(make_problem(rows=rows), "explicit_gemm")
        assert any(p["formulation"] == "pair_lists" for p in found) == there
        assert any(p["formulation"] == "im2col" for p in found)


@pytest.mark.parametrize(("hardware", "platform"), [(CPU, "cpu"), (GPU, "gpu")])
def test_tiles_of_implicit_gemm_suit_the_rows_that_are_written(hardware, platform):
    def tiles(product="forward", **rows):
        problem = make_problem(product, platform=platform, **rows)
        found = parameters_of(problem, "implicit_gemm", hardware)
        return [p["fwd_block_size"] for p in found]

    assert tiles(rows=1) == [4]
    assert max(tiles(rows=48)) == 32
    assert min(tiles(rows=10**6)) >= 1024, "smaller ones make a loop of thousands of steps"
    down = {"rows": 10**6, "out_rows": 48, "symmetric": False}
    assert tiles(**down) == tiles(rows=48)
    assert tiles("dgrad", **down) == tiles(rows=10**6)


def test_stripes_are_tried_where_they_can_matter():
    problem = make_problem("wgrad")
    assert {p["split_k_factor"] for p in parameters_of(problem, "implicit_gemm")} == {1}
    on_gpu = parameters_of(make_problem("wgrad", platform="gpu"), "implicit_gemm", GPU)
    assert {p["split_k_factor"] for p in on_gpu} >= {1, 2, 4}
    assert all(set(p) == {"gemm_block_size", "split_k_factor"} for p in on_gpu)


def test_views_of_a_layer():
    pairs = {"pairs", "pair_starts"}

    def asked(admitted, every, symmetric=True):
        requests = [(make_problem(p, symmetric=symmetric), admitted) for p in PRODUCTS]
        found = views_of(requests, GPU, every)
        assert list(found) == sorted(found)
        return set(found)

    for every in (False, True):
        assert asked(("implicit_gemm",), every) == {"neighbors"}
        assert asked(("implicit_gemm",), every, False) == {"neighbors", "transposed_neighbors"}
    assert asked(("explicit_gemm",), True) == {"neighbors", *pairs}
    assert asked(("explicit_gemm",), True, False) == {"neighbors", "transposed_neighbors", *pairs}
    assert asked(("explicit_gemm",), False) == {"neighbors"}


def test_what_is_asked_for_serves_every_candidate():
    for problem in EVERY_PROBLEM:
        asked = views_of([(problem, names(problem.layer.kind))], CPU, every=True)
        assert everything(problem, views=asked).candidates == everything(problem).candidates


def test_a_candidate_says_what_it_is():
    kernel = lookup("implicit_gemm")[-1]
    candidate = Candidate(kernel, (("fwd_block_size", 16),))
    assert str(candidate) == "implicit_gemm(fwd_block_size=16)"
    assert candidate.identity == (
        "implicit_gemm", (("fwd_block_size", 16),), kernel.revision,
    )  # fmt: skip


@pytest.mark.parametrize("hardware", [CPU, GPU, TPU], ids=lambda hardware: hardware.platform)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("product", PRODUCTS)
def test_every_candidate_survives_the_cache_file(product, kind, hardware):
    problem = make_problem(product, kind, platform=hardware.platform, spec=KernelSpec.make(3, 3))
    candidates = everything(problem, hardware).candidates
    assert candidates
    for candidate in candidates:
        made = Measured(*candidate.identity, 1.0, "ok")
        assert Measured.from_json(json.loads(json.dumps(made.to_json()))) == made
