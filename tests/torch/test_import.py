"""Models that PyTorch exports to ONNX, by both of its exporters: imported, planned on two ranks and trained here, their first
losses are those of the module. Classes of transformers, torchvision, timm and torch.nn, with the weights that they begin with:
ones and zeroes, which the exporters store once. --check finds the outputs of ONNX Runtime."""

import os
import re
import subprocess
import sys
import tempfile
import warnings

import numpy
import torch
from torch import nn
from torch.nn import functional

PROGRAMS = os.path.dirname(os.environ["SMP_PARTITION"])
PEERS = os.environ.get("SMP_TORCH_PEERS")
if PEERS:
    sys.path.append(PEERS)
try:
    import onnx
    import onnxruntime
    import onnxscript  # noqa: F401
except ImportError:
    print("skipped: no onnx, onnxruntime and onnxscript beside PyTorch (tests/torch/peers.txt)")
    sys.exit(77)

from zoo import DECODERS, ENCODERS, PICTURES, TRANSLATORS, VOCABULARY, of_transformers, without_dropout  # noqa: E402

LAST_OPSET = 21  # that smp-import takes
LENGTH, WIDTH, BATCH, SIZE = 12, 32, 4, 32


def tokens():
    """Without 0 and 1, which pad."""
    return torch.randint(2, VOCABULARY, (BATCH, LENGTH))


def padding():
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[1, 9:] = 0
    mask[3, 5:] = 0
    return mask


def picture():
    return torch.randn(BATCH, 3, SIZE, SIZE)


class Text(nn.Module):
    """A class of transformers, of two layers, without what it returns beside."""

    def __init__(self, name):
        super().__init__()
        kind, options = {**DECODERS, **ENCODERS}[name]
        layers = {"n_layer", "n_layers", "num_hidden_layers"} & set(options)
        self.module = of_transformers(kind, {**options, **dict.fromkeys(layers, 2)})

    def forward(self, tokens, mask=None):
        return self.module(tokens, attention_mask=mask).logits


