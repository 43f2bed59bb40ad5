"""Folders that transformers' save_pretrained writes: smp-import makes a model of config.json, which on two stages predicts
transformers' logits, trains ten steps to its losses, and whose weights from_pretrained loads again. What a config asks for
and SMP lacks is refused by name."""

import json
import os
import re
import sys
import tempfile

import numpy
import torch
from torch.nn import functional

from programs import require, run

sys.path.append(os.environ.get("SMP_TORCH_PEERS", ""))
os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import transformers
except ImportError as missing:
    print("skipped:", missing)
    sys.exit(77)

SAMPLES, LENGTH, VOCABULARY, STEPS, RATE, CLOSE = 4, 24, 96, 10, 0.2, 1e-5
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

SIZES = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=LENGTH, pad_token_id=None)
LLAMA31 = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=16)
LONG = dict(rope_type="longrope", rope_theta=1e4, short_factor=[1.0, 1.1, 1.5, 2.0], long_factor=[1.0, 1.5, 4.0, 9.0],
            original_max_position_embeddings=8)
CASES = {
    "gpt2": ("GPT2LMHeadModel", dict(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=3, n_head=4, bos_token_id=0,
                                     eos_token_id=0, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)),
    "gpt2-inner": ("GPT2LMHeadModel", dict(vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=2, n_inner=40,
                                           tie_word_embeddings=False, layer_norm_epsilon=1e-3, bos_token_id=0, eos_token_id=0,
                                           attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)),
    "llama": ("LlamaForCausalLM", SIZES),
    "llama-3.1": ("LlamaForCausalLM", dict(SIZES, num_key_value_heads=2, rope_parameters=LLAMA31, rms_norm_eps=1e-5)),
    "llama-3.2": ("LlamaForCausalLM", dict(SIZES, num_key_value_heads=1, head_dim=12, attention_bias=True, tie_word_embeddings=True,
                                           rope_parameters=dict(LLAMA31, factor=32.0))),
    "llama-linear": ("LlamaForCausalLM", dict(SIZES, pad_token_id=-1, rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=2.0))),
    "llama-yarn": ("LlamaForCausalLM", dict(SIZES, rope_parameters=dict(
        rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=8))),
    "mistral": ("MistralForCausalLM", dict(SIZES, num_key_value_heads=2, sliding_window=5)),
    "mistral-full": ("MistralForCausalLM", dict(SIZES, num_key_value_heads=2, sliding_window=None)),
    "qwen2": ("Qwen2ForCausalLM", dict(SIZES, num_key_value_heads=2, pad_token_id=7, rope_parameters=dict(rope_type="default", rope_theta=1e6))),
    "qwen3": ("Qwen3ForCausalLM", dict(SIZES, num_key_value_heads=2, head_dim=12)),
    "qwen3-bias": ("Qwen3ForCausalLM", dict(SIZES, num_key_value_heads=4, head_dim=8, attention_bias=True,
                                            tie_word_embeddings=True)),
    "qwen2-window": ("Qwen2ForCausalLM", dict(SIZES, num_key_value_heads=2, use_sliding_window=True, sliding_window=5,
                                              max_window_layers=1)),
    "phi3": ("Phi3ForCausalLM", dict(SIZES, num_key_value_heads=2, bos_token_id=0, eos_token_id=0, sliding_window=7)),
    "phi3-full": ("Phi3ForCausalLM", dict(SIZES, bos_token_id=0, eos_token_id=0)),
    "gemma": ("GemmaForCausalLM", dict(SIZES, num_key_value_heads=1, head_dim=12)),
    "gemma-untied": ("GemmaForCausalLM", dict(SIZES, num_key_value_heads=4, head_dim=8, hidden_act="gelu", attention_bias=True,
                                              tie_word_embeddings=False, rms_norm_eps=1e-4)),
    "gemma2": ("Gemma2ForCausalLM", dict(SIZES, num_key_value_heads=2, head_dim=12, query_pre_attn_scalar=10, sliding_window=7,
                                         attn_logit_softcapping=2.0, final_logit_softcapping=1.5)),
    "gemma2-plain": ("Gemma2ForCausalLM", dict(SIZES, num_key_value_heads=4, head_dim=8, query_pre_attn_scalar=8,
                                               sliding_window=5, num_hidden_layers=2, attn_logit_softcapping=None, final_logit_softcapping=None,
                                               layer_types=["full_attention", "sliding_attention"])),
    "phi3-long": ("Phi3ForCausalLM", dict(SIZES, bos_token_id=0, eos_token_id=0, rope_parameters=LONG,
                                          original_max_position_embeddings=8)),
    "phi3-short": ("Phi3ForCausalLM", dict(SIZES, bos_token_id=0, eos_token_id=0, max_position_embeddings=2 * LENGTH, rope_parameters=dict(
        LONG, original_max_position_embeddings=8, attention_factor=1.25), original_max_position_embeddings=LENGTH)),
    "mixtral": ("MixtralForCausalLM", dict(SIZES, num_key_value_heads=2, num_local_experts=3, sliding_window=7)),
    "mixtral-stacked": ("MixtralForCausalLM", dict(SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=1)),
    "qwen3-moe": ("Qwen3MoeForCausalLM", dict(SIZES, num_key_value_heads=2, num_experts=5, num_experts_per_tok=3,
                                              moe_intermediate_size=20, mlp_only_layers=[1])),
    "qwen2-moe": ("Qwen2MoeForCausalLM", dict(SIZES, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2,
                                              moe_intermediate_size=20, shared_expert_intermediate_size=28,
                                              decoder_sparse_step=2)),
    "qwen3-moe-norm": ("Qwen3MoeForCausalLM", dict(SIZES, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2,
                                                   head_dim=12, num_hidden_layers=2, moe_intermediate_size=20, norm_topk_prob=True,
                                                   decoder_sparse_step=2)),
}
BERT = dict(SIZES, type_vocab_size=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
DISTILBERT = dict(vocab_size=VOCABULARY, dim=32, hidden_dim=48, n_layers=3, n_heads=4, max_position_embeddings=LENGTH, dropout=0.0,
                  attention_dropout=0.0)
T5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=6, d_ff=48, num_layers=2, num_decoder_layers=1, num_heads=4, n_positions=LENGTH,
          relative_attention_num_buckets=8, relative_attention_max_distance=12, dropout_rate=0.0, decoder_start_token_id=0,
          initializer_factor=0.5)
