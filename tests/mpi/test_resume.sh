#!/usr/bin/env bash
# A run that stops and resumes, under the same plan or another, goes on bit for bit; an interrupted
# save leaves the checkpoint before it usable.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
write_text text.txt 60000
model=tiny.yaml
sed 's/layers: 4/layers: 2/' "$SMP_EXAMPLES/gpt-tiny.yaml" >$model
common=(--data text.txt --json --checksum --lr 0.003 --warmup 3 --decay-steps 12 --clip 1 --seed 5)

plan() { # file stages pipeline chunks
    expect_exit 0 smp-partition "$model" -n "$2" --stages "$2" --ddp 1 --pipeline "$3" --chunks "$4" \
        --microbatches 4 --microbatch-size 1 -o "$1"
}
plan one.yaml 1 simple 1
plan two.yaml 2 interleaved 2
plan four.yaml 4 interleaved 1

train() { # plan ranks name options...
    local plan=$1 ranks=$2 name=$3
    shift 3
    expect_exit 0 mpirun -n "$ranks" smp-run "$plan" "${common[@]}" "$@"
    losses out >"$name.loss"
    sed -nE 's/.*"weights": "([0-9a-f]+)".*/\1/p' out >"$name.weights"
}

train two.yaml 2 whole --steps 10
expect_equal "steps" "$(wc -l <whole.loss | tr -d ' ')" 10
[ -s whole.weights ] || fail "no weight hash"

# resumed FIRST-PLAN:RANKS SECOND-PLAN:RANKS
resumed() {
    rm -rf saved
    train "${1%:*}" "${1#*:}" first --steps 6 --checkpoint saved --save-every 3
    train "${2%:*}" "${2#*:}" second --steps 10 --checkpoint saved --resume
    expect_equal "first step after $1, $2" "$(head -n 1 second.loss | cut -d' ' -f1)" 7
    expect_equal "losses of $1, $2" "$(cat first.loss second.loss)" "$(cat whole.loss)"
    expect_equal "weights of $1, $2" "$(cat second.weights)" "$(cat whole.weights)"
}
resumed two.yaml:2 four.yaml:4
resumed one.yaml:1 two.yaml:2
if [ -n "${SMP_TEST_LONG-}" ]; then
    resumed two.yaml:2 two.yaml:2
    resumed four.yaml:4 one.yaml:1
fi

# The checkpoint saved last is damaged in the weights of one rank: all ranks take the one before, say so
# once, and go on bit for bit. What is saved then counts, though the damaged file has a higher step.
rm -rf saved
train two.yaml 2 first --steps 6 --checkpoint saved --save-every 3
at=$(behind_header saved/checkpoint-0000000006.smp)
printf 'damage' | dd of=saved/checkpoint-0000000006.smp bs=1 seek=$((at + 2000)) conv=notrunc status=none
train four.yaml 4 second --steps 5 --checkpoint saved --resume
expect_equal "reports" "$(grep -c 'smp-run: .*0000000006.smp: weight .* is damaged; took the one before, .*0000000003.smp' err)" 1
train one.yaml 1 third --steps 10 --checkpoint saved --resume
expect_no_match err 'damaged'
head -n 3 first.loss | cat - second.loss third.loss >all.loss
expect_equal "losses after damage" "$(cat all.loss)" "$(cat whole.loss)"
expect_equal "weights after damage" "$(cat third.weights)" "$(cat whole.weights)"

# A plan for inference takes the weights, starts at its own first step and saves nothing.
sed -E 's/^smp: 1/smp: 1\nmode: inference/' "$model" >inference.yaml
expect_exit 0 smp-partition inference.yaml -n 2 --stages 2 --ddp 1 --microbatches 4 --microbatch-size 1 \
    -o inference-plan.yaml
find saved -type f -exec cksum {} + | sort >before
train inference-plan.yaml 2 inferred --steps 2 --checkpoint saved --resume
expect_equal "weights for inference" "$(cat inferred.weights)" "$(cat whole.weights)"
expect_equal "steps of inference" "$(cut -d' ' -f1 inferred.loss | tr '\n' ' ')" "1 2 "
find saved -type f -exec cksum {} + | sort >after
expect_equal "checkpoint untouched" "$(cmp before after && echo same)" same
for options in "" "--resume --save-every 1"; do
    # shellcheck disable=SC2086 # one word per option
    expect_exit 2 mpirun -n 2 smp-run inference-plan.yaml "${common[@]}" --checkpoint saved $options
    expect_match err 'the plan is for inference, nothing to save'
done

# A checkpoint of another model is refused, and not touched.
sed -E 's/layers: 2/layers: 1/' "$model" >other.yaml
expect_exit 0 smp-partition other.yaml -n 1 --stages 1 --microbatches 4 --microbatch-size 1 -o other-plan.yaml
find saved -type f -exec cksum {} + | sort >before
expect_exit 2 mpirun -n 1 smp-run other-plan.yaml "${common[@]}" --steps 20 --checkpoint saved --resume
expect_match err 'saved'
find saved -type f -exec cksum {} + | sort >after
expect_equal "checkpoint untouched" "$(cmp before after && echo same)" same

# Killed while saving after every step: what is there can be resumed.
rm -rf saved
# shellcheck disable=SC2016 # expanded by the ranks' shells, whose process is then that of the rank
mpirun -n 2 bash -c 'echo $$ >"pid.$OMPI_COMM_WORLD_RANK"; exec "$@"' rank smp-run two.yaml "${common[@]}" \
    --steps 100000 --checkpoint saved --save-every 1 >out 2>err </dev/null &
job=$!
wait_for 50 grep -qs '"step": 5,' out || fail "no step 5 within 50 seconds"
kill -KILL "$job"
wait "$job" 2>/dev/null || true
mapfile -t ranks < <(cat pid.*)
ended() {
    ! kill -0 "${ranks[0]}" 2>/dev/null && ! kill -0 "${ranks[1]}" 2>/dev/null
}
wait_for 30 ended || fail "ranks go on without mpirun"
last=$(checkpoints saved | tr ' ' '\n' | sed -nE 's/^([0-9]+)\.smp$/\1/p' | sort -n | tail -n 1)
train four.yaml 4 survivor --steps $((last + 2)) --checkpoint saved --resume
expect_equal "steps after a death" "$(cut -d' ' -f1 survivor.loss | tr '\n' ' ')" "$((last + 1)) $((last + 2)) "
finish
