#!/usr/bin/env bash
# A run writes what it cost, planning reads that, and its prediction is of the size of what was measured.
# Other work on the machine must not show: operators are short, so their medians are those of a quiet
# machine, and it is the steps that get longer; a message takes what its receiver waited for a core, so it is
# measured by the steps too, and no part of the prediction that is compared.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml
write_text text.txt 20000

plan() { # file devices stages ddp pipeline [option...]
    expect_exit 0 smp-partition "$model" -n "$2" --stages "$3" --ddp "$4" --pipeline "$5" --chunks 1 \
        --microbatches 4 --microbatch-size 1 -o "$1" "${@:6}"
}

train() { # ranks plan [option...]
    expect_exit 0 mpirun -n "$1" smp-run "$2" --data text.txt --steps 9 --json "${@:3}"
}

# Lines of operators, and how many of them have a time above 0 of a kind.
ops() { grep -c '^  - {name: ' "$1"; }
timed() { grep -cE " $1: [0-9.]*[1-9]" "$2"; }

# Stages change no loss, so these have the losses of all below.
plan one.yaml 1 1 1 1f1b
train 1 one.yaml
losses out >one.losses
plan replicas.yaml 2 1 2 simple
train 2 replicas.yaml
losses out >replicas.losses

train 1 one.yaml --profile-out one.profile
losses out | cmp -s - one.losses || fail "one process: --profile-out changes the losses"
all=$(ops one.profile)
forward=$(timed forward_us one.profile)
backward=$(timed backward_us one.profile)
weight=$(timed backward_weight_us one.profile)
sums=$(grep -c 'name: "h[0-9].res_' one.profile) # backward they hand on the array that they get: no time at all
expect_equal "operators with a time" "$forward $backward" "$all $((all - sums))"
expect_equal "additions" "$sums" 8

# Estimates that are far off are said, by kind of operator: of a machine a thousand times as fast.
cat >fast.yaml <<'END'
smp: 1
nodes: 1
devices_per_node: 2
device: {name: fast, memory: 4GB, compute: {fp32: 100TFLOP/s}, bandwidth: 10TB/s}
links: {intra_node: {bandwidth: 10GB/s, latency_us: 1}}
END
expect_exit 0 smp-partition "$model" --cluster fast.yaml -n 2 --stages 1 --tensor 2 --microbatches 2 --microbatch-size 1 -o fast.plan
expect_exit 0 mpirun -n 2 smp-run fast.plan --data text.txt --steps 9 --profile-out fast.profile
expect_match out "^operators of a micro-batch, taken .estimated.: .*linear [0-9.]+ [mu]s .[0-9.]+ [mu]s."
expect_match out 'plan with --profile fast.profile'

# Ranks, halves of backwards, replicas: nothing is missing, and the run computes the same.
for kind in "2 2 1 1f1b" "2 2 1 zero-bubble" "4 2 2 1f1b"; do
    # shellcheck disable=SC2086 # words
    plan plan.yaml $kind
    train "${kind%% *}" plan.yaml --profile-out profile.yaml
    expected=one
    [[ $kind != "4 "* ]] || expected=replicas
    losses out | cmp -s - "$expected.losses" || fail "$kind: --profile-out changes the losses"
    expect_equal "$kind: operators" "$(ops profile.yaml)" "$all"
    expect_equal "$kind: with a time" \
        "$(timed forward_us profile.yaml) $(timed backward_us profile.yaml) $(timed backward_weight_us profile.yaml)" \
        "$forward $backward $weight"
    expect_equal "$kind: with a spread" "$(grep -c 'spread: [0-9.]*}$' profile.yaml)" "$all"
    expect_match profile.yaml "^optimizer_bytes_per_s: [1-9]"
    sed -nE 's/.*"step_us": ([0-9.]+).*/\1/p' out | tail -n +3 | sort -g >steps # but for two cold ones
    # shellcheck disable=SC2086 # words
    plan again.yaml $kind --profile profile.yaml
    sed '/^links:/,$d' profile.yaml >operators.yaml
    # shellcheck disable=SC2086
    plan again.yaml $kind --profile operators.yaml
    predicted=$(value step_us again.yaml)
    median=$(sed -n 4p steps)
    checks=$((checks + 1))
    awk -v p="$predicted" -v least="$(head -n 1 steps)" -v median="$median" \
        'BEGIN { exit !(p > 0.01 * least && p < 3 * median) }' ||
        fail "$kind: predicted $predicted us with the run's own costs, measured $(tr '\n' ' ' <steps)"
    message=$(sed -nE 's/.*bytes: [0-9]+, us: ([0-9.]+).*/\1/p' profile.yaml)
    checks=$((checks + 1))
    awk -v m="${message:-0}" -v most="$(tail -n 1 steps)" 'BEGIN { exit !(m <= most) }' ||
        fail "$kind: a message of $message us, in steps of $(tr '\n' ' ' <steps)"
    if [ "${kind%% *}" = 2 ] && [ "$(nproc)" -ge 2 ]; then # two stages with a core each have a link to time
        expect_match profile.yaml "intra_node:"
        expect_equal "$kind: sizes of messages" "$(grep -c '{bytes: ' profile.yaml)" 1
    fi
done

# Replicas of one stage have no link to time.
train 2 replicas.yaml --profile-out profile.yaml
losses out | cmp -s - replicas.losses || fail "replicas: --profile-out changes the losses"
expect_no_match profile.yaml "intra_node:"
expect_equal "operators of replicas" "$(ops profile.yaml) $(timed forward_us profile.yaml)" "$all $forward"

expect_exit 2 mpirun -n 1 smp-run one.yaml --data text.txt --steps 2 --profile-out absent/profile.yaml
expect_match err "absent/profile.yaml: cannot write the profile"
expect_no_match out "step"
finish