BART = dict(vocab_size=VOCABULARY, d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=48, decoder_layers=1,
            decoder_attention_heads=2, decoder_ffn_dim=40, max_position_embeddings=LENGTH, dropout=0.0)
RESNET = dict(embedding_size=8, hidden_sizes=[8, 16, 24], depths=[2, 1, 1], layer_type="basic", num_labels=7)
CASES |= {
    "bert": ("BertForMaskedLM", dict(BERT, pad_token_id=0)),
    "roberta": ("RobertaForMaskedLM", dict(BERT, pad_token_id=1, type_vocab_size=1, max_position_embeddings=LENGTH + 2)),
    "distilbert": ("DistilBertForMaskedLM", dict(DISTILBERT, pad_token_id=0)),
    "distilbert-untied": ("DistilBertForMaskedLM", dict(DISTILBERT, pad_token_id=3, tie_word_embeddings=False)),
    "t5": ("T5ForConditionalGeneration", T5),
    "t5-gated": ("T5ForConditionalGeneration", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "t5-own": ("T5ForConditionalGeneration", dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "bart": ("BartForConditionalGeneration", BART),
    "vit": ("ViTForImageClassification", dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                                              image_size=16, patch_size=4, num_labels=7, hidden_dropout_prob=0.0,
                                              attention_probs_dropout_prob=0.0)),
}
CASES |= {
    "resnet": ("ResNetForImageClassification", RESNET),
    "resnet-narrow": ("ResNetForImageClassification", dict(RESNET, layer_type="bottleneck", num_channels=1)),
    "resnet-first": ("ResNetForImageClassification", dict(RESNET, layer_type="bottleneck", embedding_size=12, downsample_in_first_stage=True,
                                                          downsample_in_bottleneck=True)),
}
ORDINARY = ("gpt2", "llama-3.1", "qwen2", "phi3-long", "qwen3-moe", "gemma2", "bert", "t5", "bart", "vit", "resnet")
SET = {"T5": ["--set", "U=10"], "Bart": ["--set", "U=10"], "ResNet": ["--set", "size=64"],  # what no config says
       "phi3-short": ["--set", f"T={LENGTH}"]}  # shorter than it may be
REFUSED = {  # of a config, words of the message
    "gelu": ("gpt2", {"activation_function": "relu"}, 'activation_function: got "relu", expected "gelu_new"'),
    "layers": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx: got true, expected false"),
    "proportional": ("llama", {"rope_parameters": {"rope_type": "proportional", "rope_theta": 1e4, "factor": 2.0}},
                     "expected default, linear, dynamic, llama3, yarn or longrope"),
    "longrope": ("llama", {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "short_factor: got"),
    "partial": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
                "partial_rotary_factor: got 0.5"),
    "unheard": ("qwen3-moe", {"use_sliding_window": True}, "use_sliding_window: got true"),
    "unknown": ("llama", {"query_norm": "rms"}, 'query_norm: got "rms"'),
    "class": ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "expected LlamaForCausalLM"),
    "type": ("llama", {"model_type": "mamba"}, "model_type: got mamba, expected one of gpt2, llama, mistral, qwen2, "),
    "causal": ("llama", {"is_causal": False}, "is_causal: got false, expected true"),
    "false": ("llama", {"query_norm": False}, "query_norm: got false"),
    "positions": ("llama", {"rope_parameters": dict(LLAMA31, rope_type="yarn", original_max_position_embeddings=1e300,
                                                    attention_factor=1.0)}, "expected fewer positions"),
    "partial-phi3": ("phi3", {"partial_rotary_factor": 0.75}, "partial_rotary_factor: got 0.75"),
    "balance": ("mixtral", {"output_router_logits": True}, "output_router_logits: got true, expected false"),
    "jitter": ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise: got 0.1"),
    "sparse": ("qwen3-moe", {"decoder_sparse_step": 0}, "decoder_sparse_step: got 0"),
    "gemma-act": ("gemma", {"hidden_activation": "relu"}, 'hidden_activation: got "relu"'),
    "both-ways": ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention: got true"),
    "types": ("gemma2", {"layer_types": ["sliding_attention"]}, "layer_types: got"),
    "chunked": ("gemma2", {"layer_types": ["chunked_attention"] * 3}, 'layer_types: got "chunked_attention"'),
    "window": ("mistral", {"sliding_window": "absent"}, "has no sliding_window"),
    "sizes": ("llama", {"hidden_size": None}, "has no hidden_size"),
    "pad": ("qwen2", {"pad_token_id": VOCABULARY}, "pad_token_id: got 96, expected a token"),
    "words": ("bert", {"tie_word_embeddings": False}, "tie_word_embeddings: got false"),
    "gate": ("t5", {"feed_forward_proj": "gated-silu"}, 'feed_forward_proj: got "gated-silu", expected ["relu", "gated-gelu"]'),
    "scaled": ("bart", {"scale_embedding": True}, "scale_embedding: got true"),
    "lists": ("resnet", {"depths": [2, 0]}, "depths: got [2,0], expected a list of whole numbers"),
    "no list": ("resnet", {"depths": 3}, "depths: got 3, expected a list"),
    "act": ("t5", {"dense_act_fn": "gelu_new"}, 'dense_act_fn: got "gelu_new", expected what feed_forward_proj says'),
    "gated": ("t5-gated", {"is_gated_act": False}, "is_gated_act: got false, expected what feed_forward_proj says"),
    "no window": ("mistral", {"sliding_window": 0}, "sliding_window: got 0, expected a number above 0"),
    "no windows": ("qwen2-window", {"sliding_window": 0}, "sliding_window: got 0, expected a number above 0"),
    "null windows": ("qwen2-window", {"sliding_window": None}, "sliding_window: got null, expected a number above 0"),
    "no types": ("llama", {"layer_types": "full_attention"}, 'layer_types: got "full_attention", expected a list'),
    "negative": ("llama", {"hidden_size": -8}, "hidden_size: got -8"),
}

