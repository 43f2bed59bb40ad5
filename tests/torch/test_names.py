"""Six families of Hugging Face's transformers, made by itself with random weights and saved by save_pretrained: loaded with --names,
models of examples/ predict its logits on two stages; exported again, the file has the same names and bits."""

import os
import re
import sys
import tempfile

import numpy
import torch

from programs import require, run

sys.path.append(os.environ.get("SMP_TORCH_PEERS", ""))
os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print("skipped:", error)
    sys.exit(77)

TREE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SAMPLES, CLOSE = 4, 1e-5
transformers.utils.logging.disable_progress_bar()


def example(name):
    with open(f"{TREE}/examples/{name}.yaml", encoding="utf-8") as file:
        return file.read()


def draw(bound, *shape):
    return torch.randint(bound, (SAMPLES, *shape))


def padding(length):
    return (torch.arange(length) < torch.tensor([[length], [length - 3], [length // 2], [length]])).long()


def gpt2():
    config = transformers.GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=4, n_head=4, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config), example("gpt-tiny"), {"tokens": ("input_ids", draw(256, 64))}


def llama():
    config = transformers.LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
                                      num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=True)
    return transformers.LlamaForCausalLM(config), example("llama-tiny"), {"tokens": ("input_ids", draw(256, 64))}


def bert():
    config = transformers.BertConfig(vocab_size=260, hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512,
                                     max_position_embeddings=64, layer_norm_eps=1e-5)
    inputs = {"tokens": ("input_ids", draw(260, 64)), "segments": ("token_type_ids", draw(2, 64)), "mask": ("attention_mask", padding(64))}
    return transformers.BertForMaskedLM(config), example("bert-small"), inputs


def t5():
    config = transformers.T5Config(vocab_size=266, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, layer_norm_epsilon=1e-5,
                                   decoder_start_token_id=0)
    inputs = {"tokens": ("input_ids", draw(266, 64)), "mask": ("attention_mask", padding(64)),
              "decoder_tokens": ("decoder_input_ids", draw(266, 16))}
    return transformers.T5ForConditionalGeneration(config), example("t5-small"), inputs


VIT = """smp: 1
name: vit
let: {size: 32, d: 32, heads: 4, layers: 2, classes: 10}
inputs:
  image: {dtype: float32, shape: [3, size, size]}
  label: {dtype: int32, shape: []}
ops:
  - {op: patchify, name: patches, in: image, out: x, patch: 8}
  - {op: linear, name: embed, in: x, out: x, features: d}
  - {op: parameter, name: class, out: token, shape: [1, d]}
  - {op: concat, name: tokens, in: [token, x], out: x, axis: 0}
  - {op: position_embedding, name: position, in: x, out: x}
"""


def vit():
    """The blocks of an example behind patches of three channels."""
    config = transformers.ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, image_size=32,
                                    patch_size=8, num_labels=10, layer_norm_eps=1e-5)
    text = example("vit-class")
    return (transformers.ViTForImageClassification(config), VIT + text[text.index("  - repeat: layers"):],
            {"image": ("pixel_values", torch.randn(SAMPLES, 3, 32, 32))})


def resnet():
    """The stages of an example behind the first layer of larger images."""
    config = transformers.ResNetConfig(embedding_size=64, hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2], layer_type="basic",
                                       num_labels=10)
    text = example("resnet-18").replace("size: 32", "size: 64")
    text = text.replace('channels: "c[0]", kernel: 3, padding: 1', 'channels: "c[0]", kernel: 7, stride: 2, padding: 3')
    relu = "  - {op: relu, name: stem.relu, in: x, out: x}\n"
    text = text.replace(relu, relu + "  - {op: max_pool, name: stem.pool, in: x, out: x, kernel: 3, stride: 2, padding: 1}\n")
    return (transformers.ResNetForImageClassification(config), text, {"image": ("pixel_values", torch.randn(SAMPLES, 3, 64, 64))})


FAMILIES = {"hf-gpt2": gpt2, "hf-llama": llama, "hf-bert": bert, "hf-t5": t5, "hf-vit": vit, "hf-resnet": resnet}


def check(folder, family):
    torch.manual_seed(5)
    module, text, inputs = FAMILIES[family]()
    given = dict(inputs.values())
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
        if family == "hf-resnet":  # statistics that are none of a network at rest
            module.train()(**given)
        expected = module.eval()(**given).logits.numpy()
    module.save_pretrained(folder)
    with open(f"{folder}/model.yaml", "w", encoding="utf-8") as file:
        file.write(text)
    data = []
    label = re.search(r"^  (targets|label): +\{dtype: int32, shape: \[(\w*)\]", text, re.M)
    length = [int(re.search(rf"\b{label[2]}: (\d+)", text)[1])] if label[2] else []
    for name, value in [(label[1], torch.zeros(SAMPLES, *length).long()), *((n, x) for n, (_, x) in inputs.items())]:
        numpy.save(f"{folder}/{name}.npy", value.numpy().astype("float32" if value.is_floating_point() else "int32"))
        data += ["--data", f"{name}={name}.npy"]
    run(folder, "smp-partition", "model.yaml", "-o", "plan.yaml", "-n", "2", "--stages", "2", "--microbatch-size", "2", "--microbatches", "2")
    run(folder, "smp-run", "plan.yaml", *data, "--no-shuffle", "--steps", "0", "--weights", "model.safetensors", "--names", family,
        "--predict", "logits.npy", "--export-weights", "back.safetensors", ranks=2)
    off = numpy.abs(numpy.load(f"{folder}/logits.npy") - expected) / numpy.maximum(1, numpy.abs(expected))
    print(f"{family}: logits {expected.shape} of up to {numpy.abs(expected).max():.3g} differ by {off.max():.2g}")
    require(off.max() < CLOSE, f"{family}: logits")
    saved, back = (load_file(f"{folder}/{name}.safetensors") for name in ("model", "back"))
    saved = {name: x for name, x in saved.items() if not name.endswith("num_batches_tracked")}  # which SMP has not
    require(saved.keys() == back.keys(), f"{family}: names {sorted(saved.keys() ^ back.keys())[:6]}")
    require(all(saved[n].shape == back[n].shape and saved[n].equal(back[n]) for n in saved), f"{family}: values there and back")


for name in sys.argv[1:] or FAMILIES:
    with tempfile.TemporaryDirectory() as scratch:
        check(scratch, name)
