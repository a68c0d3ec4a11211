"""Caches of language models: what they write each call, and what they return."""

import pytest

import voxax as vx

pytestmark = [
    pytest.mark.torch,
    pytest.mark.lax_promotion,
    # Of PyTorch itself, when it is imported and when it exports, and of transformers.
    pytest.mark.filterwarnings("ignore"),
]


def attention(write):
    """A layer of attention over a cache of fixed size, which `write` fills."""
    import torch

    class Attention(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.project = torch.nn.Linear(4, 8)
            self.out = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.SiLU())
            self.register_buffer("keys", torch.zeros(1, 6, 4))
            self.register_buffer("values", torch.zeros(1, 6, 4))

        def forward(self, x, position):
            key, value = self.project(x).chunk(2, -1)
            write(self.keys, position, key)
            write(self.values, position, value)
            weights = (x @ self.keys.mT).softmax(-1)
            return self.out(torch.tanh(weights @ self.values) + x)

    return Attention(), (torch.ones(1, 1, 4), torch.tensor([2]))


def by_index_copy(cache, position, rows):
    cache.index_copy_(1, position, rows)


def by_item(cache, position, rows):
    cache[:, position] = rows


def by_view(cache, position, rows):
    cache[:, 2:3].copy_(rows)


def by_scatter(cache, position, rows):
    cache.scatter_(1, position[None, :, None].expand_as(rows), rows)


WRITES = (by_index_copy, by_item, by_view, by_scatter)


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_static_cache_has_a_note_for_each_write(write):
    import torch

    model, inputs = attention(write)
    report = vx.check_static(model, *inputs)
    assert report.verdict == "static", str(report)
    found = [(f.code, f.severity, f.file) for f in report.findings]
    assert set(found) == {("VX311", "note", __file__)}
    # Both caches are written by one line.
    assert len(found) == 1
    assert "tracer" not in str(report).lower()
    assert not model.keys.requires_grad
    with torch.no_grad():
        assert not vx.check_static(model, *inputs).findings


def test_captured_cache_is_left_as_it_was():
    import torch

    cache, layer = torch.zeros(3, 4), torch.nn.Linear(4, 4)

    def model(x):
        cache.index_copy_(0, torch.tensor([1]), layer(x))
        return cache.sum(0)

    report = vx.check_static(model, torch.ones(1, 4))
    assert {f.code for f in report.findings} <= {"VX311"}, str(report)
    assert not cache.requires_grad


def test_what_python_keeps_is_an_error_with_its_own_line_alone():
    """The steps that led to it are held by the graph of gradients only."""
    import torch

    class Kept(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.mean = torch.nn.Linear(4, 4), torch.zeros(4)

        def forward(self, x):
            y = torch.tanh(self.linear(x))
            y = torch.sin(y)
            self.mean = self.mean * 0.9 + y.mean(0)  # kept
            return y + self.mean

    (finding,) = vx.check_static(Kept(), torch.ones(2, 4)).findings
    assert finding.code == "VX301"
    assert "# kept" in finding.excerpt()
    assert "exported program" in finding.why
    assert "racer" not in str(finding.why)


@pytest.mark.parametrize("what", ["output", "input"])
def test_class_that_export_does_not_know(what):
    import torch

    class Cache:
        def __init__(self, rows):
            self.rows = rows

    class Model(torch.nn.Module):
        def forward(self, x, cache):
            y = x * cache if what == "output" else x * cache.rows
            return (y, Cache(y)) if what == "output" else y

    rows = torch.ones(3)
    report = vx.check_static(Model(), rows, rows if what == "output" else Cache(rows))
    (finding,) = report.findings
    assert (finding.code, finding.file) == ("VX192", __file__)
    assert f"the {what} has a `" in finding.message
    assert "Cache`" in finding.message
    assert ("return (y, Cache" if what == "output" else "def forward") in finding.excerpt()
    assert "register" in finding.fix


def transformers():
    return pytest.importorskip("transformers", reason="transformers is not installed")


def test_llama_with_static_cache():
    import torch

    library = transformers()
    config = library.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=32, vocab_size=50,
    )  # fmt: skip

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = library.LlamaForCausalLM(config).eval()
            self.cache = library.StaticCache(config=config, max_cache_len=8)

        def forward(self, ids, position):
            given = {"past_key_values": self.cache, "use_cache": True}
            return self.model(input_ids=ids, position_ids=position[None], **given).logits

    report = vx.check_static(Model(), torch.tensor([[3]]), torch.tensor([2]))
    assert report.verdict == "static", str(report)
    assert {f.severity for f in report.findings} <= {"note"}, str(report)
    assert len(report.findings) <= 2  # keys and values


def test_gpt2_with_dynamic_cache():
    import torch

    library = transformers()
    config = library.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = library.GPT2LMHeadModel(config).eval()

        def forward(self, ids):
            return self.model(ids)

    (finding,) = vx.check_static(Model(), torch.tensor([[1, 2, 3]])).findings
    assert (finding.code, finding.file) == ("VX192", __file__)
    assert "DynamicCache" in finding.message
    assert "use_cache=False" in finding.fix


def test_page_of_the_note(request):
    from check.test_pages import BLOCK

    page = request.config.rootpath / "docs" / "check" / "VX311.md"
    shown = {}
    exec("\n".join(BLOCK.findall(page.read_text())), shown)
    assert {f.code for f in vx.check_static(shown["wrong"], shown["x"]).findings} == {"VX311"}
    assert not vx.check_static(shown["right"], shown["x"]).findings
