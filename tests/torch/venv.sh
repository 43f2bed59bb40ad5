# Sourced: the Python whose PyTorch the tests in this folder use, SMP_TORCH_PYTHON or that of a folder of ours, and the
# packages of peers.txt, SMP_TORCH_PEERS or another folder; with SMP_TEST_LONG those of peers-long.txt too.
# smp_torch_venv (1.3 GB) and smp_torch_peers (0.2 GB) make these of PyPI's packages, once for all checkouts.
# shellcheck shell=bash

smp_torch_version=2.15.0
smp_torch_folder=${XDG_CACHE_HOME:-$HOME/.cache}/smp/torch-$smp_torch_version.cpu
smp_torch_python=${SMP_TORCH_PYTHON:-$smp_torch_folder/bin/python}
smp_peers_lists=("$(dirname "${BASH_SOURCE[0]}")/peers.txt")
smp_peers_folder=$smp_torch_folder.peers
if [ -n "${SMP_TEST_LONG-}" ]; then
    smp_peers_lists+=("$(dirname "${BASH_SOURCE[0]}")/peers-long.txt")
    smp_peers_folder+=.long
fi
# What torch imports, but for a GPU's; sympy brings mpmath, setuptools builds peers.
smp_torch_needs=(filelock fsspec jinja2 networkx numpy safetensors 'setuptools<82' sympy typing_extensions wheel)

# Makes it unless it is there; fails without a network. Another one that makes it at the same time is waited for.
smp_torch_venv() {
    [ ! -x "$smp_torch_python" ] || return 0
    [ -z "${SMP_TORCH_PYTHON-}" ] || return 1
    local tool
    for tool in gcc readelf; do
        command -v "$tool" >/dev/null || { echo "PyTorch is not installed: it takes $tool (of gcc and binutils)" >&2; return 1; }
    done
    mkdir -p "${smp_torch_folder%/*}"
    (
        flock 9
        [ ! -x "$smp_torch_python" ] || exit 0
        echo "installing PyTorch $smp_torch_version into $smp_torch_folder"
        making=$smp_torch_folder.making
        rm -rf "$making"
        python3 -m venv "$making" &&
            smp_pip "$making/bin/python" --no-deps "torch==$smp_torch_version" &&
            smp_pip "$making/bin/python" "${smp_torch_needs[@]}" 2>/dev/null && # which tells what torch lacks
            "$making/bin/python" "$(dirname "${smp_peers_lists[0]}")/without_cuda.py" "$making"/lib/python*/site-packages &&
            PYTHONDONTWRITEBYTECODE='' "$making/bin/python" -c "$smp_torch_imports" &&
            # Scripts say where they lie. Moved as a whole: what breaks off leaves nothing that looks ready.
            find "$making/bin" -type f -exec sed -i "s|$making|$smp_torch_folder|g" {} + &&
            mv -T "$making" "$smp_torch_folder"
    ) 9>"$smp_torch_folder.lock"
}

# The same of the peers, again when their list has changed. Its copy in the folder, written last, says which those are.
smp_torch_peers() {
    [ -z "${SMP_TORCH_PEERS-}" ] || return 0
    (
        flock 9
        ! smp_torch_have_peers || exit 0
        echo "installing what PyTorch is tested with into $smp_peers_folder"
        rm -rf "$smp_peers_folder"
        DS_BUILD_OPS=0 smp_pip "$smp_torch_python" --no-deps --use-pep517 --no-build-isolation \
            --target "$smp_peers_folder" "${smp_peers_lists[@]/#/-r}" || exit 1
        PYTHONDONTWRITEBYTECODE='' PYTHONPATH=$smp_peers_folder "$smp_torch_python" -W ignore -c "$smp_peers_imports"
        cat "${smp_peers_lists[@]}" >"$smp_peers_folder/peers.txt"
    ) 9>"$smp_torch_folder.lock"
}

smp_torch_have_peers() {
    cat "${smp_peers_lists[@]}" | cmp -s - "$smp_peers_folder/peers.txt"
}

# Bytecode is made of what is imported alone, which these do; of all there is it takes three times as long.
smp_torch_imports='
import torch.distributed.fsdp, torch.distributed.pipelining, torch.distributed.run, torch.onnx
torch.export.export(torch.nn.Linear(1, 1), (torch.zeros(1, 1),), strict=False)
import torch._dynamo.utils, torch.distributed.tensor, torch.nn.parallel'
smp_peers_imports='
import onnxruntime, onnxscript, safetensors.torch, timm, tokenizers, torchvision
from transformers import BertForMaskedLM, GPT2LMHeadModel, LlamaForCausalLM, ResNetForImageClassification
from transformers import T5ForConditionalGeneration, ViTForImageClassification'

smp_pip() { # python, option...
    "$1" -m pip install -q --disable-pip-version-check --no-compile "${@:2}"
}
