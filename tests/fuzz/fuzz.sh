#!/usr/bin/env bash
# Runs a libFuzzer program from its corpus on; what it finds to be new joins the folder grown/ of the
# build, from which the next run begins. An input that breaks it stays in found/, and is printed.
#   tests/fuzz/fuzz.sh PROGRAM CORPUS...     a corpus is a folder or a file
# SMP_FUZZ_SECONDS=12 is how long, SMP_FUZZ_RUNS how many inputs, if that ends it earlier.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1
shift

format=${program##*/fuzz_}
build=$(dirname "$(dirname "$program")")
grown=$build/grown/$format found=$build/found/$format
mkdir -p "$grown" "$found"

dictionary=$here/yaml.dict
[ ! -e "$here/$format.dict" ] || dictionary=$here/$format.dict
mapfile -t seeds < <(find "$@" -type f)
echo "fuzz: ${#seeds[@]} seeds, and $(find "$grown" -type f | wc -l) inputs that were found before"

[ ! -d /dev/shm ] || export TMPDIR=/dev/shm # an input may be a file, and is there for a moment
# What MPI keeps to the end is told from a leak by whole call stacks, too slow here: the replay does.
leaks=1
[ "$format" != checkpoint ] || leaks=0
# Quarantine counts as memory. Time is of the wall: a limit that a loaded machine does not reach.
export ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=$leaks
# What breaks it is no skipped test, which libFuzzer's own code of 77 would say.
"$program" "$grown" -error_exitcode=1 -timeout_exitcode=1 -seed_inputs="$(IFS=, && echo "${seeds[*]}")" -dict="$dictionary" \
    -max_len=16384 -timeout=5 -rss_limit_mb=512 -print_final_stats=1 \
    -artifact_prefix="$found/" -max_total_time="${SMP_FUZZ_SECONDS:-12}" \
    -runs="${SMP_FUZZ_RUNS:--1}" 2>&1 | grep -vE '^#[0-9]+[[:space:]]+(NEW|REDUCE|RELOAD)|# Uses: '