class Translator(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.module = of_transformers(*TRANSLATORS[name])

    def forward(self, tokens, decoder_tokens, mask=None):
        return self.module(input_ids=tokens, decoder_input_ids=decoder_tokens, attention_mask=mask).logits


class Picture(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.module = of_transformers(*PICTURES[name])

    def forward(self, image):
        return self.module(image).logits


class Encoder(nn.Module):
    """torch.nn's own, which has positions before samples inside."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(8, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 4, 48, 0.0, batch_first=True), 2)

    def forward(self, x):
        return self.out(self.layers(self.into(x)))


def torchvision_vit():
    import torchvision

    return torchvision.models.VisionTransformer(SIZE, 8, 2, 2, WIDTH, 48, num_classes=10)


def timm_vit():
    import timm

    return timm.models.VisionTransformer(img_size=SIZE, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=2, num_classes=10)


def make(name):
    """Module and its inputs by name."""
    torch.manual_seed(3)
    if name in TRANSLATORS:
        return Translator(name), {"tokens": tokens(), "decoder_tokens": tokens()}
    if name in PICTURES:
        return Picture(name), {"image": picture()}
    if name in OTHERS:
        return without_dropout(OTHERS[name]()).train(), {"x": torch.randn(BATCH, LENGTH, 8) if name == "encoder" else picture()}
    return Text(name), {"tokens": tokens()}


OTHERS = {"encoder": Encoder, "torchvision_vit": torchvision_vit, "timm_vit": timm_vit}
# fixed, any: size of the batch, by the newer exporter; mask: of padding, of any batch; older: the other exporter, with the mask
# where there is one
WAYS = {
    **{name: ("fixed", "any", "mask", "older") for name in (
        "gpt2", "llama", "mistral", "qwen2", "qwen3", "opt", "bert", "roberta", "distilbert", "albert", "electra")},
    "bart": ("fixed", "any", "mask"),  # the older one does not tell that a bias is a buffer
    "gemma": ("fixed", "any", "mask", "older"),
    "gemma2": ("fixed", "any", "mask", "older"),
    "phi3": ("fixed", "any", "mask", "older"),
    "t5": ("older",),  # the newer one fails
    "vit": ("fixed", "any", "older"),
    "deit": ("fixed", "any", "older"),
    "hf_resnet": ("older",),  # the newer one folds batch normalisation away
    "encoder": ("fixed", "any", "older"),
    "torchvision_vit": ("fixed", "older"),
    "timm_vit": ("fixed", "older"),
}
ORDINARY = ("gpt2:mask", "llama:any", "t5:older", "bart:mask", "vit:any", "hf_resnet:older", "encoder:fixed")
OPSET = {"gpt2:any", "llama:mask"}  # also in another operator set


def run(folder, *command, ranks=0):
    start = ["mpirun", "-n", str(ranks)] if ranks else []
    result = subprocess.run([*start, os.path.join(PROGRAMS, command[0]), *command[1:]], cwd=folder, capture_output=True,
                            text=True, timeout=120, check=False)
    if result.returncode != 0:
        sys.exit(f"{command}: {result.returncode}\n{result.stdout}\n{result.stderr[-3000:]}")
    return result.stdout


def export(module, inputs, path, way, opset=None):
    """In the opset of the exporter, or in another."""
    names = list(inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way != "older":
            shapes = None if way == "fixed" else {name: {0: torch.export.Dim("batch")} for name in names}
            torch.onnx.export(module, tuple(inputs.values()), path, input_names=names, dynamic_shapes=shapes, dynamo=True,
                              verbose=False, opset_version=opset)
            require_opset(path, opset)
        else:
            torch.onnx.export(module, tuple(inputs.values()), path, input_names=names, dynamo=False, do_constant_folding=False,
                              dynamic_axes={name: {0: "batch"} for name in names}, training=torch.onnx.TrainingMode.TRAINING)


def require_opset(path, opset):
    version = next(x.version for x in onnx.load(path, load_external_data=False).opset_import if not x.domain)
    if opset and version != opset:
        sys.exit(f"{path}: opset {version}, expected {opset}")


def computed_inputs(folder, name, inputs):
    """What the model file wants beside the inputs: values that the file computes of these."""
    with open(f"{folder}/{name}.yaml", encoding="utf-8") as file:
        wanted = re.findall(r"^# input (\S+): what the file computes from others as '(.+)'$", file.read(), re.M)
    if not wanted:
        return {}
    model = onnx.load(f"{folder}/{name}.onnx")
    for _, value in wanted:
        model.graph.output.append(onnx.ValueInfoProto(name=value))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    asked = {x.name for x in session.get_inputs()}
    values = session.run([value for _, value in wanted], {key: x.numpy() for key, x in inputs.items() if key in asked})
    return {key: torch.from_numpy(value) for (key, _), value in zip(wanted, values)}


def losses_here(folder, inputs, targets, name):
    data = ["--data", "targets=targets.npy", "--no-shuffle"]
    numpy.save(f"{folder}/targets.npy", targets.numpy().astype("int32"))
    said = run(folder, "smp-import", f"{name}.onnx", "-o", f"{name}.yaml", "--weights", f"{name}.safetensors", "--loss", "cross_entropy")
    with open(f"{folder}/{name}.yaml", encoding="utf-8") as file:
        text = file.read()
    if " 0 of them planned" not in said:
        sys.exit(f"{said}{text}")
    for key, value in {**inputs, **computed_inputs(folder, name, inputs)}.items():
        value = value.numpy()
        numpy.save(f"{folder}/{key}.npy", value.astype("float32" if value.dtype.kind == "f" else "int32"))
        if f"\n  {key}: " in text:  # a mask may be read by nothing
            data += ["--data", f"{key}={key}.npy"]
    run(folder, "smp-partition", f"{name}.yaml", "-o", f"{name}.plan", "-n", "2", "--stages", "2", "--microbatches", "1",
        "--microbatch-size", str(BATCH))
    out = run(folder, "smp-run", f"{name}.plan", *data, "--weights", f"{name}.safetensors", "--steps", "3", "--json", "--optimizer", "sgd",
              "--momentum", "0", "--weight-decay", "0", "--clip", "0", "--lr", "0.3", ranks=2)
    return [float(x) for x in re.findall(r'"loss": ?([0-9.]+)', out)]


def losses_there(module, inputs, targets):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(*inputs.values()).flatten(0, -2), targets.flatten(), ignore_index=-1)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses


def check(folder, name, way, opset=None):
    module, inputs = make(name)
    if "tokens" in inputs and way in ("mask", "older"):
        inputs["mask"] = padding()
    if "tokens" in inputs and way != "older":  # which does not say that rows of padding are not trained
        inputs["tokens"][:2, :2] = torch.tensor([0, 1])
    export(module, inputs, f"{folder}/{name}.onnx", way, opset)
    module, _ = make(name)  # a run in training mode may have changed it
    with torch.no_grad():
        shape = make(name)[0](*inputs.values()).shape
    targets = torch.randint(shape[-1], shape[:-1])
    if "mask" in inputs and name not in TRANSLATORS:
        targets[inputs["mask"] == 0] = -1  # what padding predicts is nobody's
    ours, theirs = losses_here(folder, inputs, targets, name), losses_there(module, inputs, targets)
    apart = max(abs(a - b) / b for a, b in zip(ours, theirs, strict=True))
    print(f"{name}:{way} {opset or ''} {ours}, apart by {apart:.2g}", flush=True)
    if apart > 1e-5 or not theirs[1] < theirs[0]:
        sys.exit(f"{name}:{way}: losses {ours}, expected {theirs}")
    if way == "any":
        check_outputs(folder, f"{name}.onnx")


def check_outputs(folder, path):
    """What a user runs."""
    environment = dict(os.environ, PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", PYTHONPATH=PEERS or "")
    result = subprocess.run([f"{PROGRAMS}/smp-import", path, "-o", "checked.yaml", "--check"], cwd=folder, capture_output=True,
                            text=True, timeout=120, check=False, env=environment)
    if result.returncode != 0 or "outputs agree with ONNX Runtime's" not in result.stdout:
        sys.exit(f"--check: {result.returncode}\n{result.stdout}{result.stderr[-2000:]}")


def check_folded(folder):
    module, inputs = make("hf_resnet")
    export(module, inputs, f"{folder}/resnet.onnx", "fixed")
    result = subprocess.run([f"{PROGRAMS}/smp-import", "resnet.onnx", "--loss", "cross_entropy"], cwd=folder, capture_output=True,
                            text=True, check=False)
    if result.returncode != 2 or "folded a batch normalisation" not in result.stderr:
        sys.exit(f"a folded batch normalisation: {result.returncode} {result.stderr}")


class Masked(nn.Module):
    """Of eight samples, eight positions and eight heads: which dimension a mask has samples in only its steps say."""

    def __init__(self, way):
        super().__init__()
        self.way, self.qkv = way, nn.Linear(32, 96)

    def forward(self, x, mask):
        q, k, v = self.qkv(x).view(8, 8, 3, 8, 4).permute(2, 0, 3, 1, 4).unbind(0)
        hidden = (mask == 0)[{"padding": (slice(None), None, None), "positions": (None, None),
                              "heads": (None, slice(None), None), "queries": (slice(None), None, slice(None), None)}[self.way]]
        return torch.where(hidden, -1e9, q @ k.transpose(-1, -2)).softmax(-1) @ v


class Computed(nn.Module):
    """A weight that trains otherwise than what the exporter computes of it."""

    def __init__(self):
        super().__init__()
        self.weight, self.out = nn.Parameter(torch.randn(8, 8)), nn.Linear(8, 5)

    def forward(self, x):
        return self.out(x @ torch.tanh(self.weight))


def check_traps(folder):
    """What looks like something else is planned and not run."""
    x, mask = torch.randn(8, 8, 32), torch.ones(8, 8, dtype=torch.int64)
    cases = [(way, Masked(way), {"x": x, "mask": mask}, False) for way in ("padding", "positions", "heads", "queries")]
    for name, module, inputs, newer in [*cases, ("computed", Computed(), {"x": torch.randn(2, 8)}, True)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(module, tuple(inputs.values()), f"{folder}/{name}.onnx", input_names=list(inputs), dynamo=newer,
                              verbose=False)
        said = run(folder, "smp-import", f"{name}.onnx", "-o", f"{name}.yaml", "--loss", "mse")
        if (" 0 of them planned" in said) != (name == "padding"):
            with open(f"{folder}/{name}.yaml", encoding="utf-8") as file:
                sys.exit(f"{name}: {said}{file.read()}")


long_run = os.environ.get("SMP_TEST_LONG")
everything = [f"{name}:{way}" for name, ways in WAYS.items() for way in ways]
for case in sys.argv[1:] or (everything if long_run else ORDINARY):
    with tempfile.TemporaryDirectory() as scratch:
        check(scratch, *case.split(":"))
        if long_run and case in OPSET:
            check(scratch, *case.split(":"), LAST_OPSET)
with tempfile.TemporaryDirectory() as scratch:
    check_folded(scratch)
    check_traps(scratch)