DROPPED = "# Left out: {} 0.1\n"
WRITTEN = {  # of a config, words of the model
    "eps-phi3": ("phi3", {"rms_norm_eps": "absent"}, "eps: 1e-05}"),
    "eps-mixtral": ("mixtral", {"rms_norm_eps": "absent"}, "eps: 1e-05}"),
    "width": ("qwen3", {"head_dim": "absent"}, "width: 128,"),
    "kv-heads": ("qwen3", {"num_key_value_heads": None}, "kv_heads: heads,"),
    "original": ("phi3-long", {"original_max_position_embeddings": "absent"}, 'when: "T > 4096"}'),
    "empty": ("llama-linear", {"rope_scaling": {}}, "scaling: linear, factor: 2}"),
    "moe-window": ("qwen2-moe", {"sliding_window": 0}, "name: qwen2_moe\n"),
    "all": ("qwen2-window", {"sliding_window": None, "layer_types": "absent"}, "hidden: 48}\n"),
    "dropout-bert": ("bert", {"attention_probs_dropout_prob": "absent"}, DROPPED.format("attention_probs_dropout_prob")),
    "dropout-gpt2": ("gpt2", {"embd_pdrop": "absent"}, DROPPED.format("embd_pdrop")),
    "dropout-t5": ("t5", {"dropout_rate": "absent"}, DROPPED.format("dropout_rate")),
    "dropout-bart": ("bart", {"dropout": "absent"}, DROPPED.format("dropout")),
    "dropout-distilbert": ("distilbert", {"dropout": "absent"}, DROPPED.format("dropout")),
    "dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
                f"base: 10000, original_positions: {LENGTH}}}"),
}


