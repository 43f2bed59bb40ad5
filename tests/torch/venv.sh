# Sourced: the Python whose PyTorch the tests in this folder use, SMP_TORCH_PYTHON or that of a folder of ours, and the
# packages of peers.txt, SMP_TORCH_PEERS or another folder. smp_torch_venv and smp_torch_peers make these of PyPI's
# packages, once for all checkouts.
# shellcheck shell=bash

smp_torch_version=2.15.0
smp_torch_folder=${XDG_CACHE_HOME:-$HOME/.cache}/smp/torch-$smp_torch_version
smp_torch_python=${SMP_TORCH_PYTHON:-$smp_torch_folder/bin/python}
smp_peers_list=$(dirname "${BASH_SOURCE[0]}")/peers.txt
smp_peers_folder=$smp_torch_folder.peers

# Makes it unless it is there; fails without a network. Another one that makes it at the same time is waited for.
smp_torch_venv() {
    if [ -x "$smp_torch_python" ]; then
        smp_torch_safetensors
        return 0
    fi
    [ -z "${SMP_TORCH_PYTHON-}" ] || return 1
    mkdir -p "${smp_torch_folder%/*}"
    (
        flock 9
        [ ! -x "$smp_torch_python" ] || exit 0
        echo "installing PyTorch $smp_torch_version into $smp_torch_folder"
        making=$smp_torch_folder.making
        rm -rf "$making"
        # Moved as a whole: an installation that breaks off leaves nothing that looks ready.
        python3 -m venv "$making" &&
            "$making/bin/pip" install -q --disable-pip-version-check "torch==$smp_torch_version" numpy safetensors &&
            mv "$making" "$smp_torch_folder"
    ) 9>"$smp_torch_folder.lock"
}

# One that was made before there was a test that needs it; without it that test is skipped.
smp_torch_safetensors() {
    [ -z "${SMP_TORCH_PYTHON-}" ] || return 0
    (
        flock 9
        "$smp_torch_python" -c 'import safetensors' 2>/dev/null ||
            "$smp_torch_python" -m pip install -q --disable-pip-version-check safetensors ||
            echo "no safetensors: a test is going to be skipped"
    ) 9>"$smp_torch_folder.lock"
}

# The same of the peers, again when their list has changed. Its copy in the folder, written last, says which those are.
smp_torch_peers() {
    [ -z "${SMP_TORCH_PEERS-}" ] || return 0
    (
        flock 9
        cmp -s "$smp_peers_list" "$smp_peers_folder/peers.txt" && exit 0
        echo "installing torchtitan, Megatron-LM, DeepSpeed, ONNX and transformers into $smp_peers_folder"
        rm -rf "$smp_peers_folder"
        DS_BUILD_OPS=0 "$smp_torch_python" -m pip install -q --disable-pip-version-check --no-deps --use-pep517 \
            --no-build-isolation --target "$smp_peers_folder" -r "$smp_peers_list" &&
            cp "$smp_peers_list" "$smp_peers_folder/peers.txt"
    ) 9>"$smp_torch_folder.lock"
}
