"""Real classes of transformers, torchvision, timm and diffusers, small and with random weights, and modules with traps of
their own: what test_zoo.py splits.

ZOO: name -> function that returns a Case. Versions are those of peers.txt and peers-zoo.txt.
"""

import importlib.util
import os
import sys

import torch
from torch import nn
from torch.nn import functional

sys.path.append(os.environ.get("SMP_TORCH_PEERS", ""))
if not all(importlib.util.find_spec(name) for name in ("timm", "torchvision", "transformers")):
    print("skipped: no timm, torchvision and transformers beside PyTorch (tests/torch/peers.txt)")
    sys.exit(77)


class Case:
    """A module, one micro-batch of its arguments, and a loss of its output and a target of one entry a sample.
    refused: words of the error, of a module that cannot be split."""

    def __init__(self, module, *args, loss, target, kwargs=None, refused=None, rounding=1e-6, double=True):
        self.module, self.args, self.kwargs = without_dropout(module), args, kwargs or {}
        if double:
            self.module.double()
            self.args, self.kwargs, target = torch.utils._pytree.tree_map_only(
                torch.Tensor, _double, (args, self.kwargs, target))
        self.loss, self.target, self.refused, self.rounding = loss, target, refused, rounding


def without_dropout(module):
    """Ranks draw other numbers than one process."""
    for part in module.modules():
        for name in ("p", "drop_prob", "dropout", "attention_dropout", "layerdrop", "dropout_prob"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return module


def _double(x):
    """So that what is only rounding is far below what is wrong."""
    return x.double() if x.is_floating_point() else x


ZOO = {}
TRAPS = set()
HEAVY = {  # in the long run: over five seconds each, or of diffusers
    "unet2d", "unet2d_condition", "dit", "vae",
    "torchvision_resnet50", "torchvision_efficientnet_b0", "torchvision_densenet121", "torchvision_swin_t",
    "torchvision_convnext_tiny", "torchvision_mnasnet0_5", "torchvision_googlenet", "timm_vit_tiny_patch16_224",
    "timm_mixer_s16_224", "timm_convnext_atto", "timm_coat_tiny", "timm_gmlp_ti16_224", "timm_levit_128s",
    "timm_xcit_nano_12_p16_224"}
BATCH, LENGTH, VOCABULARY, SIZE = 2, 8, 64, 32


def case(function):
    ZOO[function.__name__] = function
    return function


def trap(function):
    TRAPS.add(function.__name__)
    return case(function)


# ---- losses

def next_token(output, target):
    logits = getattr(output, "logits", output)
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def classes(output, target):
    logits = getattr(output, "logits", output)
    return functional.cross_entropy(logits.flatten(1), target)


def first_squares(output, target):
    """Of the first tensor of whatever is returned."""
    output = next(t for t in torch.utils._pytree.tree_leaves(output) if isinstance(t, torch.Tensor))
    return functional.mse_loss(output.flatten(1), target.view(-1, 1).expand_as(output.flatten(1)))


def tokens():
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH))


def pictures(size=SIZE, channels=3):
    return torch.randn(BATCH, channels, size, size)


def labels(n=10):
    return torch.randint(n, (BATCH,))


# ---- language models of transformers

SMALL = dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64,
             max_position_embeddings=64)
EXPERTS = dict(num_local_experts=4, num_experts_per_tok=2, num_experts=4, moe_intermediate_size=32,
               shared_expert_intermediate_size=32)

