#!/usr/bin/env bash
# Prints, side by side, the gradients of 30 samples on one process and on four replicas, which get
# 8, 8, 8 and 6 of them.
#   gradients.sh PROGRAM [FOLDER_OF_SMP_PARTITION]
# PROGRAM is gradients.c, built.
set -euo pipefail
program=$(realpath "$1")
[ $# -lt 2 ] || PATH=$(realpath "$2"):$PATH
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=mpi-env.sh
source "$here/mpi-env.sh"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

for replicas in 1 4; do
    smp-partition "$here/linear.yaml" -n "$replicas" --ddp "$replicas" --microbatch-size 8 \
        --microbatches $((4 / replicas)) -o plan.yaml >plan.txt
    mpirun -n "$replicas" "$program" plan.yaml >"gradients-$replicas"
done
printf '%-18s %12s %12s\n' gradient '1 process' '4 replicas'
paste gradients-1 gradients-4 | awk -F '\t' '{ printf "%-18s %12s %12s\n", $1, $2, $4 }'
