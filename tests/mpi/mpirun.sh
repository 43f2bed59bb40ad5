#!/usr/bin/env bash
# mpirun with the project's settings for one machine. Arguments: those of mpirun.
set -euo pipefail
# shellcheck source=../../examples/mpi-env.sh
source "$(dirname "${BASH_SOURCE[0]}")/../../examples/mpi-env.sh"
exec mpirun "$@"