def make(name):
    kind, options = CASES[name]
    kind = getattr(transformers, kind)
    config = kind.config_class(**options)
    config._attn_implementation = "eager"
    torch.manual_seed(5)
    module = kind(config)
    if name.endswith("-own"):
        module.lm_head.weight = torch.nn.Parameter(torch.randn_like(module.lm_head.weight) * 0.1)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) * 0.05)
        for key, statistic in module.named_buffers():
            if key.endswith("running_mean"):
                statistic.normal_(std=0.1)
            if key.endswith("running_var"):
                statistic.uniform_(0.5, 1.5)
    return module


def inputs_of(name):
    """Name here -> (name there, or None for what is made there, values), and the targets."""
    if name == "vit":
        return {"image": ("pixel_values", torch.randn(SAMPLES, 3, 16, 16))}, torch.randint(7, (SAMPLES,))
    if name.startswith("resnet"):
        return {"image": ("pixel_values", torch.randn(SAMPLES, CASES[name][1].get("num_channels", 3), 64, 64))}, torch.randint(7, (SAMPLES,))
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH))
    found = {"tokens": ("input_ids", tokens)}
    targets = torch.randint(VOCABULARY, (SAMPLES, LENGTH))
    kind, options = CASES[name]
    pad = options.get("pad_token_id")
    if pad is not None:
        tokens[:, :2] = pad % VOCABULARY
    mask = (torch.arange(LENGTH) < torch.tensor([[LENGTH], [LENGTH - 5], [LENGTH // 2], [LENGTH]])).long()
    if kind.endswith("MaskedLM"):
        tokens[mask == 0] = pad
        found["mask"] = ("attention_mask", mask)
        if "type_vocab_size" in options:
            found["segments"] = ("token_type_ids", torch.randint(options["type_vocab_size"], (SAMPLES, LENGTH)))
        if kind.startswith("Roberta"):
            found["positions"] = (None, (tokens != pad).cumsum(1) * (tokens != pad) + pad)
        targets[torch.rand(SAMPLES, LENGTH) > 0.3] = -1
    if kind.endswith("ConditionalGeneration"):
        found |= {"mask": ("attention_mask", mask), "decoder_tokens": ("decoder_input_ids", tokens[:, 1:11])}
        targets = targets[:, :10].contiguous()
    return found, targets


def losses_there(module, given, targets, rate):
    optimizer = torch.optim.SGD(module.parameters(), lr=rate)
    losses = []
    module.train()  # no case has dropout, some have statistics of a micro-batch
    for _ in range(STEPS):
        logits = torch.cat([module(**{key: value[at:at + 2] for key, value in given.items()}).logits for at in range(0, SAMPLES, 2)])
        loss = functional.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=-1)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval()
    return losses


def check(folder, name):
    module = make(name).eval()
    module.save_pretrained(f"{folder}/model", save_original_format=not name.endswith("-stacked"))
    with open(f"{folder}/model/vocab.txt", "w", encoding="utf-8") as file:
        file.write("[PAD]\n")
    inputs, targets = inputs_of(name)
    given = {key: value for key, value in inputs.values() if key}
    module.config.use_cache = False
    data = []
    for key, value in [("targets", targets), *((key, value) for key, (_, value) in inputs.items())]:
        numpy.save(f"{folder}/{key}.npy", value.numpy().astype("float32" if value.is_floating_point() else "int32"))
        data += ["--data", f"{key}={key}.npy"]
    said = run(folder, "smp-import", "model", "-o", "model.yaml", "--loss", "cross_entropy")
    names = re.search(r"--names (\S+)", said)[1]
    sizes = [word for kind, words in SET.items() if kind == name or CASES[name][0].startswith(kind) for word in words]
    run(folder, "smp-partition", "model.yaml", "-o", "plan.yaml", "-n", "2", "--stages", "2", "--microbatch-size", "2",
        "--microbatches", "2", *sizes)
    common = ["plan.yaml", *data, "--no-shuffle", "--weights", "model", "--names", names]
    rate = RATE / 20 if name.startswith(("resnet", "vit")) else RATE  # larger steps tell roundings apart
    with torch.no_grad():
        expected = module(**given).logits.numpy()
    run(folder, "smp-run", *common, "--steps", "0", "--predict", "logits.npy", ranks=2)
    off = (numpy.abs(numpy.load(f"{folder}/logits.npy") - expected) / numpy.maximum(1, numpy.abs(expected))).max()
    out = run(folder, "smp-run", *common, "--steps", str(STEPS), "--json", "--optimizer", "sgd", "--momentum", "0", "--weight-decay", "0",
              "--clip", "0", "--lr", str(rate), "--export-weights", "new/", ranks=2)
    ours = [float(x) for x in re.findall(r'"loss": ?([0-9.]+)', out)]
    theirs = losses_there(module, given, targets, rate)
    apart = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    with torch.no_grad():
        after = module(**given).logits
        require(os.path.exists(f"{folder}/new/vocab.txt"), f"{name}: the tokenizer")
        loaded = type(module).from_pretrained(f"{folder}/new").eval()(**given).logits
    back = ((loaded - after).abs() / after.abs().clamp(min=1)).max().item()
    print(f"{name}: logits differ by {off:.2g}, losses of {STEPS} steps by {apart:.2g}, logits of what is loaded again by {back:.2g}",
          flush=True)
    require(off < CLOSE and apart < CLOSE and back < 10 * CLOSE and theirs[-1] < theirs[0], name)
    text = run(folder, "smp-import", "model")
    require("mode: inference" in text and "cross_entropy" not in text, f"{name}: without a loss")


def check_said(folder, configs, code):
    for name, (family, change, words) in configs.items():
        path = f"{folder}/{name}"
        kind, options = CASES[family]
        config = getattr(transformers, kind).config_class(**options)
        config.architectures = [kind]
        config.save_pretrained(path)
        with open(f"{path}/config.json", encoding="utf-8") as file:
            text = {key: value for key, value in {**json.load(file), **change}.items() if value != "absent"}
        with open(f"{path}/config.json", "w", encoding="utf-8") as file:
            json.dump(text, file)
        said = run(folder, "smp-import", name, code=code)
        require(words in said, f"{name}: said '{said}', expected '{words}'")


def check_longer(folder):
    """Texts for which transformers' `dynamic` takes another base."""
    run(folder, "smp-import", "dynamic", "-o", "dynamic.yaml")
    for length, code in ((LENGTH, 0), (LENGTH + 1, 2)):
        said = run(folder, "smp-partition", "dynamic.yaml", "-o", "plan.yaml", "-n", "1", "--set", f"T={length}", code=code)
        require(code == 0 or f"original_positions: {LENGTH}, but there are {length}" in said, f"{length} positions: said '{said}'")


def check_bias(folder):
    """BART's logits have a bias that is no weight: SMP has none, so it is to be zeroes."""
    module = make("bart")
    for value, code in ((0.0, 0), (0.5, 2)):
        module.final_logits_bias[0, -1] = value
        module.save_pretrained(f"{folder}/biased")
        said = run(folder, "smp-import", "biased", code=code)
        require(code == 0 or "tensor final_logits_bias: SMP has none" in said, f"bias {value}: said '{said}'")


cases = sys.argv[1:] or (CASES if os.environ.get("SMP_TEST_LONG") else ORDINARY)
for case in cases:
    with tempfile.TemporaryDirectory() as scratch:
        check(scratch, case)
with tempfile.TemporaryDirectory() as scratch:
    check_said(scratch, REFUSED, 2)
    check_said(scratch, WRITTEN, 0)
    check_longer(scratch)
    check_bias(scratch)
