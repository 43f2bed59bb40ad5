#!/usr/bin/env bash
# Piper's example (Tarnawski et al., NeurIPS 2021: BERT, 32 layers, costs of A100) on its 8 devices of 8 GiB: the plan
# is as fast by Piper's own rules as the fastest that these allow. More of them by hand: bench/README.md.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

limit_s=240 expect_exit 0 python3 "$tests_dir/bench/bench_piper.py" "$SMP_BIN_DIR" --no-slower
expect_match out '^\| 8 \| 8 \| 165\.856 \| 165\.856 \| 230\.978 \| 165\.856 \| 0\.00 % '
finish
