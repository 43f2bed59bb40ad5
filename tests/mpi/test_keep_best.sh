#!/usr/bin/env bash
# --keep-best: what evaluated best stays beside the two saved last, however the job was stopped and
# whichever plan resumes; loaded, it evaluates to its loss to the bit.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 3000
head -c 1500 text.txt | tr a-e A-E >held.txt # half known: learned at first, then ever worse
model=tiny.yaml
sed 's/layers: 4/layers: 2/' "$SMP_EXAMPLES/gpt-tiny.yaml" >$model
common=(--data text.txt --eval-data held.txt --eval-every 2 --json --checksum --lr 0.003 --warmup 1 --clip 1 --seed 5)
plan() { # file stages
    expect_exit 0 smp-partition "$model" -n "$2" --stages "$2" --ddp 1 --microbatches 4 --microbatch-size 1 -o "$1"
}
plan one.yaml 1
plan two.yaml 2
plan four.yaml 4

train() { # ranks-plan name options...
    local plan=$1 name=$2
    shift 2
    expect_exit 0 mpirun -n "${plan#*:}" smp-run "${plan%:*}" "${common[@]}" "$@"
    grep eval_loss out >"$name.eval" || true
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out >"$name.weights"
}
best_of() { # evaluations: the step of the lowest loss, of equals the first
    sed -nE 's/.*"step": ([0-9]+), "eval_loss": ([^,}]*).*/\2 \1/p' "$@" | sort -s -g -k1,1 | head -n 1 | cut -d' ' -f2
}

train two.yaml:2 whole --steps 17 --checkpoint saved --keep-best --save-every 3
best=$(best_of whole.eval)
loss=$(sed -nE "s/.*\"step\": $best, \"eval_loss\": ([^,}]*).*/\1/p" whole.eval)
[ "$best" -lt 12 ] || fail "the held-out loss falls to the end: nothing to keep ($best)"
expect_equal "kept" "$(checkpoints saved)" "$(printf '%010d.smp\n' "$best" 15 17 | sed 's/^0*//' | tr '\n' ' ')"
kept=saved/checkpoint-$(printf %010d "$best").smp
expect_equal "its loss" "$(printf %.9g "$(head -c "$(behind_header "$kept")" "$kept" | tr -d '\0' | sed -n 's/^evaluated //p')")" "$loss"

# A step with no learning rate leaves the weights as they are, to the bit, in any plan.
for plan in one.yaml:1 two.yaml:2; do
    cp -r saved again
    train "$plan" again --checkpoint again --resume-best --steps $((best + 1)) --lr 0
    expect_equal "loss of the best" "$(sed -nE 's/.*"eval_loss": ([^,}]*).*/\1/p' again.eval | tail -n 1)" "$loss"
    [ -e "again/${kept#saved/}" ] || fail "the best is gone, without the option"
    rm -r again
done

# Killed behind the best, while step 15 is being written, then resumed by another plan: the same files and weights
# as of a run that nobody stopped.
# shellcheck disable=SC2016
mpirun -n 2 bash -c 'echo $$ >"pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' rank env \
    LD_PRELOAD="$SMP_BIN_DIR/bad_disk.so" HOLD_SYNC=15.smp.part HOLD_UNTIL="$PWD/never" smp-run two.yaml "${common[@]}" \
    --steps 100000 --checkpoint killed --keep-best --save-every 3 >out 2>err </dev/null &
job=$!
wait_for 50 grep -qs '"step": 16, "loss"' out || fail "no step 16"
cat pid.* | xargs kill -KILL || fail "the job has ended by itself"
wait "$job" 2>/dev/null || true
expect_equal "files after a death" "$(checkpoints killed)" "$best.smp 9.smp 12.smp 15.smp.part "
train four.yaml:4 resumed --steps 17 --checkpoint killed --keep-best --resume --save-every 3
expect_equal "names" "$(checkpoints killed)" "$(checkpoints saved)"
expect_equal "weights" "$(cat resumed.weights)" "$(cat whole.weights)"
for file in saved/*.smp; do # behind the header, which counts the saves of a directory
    at=$(($(behind_header "$file") + 1))
    expect_equal "$file" "$(tail -c "+$at" "killed/${file#saved/}" | cksum)" "$(tail -c "+$at" "$file" | cksum)"
done

# A damaged best is an error, not a worse one in silence; so are options that have nothing to work on.
printf 'damage' | dd of="$kept" bs=1 seek=6000 conv=notrunc status=none
expect_exit 2 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 30 --checkpoint saved --resume-best
expect_match err 'is damaged'
rm "$kept"
expect_exit 0 mpirun -n 1 smp-run one.yaml "${common[@]}" --steps 2 --checkpoint plain
expect_exit 2 mpirun -n 1 smp-run one.yaml "${common[@]}" --steps 4 --checkpoint plain --resume-best
expect_match err 'plain: holds no checkpoint that was evaluated: --keep-best'
expect_exit 2 smp-run one.yaml --data text.txt --checkpoint none --keep-best
expect_match err '--keep-best needs --eval-data SOURCE or --eval-split X'
expect_exit 2 mpirun -n 1 smp-run one.yaml --data text.txt --checkpoint plain --resume --keep-best --steps 4
expect_match err '--keep-best needs --eval-data SOURCE or --eval-split X'
expect_exit 2 smp-run one.yaml --data text.txt --eval-data held.txt --keep-best
expect_match err '--keep-best and --resume-best need --checkpoint DIR'
finish
