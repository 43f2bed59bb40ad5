#!/usr/bin/env bash
# examples/elastic.c, a program on libsmp under smp-run --elastic: it loses a rank, then a device, is ended by a signal
# and started again, and prints the rows of a job that nothing happened to, with its own state among them.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
sed 's/^let: .*/let: {T: 32, d: 64, heads: 4, layers: 2, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >gpt-tiny.yaml
elastic() { # name, steps
    timeout -k 5 100 smp-run --elastic gpt-tiny.yaml -n 1:2 --global-batch 16 --microbatch-size 2 --effort quick \
        --checkpoint "$1" --keep-in "$PWD/keep-$1" --events "$1.jsonl" -- "$SMP_BIN_DIR/elastic" "$2" >>"$1.txt" 2>>"$1.err"
}
steps=240
elastic whole $steps || fail "the whole one ended with $?"
expect_equal rows "$(sed -nE 's/^step ([0-9]+)  loss .*/\1/p' whole.txt)" "$(seq $steps)"

until_row() {
    while [ "$(grep -c '^step' life.txt)" -lt "$1" ] && kill -0 "$job"; do sleep 0.05; done
}
until_event() { # regex, number
    while [ "$(grep -cE "\"event\": $1" life.jsonl)" -lt "$2" ] && kill -0 "$job"; do sleep 0.05; done
}
children() { cat "/proc/$1/task/$1/children" 2>/dev/null || true; }
below() { # process: it and all that it has started
    local child
    echo "$1"
    for child in $(children "$1"); do below "$child"; done
}
named() { # process name
    local process
    for process in $(below "$1"); do
        [ "$(cat "/proc/$process/comm" 2>/dev/null)" != "$2" ] || echo "$process"
    done
}
touch life.txt
elastic life $steps &
job=$!
until_row 50
kill -KILL "$(named $job elastic | tail -n 1)"
until_event '"resumed"' 2
until_row 100
echo 1 >life/devices
until_event '"resumed"' 3
until_row 150
kill -USR1 "$(named $job smp-run | head -n 1)"
ended=0
wait "$job" || ended=$?
expect_equal 'exit code after a signal' "$ended" 4
expect_equal 'rows before the end' "$(($(grep -c '^step' life.txt) < steps))" 1
elastic life $steps || fail "started again: $?"
cmp whole.txt life.txt || fail "the rows differ"
expect_match life.jsonl '"event": "failure", "rank": [01],.*"signal": 9'
expect_match life.jsonl '"event": "resumed",.*"from": "memory",.*"lost_steps": [012],'
expect_match life.jsonl '"event": "resumed",.*"from": "checkpoint"'
expect_match life.jsonl '"event": "steps"'
expect_equal 'what is left in memory' "$(find . -maxdepth 1 -name 'keep-*')" ''

# A program that ends well, but has not saved: what is in memory is.
limit_s=60 expect_exit 0 smp-run --elastic gpt-tiny.yaml -n 1 --global-batch 16 --effort quick --checkpoint unsaved \
    --keep-in "$PWD/keep-unsaved" --timeout 90 --timeout-start 2m -- sh -c \
    "echo \$SMP_ELASTIC_TIMEOUT,\$SMP_ELASTIC_TIMEOUT_START,\$SMP_ELASTIC_TIMEOUT_SAVE >told; FAIL_SYNC=.part LD_PRELOAD=$SMP_BIN_DIR/bad_disk.so $SMP_BIN_DIR/elastic 9 || exit 0"
expect_match err '^elastic: .*cannot sync'
expect_match err '^smp-run: the state of step 9 is saved in '
expect_equal 'what the program is told' "$(cat told)" 90,120,
expect_equal 'what is saved' "$(cd unsaved && echo checkpoint-*)" checkpoint-0000000009.smp

# On another host it is told the same.
fake_hosts=(python3 "$tests_dir/faults/fake_hosts.py")
if "${fake_hosts[@]}" up . 2 >refused 2>&1; then
    printf 'h1 slots=1\nh2 slots=1\n' >hosts
    (
        unset "${!OMPI_MCA_@}"
        expect_exit 0 "${fake_hosts[@]}" run . h1 smp-run --elastic gpt-tiny.yaml -n 2 --global-batch 16 --effort quick \
            --checkpoint "$PWD/two" --hosts "$PWD/hosts" --agent "${fake_hosts[*]} shell {host}" -- "$SMP_BIN_DIR/elastic" 3
        [ "$failures" -eq 0 ]
    ) || failures=$((failures + 1))
    "${fake_hosts[@]}" down .
    expect_match out '^step 3  loss '
else
    echo "no hosts: $(head -n 1 refused)" >&2
fi

# By itself: the same program.
expect_exit 0 elastic 3
expect_match out '^step 3  loss '
SMP_ELASTIC=1 expect_exit 2 elastic 3
expect_match err '^elastic: SMP_ELASTIC_PLAN: is not set'
finish
