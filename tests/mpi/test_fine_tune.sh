#!/usr/bin/env bash
# examples/fine-tune.sh goes through: training with a log and the best checkpoint, fine-tuning from its weights, predictions.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
PATH=$PATH:/usr/games
command -v bible >/dev/null || { echo "skipped: no bible-kjv"; exit 77; }
limit_s=300
STEPS=6 expect_exit 0 bash "$SMP_EXAMPLES/fine-tune.sh" "${SMP_BIN_DIR:?}" out.d
expect_equal "evaluations" "$(grep -c '^step .*evaluation loss .*perplexity' out)" 6
expect_equal "rows of the log" "$(wc -l <out.d/old.csv | tr -d ' ')" 7
expect_equal "checkpoints" "$(find out.d/old -name '*.smp' | wc -l | tr -d ' ')" 2
[ "$(wc -c <out.d/logits.npy)" -gt 20000000 ] || fail "predictions"
finish
