# Sourced: the Python whose PyTorch the tests in this folder use. SMP_TORCH_PYTHON, or that of a folder of ours, which
# smp_torch_venv makes of PyPI's packages, once for all checkouts.
# shellcheck shell=bash

smp_torch_version=2.15.0
smp_torch_folder=${XDG_CACHE_HOME:-$HOME/.cache}/smp/torch-$smp_torch_version
smp_torch_python=${SMP_TORCH_PYTHON:-$smp_torch_folder/bin/python}

# Makes it unless it is there; fails without a network. Another one that makes it at the same time is waited for.
smp_torch_venv() {
    [ ! -x "$smp_torch_python" ] || return 0
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
            "$making/bin/pip" install -q --disable-pip-version-check "torch==$smp_torch_version" numpy &&
            mv "$making" "$smp_torch_folder"
    ) 9>"$smp_torch_folder.lock"
}
