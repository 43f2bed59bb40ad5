# Sourced by black-box tests: runs programs in a fresh folder and checks what can be seen of them.
# A test calls the expect_ functions, all of which go on after a failure, and ends with `finish`.
# shellcheck shell=bash
set -euo pipefail

tests_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SMP_SOURCE_DIR=${SMP_SOURCE_DIR:-$(dirname "$tests_dir")}
SMP_BIN_DIR=${SMP_BIN_DIR:-$SMP_SOURCE_DIR/build/test/bin}
export SMP_EXAMPLES=$SMP_SOURCE_DIR/examples
PATH=$SMP_BIN_DIR:$PATH
for program in smp-profile smp-partition smp-run smp-import smp-export; do
    [ -x "$SMP_BIN_DIR/$program" ] || {
        echo "$SMP_BIN_DIR/$program is not built" >&2
        exit 1
    }
done
# shellcheck source=../../examples/mpi-env.sh
source "$SMP_SOURCE_DIR/examples/mpi-env.sh"
export LC_ALL=C

scratch=$(mktemp -d)
cleanup() {
    # A job that a test started and did not end.
    # shellcheck disable=SC2046 # one word per process
    kill -KILL $(jobs -p) 2>/dev/null || true
    rm -rf "$scratch"
}
trap cleanup EXIT
cd "$scratch"

# How long a search may take whose result nothing looks at. Whether a plan is legal, its scores and its programs do
# not depend on what `check` finds beside it; the bound that it writes does.
# shellcheck disable=SC2034 # for tests
brief=(--time-limit "$([ -n "${SMP_TEST_LONG-}" ] && echo 5 || echo 0.05)")

checks=0
failures=0
status=0     # exit code of the last `run`; its output is in the files out and err
command_line= # for messages

fail() {
    failures=$((failures + 1))
    echo "FAILED: $*" >&2
    echo "  command: $command_line" >&2
    sed 's/^/  err: /' err 2>/dev/null | head -n 20 >&2 || true
}

# run COMMAND...: no input, at most 60 seconds.
run() {
    command_line=$*
    status=0
    timeout -k 5 "${limit_s:-60}" "$@" >out 2>err </dev/null || status=$?
    [ "$status" -ne 124 ] || fail "took longer than ${limit_s:-60} seconds"
}

# expect_exit CODE COMMAND...
expect_exit() {
    local expected=$1
    shift
    run "$@"
    checks=$((checks + 1))
    [ "$status" -eq "$expected" ] || fail "exit code $status, expected $expected"
}

# expect_match FILE REGEX
expect_match() {
    checks=$((checks + 1))
    grep -qE -- "$2" "$1" || fail "no match for '$2' in $1"
}

# expect_no_match FILE REGEX
expect_no_match() {
    checks=$((checks + 1))
    ! grep -qE -- "$2" "$1" || fail "unwanted match for '$2' in $1"
}

# expect_equal WHAT GOT EXPECTED
expect_equal() {
    checks=$((checks + 1))
    [ "$2" = "$3" ] || fail "$1: got '$2', expected '$3'"
}

# expect_one_message REGEX: standard error is one line, it matches, and nothing went to standard output.
expect_one_message() {
    expect_equal "lines on standard error" "$(grep -c . err || true)" 1
    expect_equal "bytes on standard output" "$(wc -c <out | tr -d ' ')" 0
    expect_match err "$1"
}

# expect_bad REGEX COMMAND...: exit 2, one message, no new file in the folder.
expect_bad() {
    local regex=$1 before after
    shift
    rm -f out err
    before=$(find . -type f | sort)
    expect_exit 2 "$@"
    expect_one_message "$regex"
    after=$(find . -type f ! -path ./out ! -path ./err | sort)
    expect_equal "files" "$after" "$before"
}

# expect_json [--lines] FILE
expect_json() {
    checks=$((checks + 1))
    local file=${!#}
    json_check "${@:1:$#-1}" <"$file" 2>json_error || fail "$file: $(cat json_error)"
}

# value KEY PLAN: the first number of that name.
value() {
    sed -nE "s/.*[{ ]$1: ([0-9.e+-]+).*/\1/p" "$2" | head -n 1
}

# losses FILE: steps and their losses, of what --json prints.
losses() {
    sed -nE 's/.*"step": ?([0-9]+).*"loss": ?([^,}]*).*/\1 \2/p' "$1"
}

# checkpoints FOLDER: the files in it, by their steps; those that are half written without their jobs.
checkpoints() {
    find "$1" -type f ! -name .lock -printf '%f\n' | sed -E 's/^[0-9a-f]{16}\.(checkpoint-.*\.part)$/\1/' | sort |
        sed -E 's/checkpoint-0*//' | tr '\n' ' '
}

# behind_header CHECKPOINT: where its weights begin.
behind_header() {
    echo $(($(od -An -N8 -td8 "$1") + 8 + 4096))
}

# wait_for SECONDS COMMAND...: until the command succeeds; fails if it does not within that time.
wait_for() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -le "$end" ] || return 1
        sleep 0.1
    done
}

# A model that is right, eleven lines; tests break it line by line.
write_good_model() { # file
    cat >"$1" <<'MODEL'
smp: 1
name: good
let: {T: 8, d: 16}
inputs:
  tokens: {dtype: int32, shape: [T]}
  targets: {dtype: int32, shape: [T]}
ops:
  - {op: embedding, name: wte, in: tokens, out: x, rows: 128, features: d}
  - {op: linear, name: head, in: x, out: y, features: 128}
  - {op: cross_entropy, name: loss, in: [y, targets], out: loss}
loss: loss
MODEL
}

# Plain ASCII text of the given length, the same every time.
write_text() { # file bytes
    awk -v bytes="$2" 'BEGIN {
        split("the quick brown fox jumps over a lazy dog and runs away from it all", word, " ")
        seed = 1
        while (written < bytes) {
            seed = (seed * 16807) % 2147483647
            line = word[1 + seed % 15] (seed % 7 == 0 ? ".\n" : " ")
            printf "%s", line
            written += length(line)
        }
    }' | head -c "$2" >"$1"
}

finish() {
    echo "$((checks)) checks, $failures failures"
    [ "$failures" -eq 0 ] && [ "$checks" -gt 0 ]
}
