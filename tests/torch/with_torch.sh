#!/usr/bin/env bash
# with_torch.sh FILE.py [argument...]: runs a Python program with PyTorch and smp_torch; skipped without PyTorch.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=venv.sh
source "$here/venv.sh"
if ! "$smp_torch_python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("torch"))' 2>/dev/null; then
    echo "skipped: no PyTorch in $smp_torch_python"
    exit 77
fi
export PYTHONPATH=$here/../../examples/pytorch:$here PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
if [ -z "${SMP_TORCH_PEERS-}" ] && smp_torch_have_peers; then
    export SMP_TORCH_PEERS=$smp_peers_folder
fi
export SMP_PARTITION=${SMP_BIN_DIR:-$here/../../build/bin}/smp-partition
exec "$smp_torch_python" "$@"
