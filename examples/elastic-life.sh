#!/usr/bin/env bash
# A life of an elastic job: trains on up to four devices, and meanwhile kills a rank, takes three devices away and
# gives them back, stops a rank for good, kills the supervisor and starts it again. Then it draws that life.
#   elastic-life.sh FOLDER [MODEL [STEPS]]      leaves life.html, life.svg and events.jsonl in FOLDER
# MODEL reads bytes; smp-run and smp-partition are on PATH.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=$1
model=$(realpath "${2-$here/gpt-tiny.yaml}")
steps=${3-300}
mkdir -p "$folder"
cd "$folder"
if [ -e run ] || [ -e events.jsonl ]; then
    echo "$folder: holds a life already" >&2
    exit 2
fi
cat "$here"/*.yaml >text.txt

job=
cleanup() { [ -z "$job" ] || kill "$job" 2>/dev/null || true; }
trap cleanup EXIT
start() {
    smp-run --elastic "$model" -n 1:4 --global-batch 16 --microbatch-size 2 --effort quick --data text.txt \
        --steps "$steps" --lr 0.003 --log-every 1 --checkpoint run --keep-in "$PWD/keep" --save-every 1000000 \
        --beat-limit 2 --events events.jsonl >>rows.txt 2>>told.txt &
    job=$!
}
fail() {
    echo "elastic-life.sh: $*" >&2
    tail -n 5 told.txt >&2
    exit 1
}
children() { cat "/proc/$1/task/$1/children" 2>/dev/null || true; }
row() { grep -oE '^step [0-9]+' rows.txt | tail -n 1 | grep -oE '[0-9]+' || echo 0; }
count() { grep -c "\"event\": \"$1\"" events.jsonl 2>/dev/null || true; }
until_row() { # step: it is done
    while [ "$(row)" -lt "$1" ]; do
        kill -0 "$job" 2>/dev/null || [ "$(row)" -ge "$1" ] || fail "ended at step $(row), before $1"
        sleep 0.1
    done
}
until_count() { # event, number
    while [ "$(count "$1")" -lt "$2" ]; do
        kill -0 "$job" 2>/dev/null || [ "$(count "$1")" -ge "$2" ] || fail "no $1 number $2"
        sleep 0.1
    done
}
until_settled() { # the ranks go on with more devices, or it is said that this does not pay
    while [ "$(count idle)" -eq 0 ] && [ "$(count resumed)" -lt 4 ]; do
        kill -0 "$job" 2>/dev/null || fail "ended before all devices were in use"
        sleep 0.1
    done
}
some_rank() {
    local child rank
    for child in $(children "$job"); do
        for rank in $(children "$child"); do
            [ "$(cat "/proc/$rank/comm" 2>/dev/null)" != smp-run ] || echo "$rank"
        done
    done | head -n 1
}

start
until_row $((steps * 1 / 8))
kill -KILL "$(some_rank)"
until_count resumed 2
until_row $((steps * 2 / 8))
echo 1 >run/devices
until_count resumed 3
until_row $((steps * 3 / 8))
echo 4 >run/devices
until_settled
until_row $(($(row) + steps / 8))
kill -STOP "$(some_rank)"
until_count failure 2
until_count resumed "$(($(count start)))"
until_row $((steps * 6 / 8))
kill -KILL "$job"
{ wait "$job"; } 2>/dev/null || true # which the shell would tell of
sleep 1
start
wait "$job" || fail "exit code $?"
job=
last=$(find run -name 'plan-*.yaml' | sort -t- -k2 -n | tail -n 1)
smp-partition check "$last" --model "$model" --events events.jsonl --report life.html --svg life.svg >/dev/null
rm -rf keep text.txt
grep -oE '<span class=.aside.>[0-9]+ steps; [^<]*' life.html | sed 's/^[^>]*>//'
