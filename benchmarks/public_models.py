"""Public models, configured tiny, with random weights and no downloads, each with its inputs."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

# By name: the library, the verdict, and what makes the module and its inputs.
MODELS: dict[str, tuple[str, str, Callable[[], tuple[Any, tuple[Any, ...]]]]] = {}


def model(name: str, library: str, verdict: str) -> Callable[..., Any]:
    """Register a function that makes ``(module, inputs)``.

    Its parameters are packages, which are imported when it is called: nobody has all.

    Args:
      name: of the model.
      library: the distribution that it is from.
      verdict: what ``torch.export`` or counting the programs of ``jax.jit`` says.
    """

    def add(build: Callable[..., tuple[Any, tuple[Any, ...]]]) -> Any:
        def made() -> tuple[Any, tuple[Any, ...]]:
            needed = inspect.signature(build).parameters
            names = ("flax.nnx" if name == "nnx" else name for name in needed)
            return build(*map(importlib.import_module, names))

        MODELS[name] = library, verdict, made
        return made

    return add


def _tokens(rows: int = 2, length: int = 8) -> Any:
    import torch

    return torch.arange(rows * length).reshape(rows, length) % 50


def _padding() -> Any:
    import torch

    return torch.tensor([[1] * 8, [1] * 5 + [0] * 3])


_TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@model("BERT", "transformers", "static")
def bert(transformers: Any) -> Any:
    config = transformers.BertConfig(**_TINY, intermediate_size=32, vocab_size=50)
    return transformers.BertModel(config).eval(), (_tokens(),)


@model("GPT-2", "transformers", "static")
def gpt2(transformers: Any) -> Any:
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, use_cache=False)
    return transformers.GPT2LMHeadModel(config).eval(), (_tokens(),)


@model("Llama", "transformers", "static")
def llama(transformers: Any) -> Any:
    config = transformers.LlamaConfig(**_TINY, intermediate_size=32, vocab_size=50, use_cache=False)
    return transformers.LlamaForCausalLM(config).eval(), (_tokens(),)


@model("ViT", "transformers", "static")
def vit(torch: Any, transformers: Any) -> Any:
    config = transformers.ViTConfig(**_TINY, intermediate_size=32, image_size=16, patch_size=8)
    return transformers.ViTModel(config).eval(), (torch.randn(1, 3, 16, 16),)


@model("Wav2Vec2, training", "transformers", "not static")
def wav2vec2(torch: Any, transformers: Any) -> Any:
    config = transformers.Wav2Vec2Config(
        **_TINY,
        intermediate_size=32,
        conv_dim=(16, 16),
        conv_kernel=(3, 3),
        conv_stride=(2, 2),
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
        mask_time_length=2,
    )
    return transformers.Wav2Vec2Model(config).train(), (torch.randn(1, 200),)


@model("Switch Transformers, experts", "transformers", "not static")
def switch(torch: Any, transformers: Any) -> Any:
    from transformers.models.switch_transformers.modeling_switch_transformers import (
        SwitchTransformersSparseMLP,
    )

    config = transformers.SwitchTransformersConfig(d_model=16, d_ff=32, num_experts=3, num_heads=2)
    return SwitchTransformersSparseMLP(config).eval(), (torch.randn(2, 8, 16),)


@model("VITS, spline", "transformers", "not static")
def vits(torch: Any, transformers: Any) -> Any:
    config = transformers.VitsConfig(
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
    tokens = _tokens(1) + torch.zeros(1, 8, dtype=torch.long)
    return transformers.VitsModel(config).eval(), (tokens,)


@model("ConvNeXt", "timm", "static")
def convnext(timm: Any, torch: Any) -> Any:
    net = timm.create_model(
        "convnext_atto", pretrained=False, depths=(1, 1, 1, 1), dims=(8, 16, 16, 32)
    )
    return net.eval(), (torch.randn(1, 3, 32, 32),)


@model("Swin", "timm", "static")
def swin(timm: Any, torch: Any) -> Any:
    options = {"img_size": 32, "window_size": 4, "embed_dim": 8, "depths": (2,), "num_heads": (2,)}
    net = timm.create_model("swin_tiny_patch4_window7_224", pretrained=False, **options)
    return net.eval(), (torch.randn(1, 3, 32, 32),)


@model("ResNet with stochastic depth, training", "timm", "static")
def resnet(timm: Any, torch: Any) -> Any:
    net = timm.create_model("resnet10t", pretrained=False, drop_path_rate=0.1)
    return net.train(), (torch.randn(2, 3, 32, 32),)


@model("Faster R-CNN, region proposals", "torchvision", "not static")
def proposals(torch: Any, torchvision: Any) -> Any:
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.image_list import ImageList
    from torchvision.models.detection.rpn import RegionProposalNetwork, RPNHead

    if not torchvision.extension._has_ops():
        raise ImportError("torchvision's operators do not load beside this PyTorch")

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


@model("attention with a cache", "flax", "static")
def attention(nnx: Any, jax: Any) -> Any:
    net = nnx.MultiHeadAttention(
        num_heads=2, in_features=8, qkv_features=8, decode=True, rngs=nnx.Rngs(0)
    )
    net.init_cache((1, 4, 8))
    return net, (jax.numpy.ones((1, 1, 8)),)


@model("RNN of LSTM cells", "flax", "static")
def rnn(nnx: Any, jax: Any) -> Any:
    net = nnx.RNN(nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0)), rngs=nnx.Rngs(0))
    return net, (jax.numpy.ones((2, 5, 3)),)


@model("MobileNet", "dm-haiku", "static")
def mobilenet(haiku: Any, jax: Any) -> Any:
    def apply(x: Any) -> Any:
        net = haiku.nets.MobileNetV1((1, 2), channels=(8, 16), num_classes=3)
        return net(x, is_training=True)

    net = haiku.transform_with_state(apply)
    x = jax.numpy.ones((1, 8, 8, 3))
    params, state = net.init(jax.random.key(0), x)
    return net.apply, (params, state, jax.random.key(1), x)


@model("graph network", "jraph", "static")
def graph(jax: Any, jraph: Any) -> Any:
    graphs = jraph.GraphsTuple(
        nodes=jax.numpy.ones((4, 2)),
        edges=jax.numpy.ones((5, 2)),
        senders=jax.numpy.array([0, 1, 2, 3, 0]),
        receivers=jax.numpy.array([1, 2, 3, 0, 2]),
        globals=jax.numpy.ones((1, 2)),
        n_node=jax.numpy.array([4]),
        n_edge=jax.numpy.array([5]),
    )
    net = jraph.GraphNetwork(
        update_edge_fn=lambda e, s, r, g: e + s + r + g,
        update_node_fn=lambda n, s, r, g: n + s + r + g,
        update_global_fn=lambda n, e, g: n + e + g,
    )
    return net, (graphs,)


@model("unbatch", "jraph", "not static")
def unbatch(jraph: Any) -> Any:
    _, (graphs,) = graph()
    return jraph.unbatch, (jraph.batch([graphs, graphs]),)


@model("attention", "equinox", "static")
def equinox_attention(equinox: Any, jax: Any) -> Any:
    net = equinox.nn.MultiheadAttention(2, 8, key=jax.random.key(0))
    arrays, rest = equinox.partition(net, equinox.is_array)

    def apply(arrays: Any, x: jax.Array) -> jax.Array:
        return equinox.combine(arrays, rest)(x, x, x)

    return apply, (arrays, jax.numpy.ones((5, 8)))


@model("BERT, padded", "transformers", "static")
def bert_padded() -> Any:
    return bert()[0], (_tokens(), _padding())


@model("GPT-2, padded", "transformers", "static")
def gpt2_padded() -> Any:
    net, (tokens,) = gpt2()

    class Masked(type(net)):
        def forward(self, tokens: Any, mask: Any) -> Any:
            return super().forward(tokens, attention_mask=mask).logits

    net.__class__ = Masked
    return net, (tokens, _padding())


@model("T5, padded", "transformers", "static")
def t5(transformers: Any) -> Any:
    config = transformers.T5Config(
        d_model=16, d_ff=32, d_kv=8, num_layers=1, num_heads=2, vocab_size=50, use_cache=False
    )
    return transformers.T5Model(config).eval(), (_tokens(), _padding(), _tokens())


@model("Llama, padded", "transformers", "static")
def llama_padded() -> Any:
    return llama()[0], (_tokens(), _padding())


@model("DETR", "transformers", "static")
def detr(torch: Any, transformers: Any) -> Any:
    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], out_features=["stage2"]
    )
    config = transformers.DetrConfig(
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config=backbone,
        d_model=16,
        num_queries=4,
        **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 16 for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
    )
    net = transformers.DetrForObjectDetection(config).eval()
    return net, (torch.randn(1, 3, 32, 32), torch.ones(1, 32, 32, dtype=torch.long))


@model("RAFT", "torchvision", "static per value")
def raft(torch: Any) -> Any:
    from torchvision.models.optical_flow import raft_small

    images = [torch.rand(1, 3, 128, 128) for _ in range(2)]
    return raft_small(weights=None).eval(), (*images, 1)


@model("LR-ASPP", "torchvision", "static")
def lraspp(torch: Any) -> Any:
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    net = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=3)
    return net.eval(), (torch.rand(1, 3, 32, 32),)


@model("UNet of latent diffusion", "diffusers", "static")
def unet(diffusers: Any, torch: Any) -> Any:
    net = diffusers.UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        cross_attention_dim=8,
        attention_head_dim=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    )
    inputs = torch.randn(1, 4, 8, 8), torch.tensor(3), torch.randn(1, 5, 8)
    return net.eval(), inputs


@model("YOLO", "ultralytics", "not static")
def yolo(torch: Any) -> Any:
    from ultralytics.nn.tasks import DetectionModel

    return DetectionModel("yolo11n.yaml", nc=3, verbose=False).eval(), (torch.rand(1, 3, 64, 64),)


def _graph() -> Any:
    import torch

    return torch.randn(5, 4), torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 4, 0, 2]])


@model("graph attention", "torch-geometric", "not static")
def gat() -> Any:
    from torch_geometric.nn import GAT

    return GAT(4, 8, num_layers=2, out_channels=3, heads=2).eval(), _graph()


@model("graph pooling", "torch-geometric", "not static")
def graph_pooling(torch: Any) -> Any:
    from torch_geometric.nn import GCNConv, SAGPooling, global_mean_pool

    class Pooled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(4, 8)
            self.pool = SAGPooling(8, ratio=0.5)

        def forward(self, x: Any, edges: Any, batch: Any) -> Any:
            x = self.conv(x, edges).relu()
            x, _, _, batch, _, _ = self.pool(x, edges, None, batch)
            return global_mean_pool(x, batch)

    return Pooled().eval(), (*_graph(), torch.tensor([0, 0, 0, 1, 1]))


@model("MLP", "equinox", "static")
def equinox_mlp(equinox: Any, jax: Any) -> Any:
    net = equinox.nn.MLP(3, 2, 8, 2, key=jax.random.key(0))
    arrays, rest = equinox.partition(net, equinox.is_array)

    def apply(arrays: Any, x: jax.Array) -> jax.Array:
        return jax.vmap(equinox.combine(arrays, rest))(x)

    return apply, (arrays, jax.numpy.ones((5, 3)))


@model("convolutional network with batch norm", "flax", "static")
def nnx_convolutions(nnx: Any, jax: Any) -> Any:
    rngs = nnx.Rngs(0)
    layers = nnx.Conv(3, 8, (3, 3), rngs=rngs), nnx.BatchNorm(8, rngs=rngs), nnx.relu
    return nnx.Sequential(*layers), (jax.numpy.ones((2, 8, 8, 3)),)