DECODERS = {  # class, options
    "gpt2": ("GPT2LMHeadModel", dict(vocab_size=VOCABULARY, n_embd=32, n_layer=4, n_head=4, n_positions=64)),
    "gpt_neo": ("GPTNeoForCausalLM", dict(vocab_size=VOCABULARY, hidden_size=32, num_layers=4, num_heads=4, window_size=4,
                                          attention_types=[[["global", "local"], 2]], max_position_embeddings=64)),
    "gpt_neox": ("GPTNeoXForCausalLM", SMALL),
    "gptj": ("GPTJForCausalLM", dict(vocab_size=VOCABULARY, n_embd=32, n_layer=4, n_head=4, n_positions=64, rotary_dim=4)),
    "opt": ("OPTForCausalLM", dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
                                   ffn_dim=64, max_position_embeddings=64, word_embed_proj_dim=32)),
    "bloom": ("BloomForCausalLM", dict(vocab_size=VOCABULARY, hidden_size=32, n_layer=4, n_head=4)),
    "llama": ("LlamaForCausalLM", dict(SMALL, num_key_value_heads=2)),
    "mistral": ("MistralForCausalLM", dict(SMALL, num_key_value_heads=2, sliding_window=4)),
    "qwen2": ("Qwen2ForCausalLM", dict(SMALL, num_key_value_heads=2)),
    "qwen3": ("Qwen3ForCausalLM", dict(SMALL, num_key_value_heads=2, head_dim=8)),
    "gemma": ("GemmaForCausalLM", dict(SMALL, num_key_value_heads=1, head_dim=8)),
    "gemma2": ("Gemma2ForCausalLM", dict(SMALL, num_key_value_heads=2, head_dim=8, sliding_window=4)),
    "phi": ("PhiForCausalLM", SMALL),
    "phi3": ("Phi3ForCausalLM", dict(SMALL, pad_token_id=0)),
    "falcon": ("FalconForCausalLM", dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, num_attention_heads=4)),
    "mpt": ("MptForCausalLM", dict(vocab_size=VOCABULARY, d_model=32, n_layers=4, n_heads=4, max_seq_len=64)),
    "stablelm": ("StableLmForCausalLM", dict(SMALL, num_key_value_heads=4)),
    "cohere": ("CohereForCausalLM", SMALL),
    "olmo": ("OlmoForCausalLM", SMALL),
    "olmo2": ("Olmo2ForCausalLM", SMALL),
    "starcoder2": ("Starcoder2ForCausalLM", dict(SMALL, num_key_value_heads=2)),
    "granite": ("GraniteForCausalLM", SMALL),
    "mixtral": ("MixtralForCausalLM", dict(SMALL, num_key_value_heads=2, num_local_experts=4)),
    "qwen2_moe": ("Qwen2MoeForCausalLM", dict(SMALL, num_key_value_heads=2, **EXPERTS)),
    "mamba": ("MambaForCausalLM", dict(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4)),
}
ENCODERS = {
    "bert": ("BertForMaskedLM", SMALL),
    "roberta": ("RobertaForMaskedLM", SMALL),
    "distilbert": ("DistilBertForMaskedLM", dict(vocab_size=VOCABULARY, dim=32, n_layers=4, n_heads=4, hidden_dim=64)),
    "albert": ("AlbertForMaskedLM", dict(SMALL, embedding_size=16)),
    "electra": ("ElectraForMaskedLM", dict(SMALL, embedding_size=16)),
    "deberta": ("DebertaV2ForMaskedLM", SMALL),
    "mpnet": ("MPNetForMaskedLM", SMALL),
    "modernbert": ("ModernBertForMaskedLM", dict(SMALL, pad_token_id=0)),
}
TRANSLATORS = {
    "t5": ("T5ForConditionalGeneration", dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)),
    "bart": ("BartForConditionalGeneration", dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
                                                  encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=64,
                                                  decoder_ffn_dim=64, max_position_embeddings=64)),
    "pegasus": ("PegasusForConditionalGeneration", dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
                                                        encoder_attention_heads=4, decoder_attention_heads=4,
                                                        encoder_ffn_dim=64, decoder_ffn_dim=64)),
}
PICTURES = {
    "vit": ("ViTForImageClassification", dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64,
                                              image_size=SIZE, patch_size=8, num_labels=10)),
    "deit": ("DeiTForImageClassification", dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
                                                intermediate_size=64, image_size=SIZE, patch_size=8, num_labels=10)),
    "beit": ("BeitForImageClassification", dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
                                                intermediate_size=64, image_size=SIZE, patch_size=8, num_labels=10)),
    "dinov2": ("Dinov2ForImageClassification", dict(hidden_size=32, num_hidden_layers=4, num_attention_heads=4,
                                                    image_size=SIZE, patch_size=8, num_labels=10)),
    "swin": ("SwinForImageClassification", dict(embed_dim=16, depths=[2, 2], num_heads=[2, 4], image_size=SIZE, patch_size=4,
                                                window_size=4, num_labels=10)),
    "convnext": ("ConvNextForImageClassification", dict(hidden_sizes=[8, 16, 32, 64], depths=[1, 1, 2, 1], num_labels=10)),
    "hf_resnet": ("ResNetForImageClassification", dict(embedding_size=8, hidden_sizes=[16, 32], depths=[2, 2],
                                                       layer_type="basic", num_labels=10)),
}


