#!/usr/bin/env bash
# examples/gradients.sh: the gradients of 30 samples on one process and on four replicas, 30 being
# no multiple of four.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
expect_exit 0 "$SMP_EXAMPLES/gradients.sh" "$SMP_BIN_DIR/gradients" "$SMP_BIN_DIR"
expect_equal "lines" "$(wc -l <out)" 13
expect_equal "gradients that are there" "$(awk 'NR > 1 && $2 * $2 > 1e-6' out | wc -l)" 12
expect_equal "one process and four replicas" \
    "$(awk 'NR > 1 && ($2 - $3) ^ 2 > 4e-12' out)" ""
finish
