#!/usr/bin/env bash
# examples/elastic-life.sh: a job that loses ranks, devices and its supervisor does all its steps once, and the life
# drawn from its events says so.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
sed 's/^let: .*/let: {T: 32, d: 64, heads: 4, layers: 2, vocab: 256}/' "$SMP_EXAMPLES/gpt-tiny.yaml" >tiny.yaml
limit_s=150 expect_exit 0 "$SMP_EXAMPLES/elastic-life.sh" life tiny.yaml 800
expect_match out '^800 steps; 2 failures, [12] changes? of devices, 2 supervisors, [0-9]+ steps? lost; .* % of .* s in steps that count$'
expect_equal rows "$(sed -nE 's/^step ([0-9]+)  loss .*/\1/p' life/rows.txt)" "$(seq 800)"
expect_json_lines() { while IFS= read -r line; do printf '%s\n' "$line" >line.json && expect_json line.json; done <"$1"; }
expect_json_lines life/events.jsonl
row() { sed -n "/<table id='life'/,/<\/table>/p" life/life.html | grep -c "$1" || true; }
expect_equal 'beginning' "$(row '>the job begins<.*<td>0 &rarr; [1-4]<.*>beginning<')" 1
expect_equal 'killed' "$(row '>rank [0-3] (device [0-3]) died (signal 9)<.*>memory<')" 1
expect_equal 'hung' "$(row '>rank [0-3] (device [0-3]) did not beat<.*>\(memory\|checkpoint\)<')" 1
expect_equal 'devices taken' "$(row '>other devices are at hand<.*&rarr; 1<.*>memory<')" 1
expect_equal 'supervisor' "$(row '>the supervisor is started again<.*>\(memory\|checkpoint\)<')" 1
expect_no_match life/life.html 'no event'
# What a supervisor has counted itself is what its events come to.
grep -n '"event": "begin"' life/events.jsonl | tail -n 1 | cut -d: -f1 >from
tail -n "+$(cat from)" life/events.jsonl >second.jsonl
useful=$(sed -nE 's/.*"total_s": ([0-9.]+), "useful_s": ([0-9.]+).*/\2 \1/p' second.jsonl | awk '{ print 100 * $1 / $2 }')
plan=$(find life/run -name 'plan-*.yaml' | head -n 1)
expect_exit 0 smp-partition check "$plan" --model tiny.yaml --events second.jsonl --report second.html
share=$(sed -nE 's/.*lost; .* ([0-9.]+) % of .*/\1/p' second.html | head -n 1)
expect_equal "share of $share and $useful" "$(awk -v a="$share" -v b="$useful" 'BEGIN { print (a - b < 3 && b - a < 3) }')" 1
finish
