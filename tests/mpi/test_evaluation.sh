#!/usr/bin/env bash
# Evaluation takes every sample of its set once, whatever the plan: the same bits for one micro-batch
# size, and the mean over the samples for every one.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml
if [ -z "${SMP_TEST_LONG-}" ]; then
    sed 's/layers: 4/layers: 2/' "$model" >tiny.yaml
    model=tiny.yaml
fi
window=64
write_text text.txt 20000

plan() { # file devices stages ddp pipeline chunks microbatches size
    expect_exit 0 smp-partition "$model" -n "$2" --stages "$3" --ddp "$4" --pipeline "$5" --chunks "$6" \
        --microbatches "$7" --microbatch-size "$8" -o "$1"
}
plan one.yaml 1 1 1 simple 1 4 2
plan three.yaml 1 1 1 simple 1 3 2
plan two.yaml 2 2 1 interleaved 2 4 2
plan four.yaml 4 4 1 1f1b 1 5 2
plan replicas.yaml 4 2 2 interleaved 1 3 2
plan single.yaml 1 1 1 simple 1 1 1
plan wide.yaml 2 2 1 simple 1 2 5

# evaluated PLAN RANKS SET [OPTION...]: the loss of the initial weights, since steps of rate 0 change nothing.
evaluated() {
    run mpirun -n "$2" smp-run "$1" --data text.txt --steps 1 --lr 0 --json --eval-data "${@:3}"
    [ "$status" -eq 0 ] || fail "exit code $status"
    sed -nE 's/.*"eval_loss": ?([^,}]*).*/\1/p' out
}

# The same of a run that has just been: what it said of right answers.
accuracy() { sed -nE 's/.*"accuracy": ([^,}]*).*/\1/p' out; }

close() { # what got expected
    checks=$((checks + 1))
    awk -v a="$2" -v b="$3" 'BEGIN { d = a - b; exit !(a ~ /^[0-9]/ && d * d <= 1e-12 * b * b) }' ||
        fail "$1: got '$2', expected '$3'"
}

# samples FROM COUNT: a set of COUNT windows; each target is the byte after.
samples() {
    dd if=text.txt bs=1 skip=$((5000 + $1 * window)) count=$(($2 * window + 1)) status=none
}

# Each sample evaluated by itself.
for ((i = 0; i < 11; i++)); do
    samples "$i" 1 >sample.txt
    evaluated single.yaml 1 sample.txt
    accuracy >>right
done >alone
expect_equal "samples" "$(sort -u alone | wc -l | tr -d ' ')" 11

# A set that gives one replica nothing, one that fills no batch, one that fills some and a part of another;
# in the long run every plan takes each.
plans=([1]="two.yaml:2 replicas.yaml:4" [3]="three.yaml:1" [11]="three.yaml:1 two.yaml:2 four.yaml:4 replicas.yaml:4")
for count in 1 3 11; do
    [ -z "${SMP_TEST_LONG-}" ] || plans[count]=${plans[11]}
    samples 0 "$count" >set.txt
    mean=$(head -n "$count" alone | awk '{ sum += $1 } END { printf "%.9g", sum / NR }')
    right=$(head -n "$count" right | awk '{ sum += $1 } END { printf "%.9g", sum / NR }')
    reference=$(evaluated one.yaml 1 set.txt)
    close "$count samples, one by one" "$reference" "$mean"
    close "$count samples, right one by one" "$(accuracy)" "$right"
    close "$count samples, micro-batches of 1" "$(evaluated single.yaml 1 set.txt)" "$mean"
    close "$count samples, micro-batches of 5" "$(evaluated wide.yaml 2 set.txt)" "$mean"
    for plan in ${plans[count]}; do
        expect_equal "$count samples, ${plan%:*}" "$(evaluated "${plan%:*}" "${plan#*:}" set.txt)" \
            "$reference"
        close "$count samples, right with ${plan%:*}" "$(accuracy)" "$right"
    done
done

# Targets that do not count: the mean is over those that do, of the whole set. Of five samples one is
# ignored whole, one but for its first quarter.
array() { # samples: rows of numbers on standard input, as .npy of int32 on standard output
    printf '\223NUMPY\001\000\166\000'
    printf '%-117s\n' "{'descr': '<i4', 'fortran_order': False, 'shape': ($1, $window), }"
    # shellcheck disable=SC2059 # the format is the bytes
    printf "$(awk '{ for (i = 1; i <= NF; i++)
        if ($i < 0) printf "\\377\\377\\377\\377"; else printf "\\%03o\\000\\000\\000", $i }')"
}
rows() { # first count what: of the five samples
    awk -v first="$1" -v count="$2" -v what="$3" -v n="$window" 'BEGIN {
        for (s = first; s < first + count; s++) {
            for (i = 0; i < n; i++) {
                ignored = what == "targets" && (s == 1 || (s == 3 && i >= n / 4))
                printf "%d ", ignored ? -1 : (what == "targets" ? 7 + s * 31 + i * 5 : s * 17 + i * 3) % 128
            }
            print ""
        }
    }'
}
masked() { # PLAN RANKS FIRST COUNT
    local what
    for what in tokens targets; do rows "$3" "$4" "$what" | array "$4" >"$what.npy"; done
    evaluated "$1" "$2" tokens=tokens.npy --eval-data targets=targets.npy
}
mean=$(for i in 0 2 3 4; do echo "$(masked single.yaml 1 "$i" 1) $((i == 3 ? window / 4 : window))"; done |
    awk '{ sum += $1 * $2; n += $2 } END { printf "%.9g", sum / n }')
reference=$(masked one.yaml 1 0 5)
close "ignored targets" "$reference" "$mean"
close "perplexity" "$(sed -nE 's/.*"perplexity": ([^,}]*).*/\1/p' out)" "$(awk "BEGIN { printf \"%.9g\", exp($reference) }")"
close "ignored targets, micro-batches of 5" "$(masked wide.yaml 2 0 5)" "$mean"
expect_equal "ignored targets, replicas" "$(masked replicas.yaml 4 0 5)" "$reference"
expect_equal "a set without a target" "$(masked single.yaml 1 1 1)" null
expect_equal "a set without a target" "$(accuracy)" null
expect_match out '"perplexity": null, "accuracy_top5": null}$'
samples 0 3 >set.txt
expect_exit 0 mpirun -n 1 smp-run one.yaml --data text.txt --steps 1 --eval-data set.txt
expect_match out '^step 1  evaluation loss [0-9.]+  accuracy [0-9.]+ %  top-5 [0-9.]+ %  perplexity [0-9.]+$'

# JSON has no infinities.
sample() { # features: the header of one sample of floats
    printf '\223NUMPY\001\000\166\000'
    printf '%-117s\n' "{'descr': '<f4', 'fortran_order': False, 'shape': (1, $1), }"
}
{ sample 5 && head -c 20 /dev/zero; } >x.npy
{ sample 2 && head -c 8 /dev/zero; } >y.npy
{ sample 2 && printf '\0\0\200\177\0\0\0\0'; } >infinite.npy
expect_exit 0 smp-partition "$SMP_EXAMPLES/mlp.yaml" -n 1 --microbatches 1 -o mlp.yaml
expect_exit 0 mpirun -n 1 smp-run mlp.yaml --data x=x.npy --data y=y.npy --steps 1 --json \
    --eval-data x=x.npy --eval-data y=infinite.npy
expect_match out '"eval_loss": null}'
expect_exit 0 mpirun -n 1 smp-run mlp.yaml --data x=x.npy --data y=y.npy --steps 1
expect_match out '^step 1  loss .* samples/s  ' # no tokens
finish