def of_transformers(name, options):
    """In training, without a cache."""
    import transformers

    kind = getattr(transformers, name)
    config = kind.config_class(**options)
    config.use_cache = False
    for key, value in vars(config).items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    return kind(config).train()


def _decoder(name, options):
    double = options.get("num_local_experts") is None  # products in groups know no double
    return lambda: Case(of_transformers(name, options), tokens(), loss=next_token, target=tokens(), double=double)


def _translator(name, options):
    def made():
        module = of_transformers(name, options)
        return Case(module, kwargs={"input_ids": tokens(), "decoder_input_ids": tokens()}, loss=next_token, target=tokens())
    return made


def _picture(name, options):
    return lambda: Case(of_transformers(name, options), pictures(), loss=classes, target=labels())


for _name, _how in {**DECODERS, **ENCODERS}.items():
    ZOO[_name] = _decoder(*_how)
for _name, _how in TRANSLATORS.items():
    ZOO[_name] = _translator(*_how)
for _name, _how in PICTURES.items():
    ZOO[_name] = _picture(*_how)


@case
def bert_classes():
    """With a mask of padding and token types, by name."""
    module = of_transformers("BertForSequenceClassification", dict(SMALL, num_labels=10))
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[:, -2:] = 0
    return Case(module, kwargs={"input_ids": tokens(), "attention_mask": mask, "token_type_ids": torch.zeros_like(mask)},
                loss=classes, target=labels())


@case
def wav2vec2():
    module = of_transformers("Wav2Vec2ForSequenceClassification", dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, conv_dim=(16, 16), conv_stride=(4, 4),
        conv_kernel=(8, 4), num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4, mask_time_prob=0.0, layerdrop=0.0,
        num_labels=10))
    return Case(module, torch.randn(BATCH, 256), loss=classes, target=labels())


@case
def whisper():
    module = of_transformers("WhisperForConditionalGeneration", dict(
        vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, num_mel_bins=8, max_source_positions=16,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None))
    return Case(module, kwargs={"input_features": torch.randn(BATCH, 8, 32), "decoder_input_ids": tokens()}, loss=next_token,
                target=tokens())


@case
def clip():
    import transformers

    text = dict(SMALL, projection_dim=16, bos_token_id=1, eos_token_id=2)
    vision = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=SIZE,
                  patch_size=8, projection_dim=16)
    module = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))
    return Case(module.train(), kwargs={"input_ids": tokens(), "pixel_values": pictures()},
                loss=lambda out, target: functional.cross_entropy(out.logits_per_image, target % BATCH),
                target=labels())


# ---- torchvision, timm, diffusers

TORCHVISION = ["resnet18", "resnet50", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "densenet121",
               "regnet_y_400mf", "shufflenet_v2_x0_5", "squeezenet1_1", "mnasnet0_5", "convnext_tiny", "swin_t"]
TIMM = ["vit_tiny_patch16_224", "mixer_s16_224", "resnet10t", "convnext_atto", "efficientnet_lite0", "levit_128s", "coat_tiny",
        "poolformer_s12", "mobilenetv4_conv_small", "gmlp_ti16_224", "xcit_nano_12_p16_224"]


def _torchvision(name):
    def made():
        import torchvision

        module = getattr(torchvision.models, name)(num_classes=10).train()
        return Case(module, pictures(64), loss=classes, target=labels())
    return made


def _timm(name):
    def made():
        import timm

        sized = "_224" in name or name.startswith("coat")
        module = timm.create_model(name, num_classes=10, **(dict(img_size=64) if sized else {})).train()
        return Case(module, pictures(224 if name.startswith("levit") else 64), loss=classes, target=labels())
    return made


for _name in TORCHVISION:
    ZOO[f"torchvision_{_name}"] = _torchvision(_name)
