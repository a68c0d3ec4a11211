"""Is what the checker says about public models what compiling them shows?

    pip install "torch==2.8.0" "torchvision==0.23.0" "torchax==0.0.7" "jax==0.10.2" \\
        "transformers==5.23.0" "timm==1.0.31" flax dm-haiku jraph equinox
    python benchmarks/check_public_models.py [--only NAME ...] [--out FILE]

Modules of libraries that install from the package index, configured tiny, with random weights and
no downloads. Each gets a verdict, which is then held against PyTorch or JAX: `torch.export` for
five inputs (and the program run on them) or `jax.jit`, see `verify=` of `vx.check_static`. A module
that is called static must give one program; one that is not must be refused, or have a size or a
value in its program that depends on data. What is not installed is named and left out; timm and
torchvision want a torchvision that was built for the installed PyTorch, and torchax, which lowers
PyTorch's programs to XLA, a PyTorch that is not much newer than itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
MODELS: dict[str, tuple[str, Callable[[], tuple[Any, tuple[Any, ...]]]]] = {}


def model(name: str, library: str) -> Callable[..., Any]:
    """Register a function that makes ``(module, inputs)``."""

    def add(build: Callable[[], tuple[Any, tuple[Any, ...]]]) -> Any:
        MODELS[name] = library, build
        return build

    return add


def _tokens(rows: int = 2, length: int = 8) -> Any:
    import torch

    return torch.arange(rows * length).reshape(rows, length) % 50


_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@model("BERT", "transformers")
def bert() -> Any:
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**_TINY, intermediate_size=32, vocab_size=50)).eval(), (_tokens(),)


@model("GPT-2", "transformers")
def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, use_cache=False)
    return GPT2LMHeadModel(config).eval(), (_tokens(),)


@model("Llama", "transformers")
def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**_TINY, intermediate_size=32, vocab_size=50, use_cache=False)
    return LlamaForCausalLM(config).eval(), (_tokens(),)


@model("ViT", "transformers")
def vit() -> Any:
    import torch
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(**_TINY, intermediate_size=32, image_size=16, patch_size=8)
    return ViTModel(config).eval(), (torch.randn(1, 3, 16, 16),)


@model("Wav2Vec2, training", "transformers")
def wav2vec2() -> Any:
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    config = Wav2Vec2Config(
        **_TINY,
        intermediate_size=32,
        conv_dim=(16, 16),
        conv_kernel=(3, 3),
        conv_stride=(2, 2),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        mask_time_length=2,
    )
    return Wav2Vec2Model(config).train(), (torch.randn(1, 200),)


@model("Switch Transformers, experts", "transformers")
def switch() -> Any:
    import torch
    from transformers import SwitchTransformersConfig
    from transformers.models.switch_transformers.modeling_switch_transformers import (
        SwitchTransformersSparseMLP,
    )

    config = SwitchTransformersConfig(d_model=16, d_ff=32, num_experts=3, num_heads=2)
    return SwitchTransformersSparseMLP(config).eval(), (torch.randn(2, 8, 16),)


@model("VITS, spline", "transformers")
def vits() -> Any:
    import torch
    from transformers import VitsConfig, VitsModel

    config = VitsConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=17,
        upsample_initial_channel=16,
        posterior_encoder_num_wavenet_layers=1,
        prior_encoder_num_wavenet_layers=1,
        prior_encoder_num_flows=1,
        depth_separable_num_layers=1,
        duration_predictor_num_flows=1,
        duration_predictor_filter_channels=16,
    )
    return VitsModel(config).eval(), (_tokens(1) + torch.zeros(1, 8, dtype=torch.long),)


@model("ConvNeXt", "timm")
def convnext() -> Any:
    import timm
    import torch

    net = timm.create_model(
        "convnext_atto", pretrained=False, depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)
    )
    return net.eval(), (torch.randn(1, 3, 32, 32),)


@model("Swin", "timm")
def swin() -> Any:
    import timm
    import torch

    options = {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (2,), "num_heads": (2,)}
    net = timm.create_model("swin_tiny_patch4_window7_224", pretrained=False, **options)
    return net.eval(), (torch.randn(1, 3, 32, 32),)


@model("ResNet with stochastic depth, training", "timm")
def resnet() -> Any:
    import timm
    import torch

    net = timm.create_model("resnet10t", pretrained=False, drop_path_rate=0.1)
    return net.train(), (torch.randn(2, 3, 32, 32),)


@model("Faster R-CNN, region proposals", "torchvision")
def proposals() -> Any:
    import torch
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.image_list import ImageList
    from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

    class Proposals(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            anchors = AnchorGenerator(((8,),), ((1.0,),))
            counts = {"training": 4, "testing": 4}
            head = RPNHead(4, anchors.num_anchors_per_location()[0])
            self.rpn = RegionProposalNetwork(
                anchors, head, 0.7, 0.3, 16, 0.5, counts, counts, nms_thresh=0.7
            )

        def forward(self, images: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
            sizes = [(int(s[-2]), int(s[-1])) for s in [images.shape] * len(images)]
            boxes, _ = self.rpn(ImageList(images, sizes), {"0": features})
            return boxes[0]

    return Proposals().eval(), (torch.randn(1, 3, 16, 16), torch.randn(1, 4, 4, 4))


@model("attention with a cache", "flax")
def attention() -> Any:
    import jax.numpy as jnp
    from flax import nnx

    net = nnx.MultiHeadAttention(
        num_heads=2, in_features=8, qkv_features=8, decode=True, rngs=nnx.Rngs(0)
    )
    net.init_cache((1, 4, 8))
    return net, (jnp.ones((1, 1, 8)),)


@model("RNN of LSTM cells", "flax")
def rnn() -> Any:
    import jax.numpy as jnp
    from flax import nnx

    net = nnx.RNN(nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    return net, (jnp.ones((2, 5, 3)),)


@model("MobileNet", "dm-haiku")
def mobilenet() -> Any:
    import haiku as hk
    import jax
    import jax.numpy as jnp

    net = hk.transform_with_state(
        lambda x: hk.nets.MobileNetV1((1, 2), channels=(8, 16), num_classes=3)(x, is_training=True)
    )
    x = jnp.ones((1, 8, 8, 3))
    params, state = net.init(jax.random.key(0), x)
    return net.apply, (params, state, jax.random.key(1), x)


@model("graph network", "jraph")
def graph() -> Any:
    import jax.numpy as jnp
    import jraph

    graphs = jraph.GraphsTuple(
        nodes=jnp.ones((4, 2)),
        edges=jnp.ones((5, 2)),
        senders=jnp.array([0, 1, 2, 3, 0]),
        receivers=jnp.array([1, 2, 3, 0, 2]),
        globals=jnp.ones((1, 2)),
        n_node=jnp.array([4]),
        n_edge=jnp.array([5]),
    )
    net = jraph.GraphNetwork(
        update_edge_fn=lambda e, s, r, g: e + s + r + g,
        update_node_fn=lambda n, s, r, g: n + s + r + g,
        update_global_fn=lambda n, e, g: n + e + g,
    )
    return net, (graphs,)


@model("unbatch", "jraph")
def unbatch() -> Any:
    import jraph

    _, (graphs,) = graph()
    return jraph.unbatch, (jraph.batch([graphs, graphs]),)


@model("attention", "equinox")
def equinox_attention() -> Any:
    import equinox as eqx
    import jax
    import jax.numpy as jnp

    net = eqx.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
    arrays, rest = eqx.partition(net, eqx.is_array)

    def apply(arrays: Any, x: jax.Array) -> jax.Array:
        return eqx.combine(arrays, rest)(x, x, x)

    return apply, (arrays, jnp.ones((5, 8)))


@dataclasses.dataclass(frozen=True)
class Row:
    """Result of checking one module."""

    name: str
    library: str
    report: Any
    seconds: float

    def cells(self) -> list[str]:
        found = {f.code for f in self.report.counted}
        shown = self.report.verification
        return [
            self.name,
            self.library,
            str(self.report.verdict),
            ", ".join(sorted(found)) or "none",
            "confirmed" if shown.holds else "NOT CONFIRMED",
            _seen(shown),
        ]


def _seen(shown: Any) -> str:
    if shown.error is not None:
        text = shown.error.replace("|", "/").replace("\n", " ")
        return text if len(text) <= 120 else text[:117] + "..."
    plural = "s" if shown.programs != 1 else ""
    same = ", which compute the same" if getattr(shown, "served", None) else ""
    return f"{shown.programs} program{plural} for {shown.inputs} inputs{same}"


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def checked(name: str) -> Row | str:
    """The row of one module, or why there is none."""
    import voxax as vx

    library, build = MODELS[name]
    try:
        version = importlib.metadata.version(library)
    except importlib.metadata.PackageNotFoundError:
        return f"{name}: {library} is not installed"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, inputs = build()
        begin = time.perf_counter()
        report = vx.check_static(module, *inputs, verify=True)
    return Row(name, f"{library} {version}", report, time.perf_counter() - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=list(MODELS))
    parser.add_argument("--out", type=Path, default=RESULTS / "check_public_models.md")
    parser.add_argument("--full", action="store_true", help="print every report too")
    options = parser.parse_args()

    import jax
    import torch

    torch.manual_seed(0)
    rows, missing = [], []
    for name in options.only:
        try:
            made = checked(name)
        except Exception as error:
            traceback.print_exc()
            made = f"{name}: could not be made or checked ({_first_line(error)})"
        if isinstance(made, str):
            missing.append(made)
            print(made, file=sys.stderr)
            continue
        rows.append(made)
        print(f"{name}: {made.report.verdict} in {made.seconds:.1f} s", file=sys.stderr)
        if options.full:
            print(made.report)
    head = ["module", "library", "verdict", "findings", "compiling says", "seen"]
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, *(row.cells() for row in rows)]]
    lines.insert(1, "|" + "---|" * len(head))
    lowerings: dict[str, list[str]] = {}
    for row in rows:
        if lowering := getattr(row.report.verification, "lowering", ""):
            lowerings.setdefault(lowering, []).append(row.name)
    confirmed = sum(row.report.verification.holds for row in rows)
    text = (
        f"{confirmed} of {len(rows)} verdicts are confirmed by exporting (PyTorch "
        f"{torch.__version__}) or compiling (JAX {jax.__version__}), "
        f"Python {platform.python_version()}.\n\n"
        + "\n".join(lines)
        + "\n"
        + "".join(
            f"\n{what[0].upper()}{what[1:]}: {', '.join(names)}.\n"
            for what, names in sorted(lowerings.items())
        )
        + "".join(f"\nNot there: {line}.\n" for line in missing)
    )
    print(text)
    if options.only == list(MODELS):
        options.out.write_text(
            "# Verdicts on public modules\n\n"
            "Written by `benchmarks/check_public_models.py`.\n\n" + text.rstrip("\n") + "\n"
        )
    return confirmed != len(rows)


if __name__ == "__main__":
    sys.exit(main())