for _name in TIMM:
    ZOO[f"timm_{_name}"] = _timm(_name)


@case
def torchvision_vit():
    import torchvision

    module = torchvision.models.VisionTransformer(image_size=32, patch_size=8, num_layers=4, num_heads=4, hidden_dim=32, mlp_dim=64,
                                                  num_classes=10)
    return Case(module.train(), pictures(), loss=classes, target=labels())


@case
def torchvision_googlenet():
    """Three outputs in training."""
    import torchvision

    module = torchvision.models.googlenet(num_classes=10, init_weights=False).train()
    return Case(module, pictures(64), loss=lambda out, target: sum(classes(o, target) for o in out), target=labels())


@case
def unet2d():
    import diffusers

    module = diffusers.UNet2DModel(sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(16, 32),
                                   norm_num_groups=8, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                                   up_block_types=("AttnUpBlock2D", "UpBlock2D"))
    return Case(module.train(), pictures(8), torch.randint(1000, (BATCH,)), loss=first_squares, target=torch.randn(BATCH))


@case
def unet2d_condition():
    import diffusers

    module = diffusers.UNet2DConditionModel(
        sample_size=8, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(16, 32), norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=16, attention_head_dim=8)
    return Case(module.train(), pictures(8, 4), torch.randint(1000, (BATCH,)), torch.randn(BATCH, 4, 16), loss=first_squares,
                target=torch.randn(BATCH))


@case
def dit():
    import diffusers

    module = diffusers.DiTTransformer2DModel(num_attention_heads=4, attention_head_dim=8, in_channels=4, num_layers=4, sample_size=8,
                                             patch_size=2, num_embeds_ada_norm=10, norm_num_groups=8)
    return Case(module.train(), kwargs={"hidden_states": pictures(8, 4), "timestep": torch.randint(1000, (BATCH,)),
                                        "class_labels": labels()}, loss=first_squares, target=torch.randn(BATCH))


@case
def vae():
    import diffusers

    module = diffusers.AutoencoderKL(in_channels=3, out_channels=3, block_out_channels=(8, 16), norm_num_groups=4,
                                     down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
                                     latent_channels=2, layers_per_block=1)
    return Case(module.train(), pictures(16), loss=first_squares, target=torch.randn(BATCH))


# ---- traps

class _Layers(nn.Module):
    """Four linear layers, with something between."""

    def __init__(self, between):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 10)
        self.between = between

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(self.between(layer(x)))
        return self.head(x)


def _layers(between, **more):
    return Case(_Layers(between), torch.randn(BATCH, 16), loss=classes, target=labels(), **more)


class _Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return -ctx.scale * gradient, None


class _Signs(torch.autograd.Function):
    """Straight-through estimator."""

    @staticmethod
    def forward(x):
        return x.sign()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        return gradient * (x.abs() <= 1)


class _Pair(torch.autograd.Function):
    """Of two tensors one that has no gradient, and a number."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        most = x.argmax(-1)
        ctx.mark_non_differentiable(most)
        return x * weight, most, 3

    @staticmethod
    def backward(ctx, gradient, *_):
        x, weight = ctx.saved_tensors
        return 2 * gradient * weight, (gradient * x).sum(0)


class _InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


@trap
def gradient_reversal():
    return _layers(lambda x: _Reversed.apply(x, 0.5))


@trap
def straight_through():
    return _layers(_Signs.apply)


@trap
def function_of_weights():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(16))

        def forward(self, x):
            out, most, n = _Pair.apply(x, self.weight)
            return out / n + most.unsqueeze(-1)

    return _layers(Scaled())


@trap
def function_in_place():
    return _layers(lambda x: _InPlace.apply(x + 0), refused="changes its argument in place")


@trap
def function_of_list():
    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensors):
            return sum(tensors)

        @staticmethod
        def backward(ctx, gradient):
            return None

    return _layers(lambda x: Sum.apply([x, x]), refused="pass tensors one by one")


@trap
def function_of_module():
    """Its weights are in a closure."""
    class Called(torch.autograd.Function):
        @staticmethod
        def forward(ctx, call, x):
            return call(x)

        @staticmethod
        def backward(ctx, gradient):
            return None, gradient

    inner = nn.Linear(16, 16)
    made = _layers(lambda x: Called.apply(inner.forward, x), refused="whose tensors a trace does not see")
    made.module.inner = inner.double()
    return made


@trap
def function_made_inside():
    """A trace loses its backward; the comparison before the first step finds that."""
    def between(x):
        class Halved(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.view_as(x)

            @staticmethod
            def backward(ctx, gradient):
                return gradient / 2

        return Halved.apply(x)

    return _layers(between, refused="the gradient of 'layers.0.weight' is off by")


@trap
def function_in_region():
    def between(x):
        with torch.no_grad():
            scale = _Signs.apply(x).abs()
        return _Reversed.apply(x, 0.5) * scale

    return _layers(between)


@trap
def named_module():
    """Whose names begin as those of DistributedDataParallel do."""
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = _Layers(nn.Identity())
            self.module.layers[3].weight = self.module.layers[0].weight

        def forward(self, x):
            return self.module(x)

    return Case(Wrapped(), torch.randn(BATCH, 16), loss=classes, target=labels())


@trap
def tensor_hook():
    def between(x):
        x.register_hook(lambda gradient: 0.1 * gradient)
        return x

    return _layers(between, refused="a hook on a tensor")


@trap
def module_hook():
    made = _layers(nn.Identity(), refused="'layers.1' has a backward hook")
    made.module.layers[1].register_full_backward_hook(lambda module, given, got: None)
    return made


@trap
def frozen_batch_norm():
    """The user's modes: batch norms that only normalize, with running statistics that are not those of the batch."""
    import torchvision

    module = torchvision.models.resnet18(num_classes=10).train()
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
            part.running_mean.normal_()
            part.running_var.uniform_(0.5, 2)
    return Case(module, pictures(64), loss=classes, target=labels())


@trap
def evaluated():
    """A whole module in eval(): no dropout."""
    made = _layers(nn.Dropout(0.5))
    made.module.eval()
    return made


@trap
def without_gradient():
    def between(x):
        with torch.no_grad():
            scale = 1 / x.norm(dim=-1, keepdim=True)
        return x * scale + x.detach()

    return _layers(between)


@trap
def autocast():
    def between(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return functional.linear(x, torch.eye(16)).float()

    return _layers(between, rounding=1e-6, double=False)


@trap
def counted_in_place():
    """A buffer that the forward changes, and a constant that is changed in place."""
    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen.add_(1)
            mask = torch.ones(16)
            mask[3] = 0
            return x * mask

    return _layers(Counted())


@trap
def constants_changed_by_inputs():
    """What is zeroes at first and filled with what depends on the input lies with all that reads it."""
    def between(x):
        shifted = torch.zeros(BATCH, 16, dtype=x.dtype)
        shifted[:, 1:] = x[:, :-1]
        return shifted

    return _layers(between)


@trap
def weight_norm():
    made = _layers(nn.Identity())
    for layer in made.module.layers:
        nn.utils.parametrizations.weight_norm(layer)
    return made


@trap
def shared_layer():
    made = _layers(nn.Identity())
    made.module.layers[3] = made.module.layers[0]
    return made


@trap
def data_dependent():
    return _layers(lambda x: x if x.sum() > 0 else -x, refused="data-dependent")


@trap
def recomputed():
    """The user's own checkpoints, of both kinds."""
    from torch.utils.checkpoint import checkpoint

    class Again(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.reentrant = reentrant
            self.layer = nn.Linear(16, 16)

        def forward(self, x):
            return checkpoint(lambda y: torch.tanh(self.layer(y)), x, use_reentrant=self.reentrant)

    return _layers(nn.Sequential(Again(False), Again(True)))


@trap
def dictionary():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = _Layers(nn.Identity())

        def forward(self, x, scale=None):
            out = self.inner(x)
            return {"logits": out if scale is None else out * scale, "count": 3, "none": None, "pair": (out.mean(), x)}

    return Case(Named(), torch.randn(BATCH, 16), kwargs={"scale": torch.rand(BATCH, 1)},
                loss=lambda out, target: classes(out["logits"], target) + out["count"] * out["pair"][0], target=labels())
