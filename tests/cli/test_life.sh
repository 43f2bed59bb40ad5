#!/usr/bin/env bash
# The life of an elastic job, drawn from events: on the page of a plan and as a figure, and what is refused.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
write_good_model model.yaml
expect_exit 0 smp-partition model.yaml -n 2 --stages 2 --ddp 1 --microbatches 2 --microbatch-size 1 -o plan.yaml
cat >events.jsonl <<'END'
{"time_s": 100.0, "event": "begin", "starts": 0, "step": 0, "least": 1, "most": 2, "at_hand": 2}
{"time_s": 101.0, "event": "start", "devices": 2, "global_batch": 8}
{"time_s": 102.0, "event": "resumed", "from": "beginning", "step": 0, "done": 1, "lost_steps": 0, "start_s": 0.5, "load_s": 0.5}
{"time_s": 106.0, "event": "ended", "why": "failure", "exit_code": 137, "step": 9, "since_step_s": 0, "detect_s": 0}
{"time_s": 106.0, "event": "failure", "rank": 1, "device": 1, "step": 9, "signal": 0, "exit_code": 137, "stalled": true}
{"time_s": 106.0, "event": "start", "devices": 2, "global_batch": 8}
{"time_s": 108.0, "event": "resumed", "from": "memory", "step": 8, "done": 9, "lost_steps": 1, "start_s": 1, "load_s": 1}
{"time_s": 112.0, "event": "ended", "why": "done", "exit_code": 0, "step": 17, "since_step_s": 0, "detect_s": 0}
{"time_s": 112.0, "event": "end", "exit_code": 0}
END
check=(smp-partition check plan.yaml --model model.yaml)
expect_exit 0 "${check[@]}" --events events.jsonl --report page.html --svg life.svg
expect_match page.html '<h2>Life of the job</h2>.*>17 steps; 1 failure, 0 changes of devices, 1 supervisor, 1 step lost'
expect_match page.html '; 70\.8 % of 12\.0 s in steps that count' # 9 steps in 4.5 s, 8 of 9 in 4.5 s
expect_match page.html '<td>2</td><td>6\.0 s</td><td class=.left.>rank 1 \(device 1\) did not beat</td><td>8</td><td>2 &rarr; 2</td><td>memory</td><td>1</td>'
expect_match page.html 'id="data">' # the plan is there as before
expect_no_match page.html '(src|href)=|https?:|url\(|@import|\{\{'
expect_match life.svg '^<svg xmlns='
expect_match life.svg 'samples/s'
expect_no_match life.svg 'rank 0' # not the plan
expect_exit 0 "${check[@]}" --report plain.html
expect_no_match plain.html 'Life of the job'

# A line that is cut short is said and passed over; a file without events is refused.
{
    cat events.jsonl
    printf '{"time_s": 113.0, "event": "st'
} >cut.jsonl
expect_exit 0 "${check[@]}" --events cut.jsonl --report cut.html
expect_match err '^smp-partition: cut\.jsonl: 1 line is no event, the first: cut\.jsonl, line 10'
expect_match cut.html '1 line of the file is no event: '
expect_bad 'model\.yaml: expected events of smp-run --elastic --events: model\.yaml, line 1' \
    "${check[@]}" --events model.yaml --report no.html
expect_bad 'absent' "${check[@]}" --events absent --report no.html
expect_bad '^smp-partition: --events: is drawn by --report FILE\.html or --svg FILE\.svg$' "${check[@]}" --events events.jsonl
expect_bad 'events\.jsonl' "${check[@]}" --events events.jsonl --report events.jsonl
expect_bad '^smp-partition: --events' smp-partition model.yaml -n 2 --events events.jsonl --report no.html
expect_bad '^smp-run: --events: is drawn by --report FILE\.html' smp-run plan.yaml --data model.yaml --events events.jsonl
[ ! -e no.html ] || fail 'what was refused is there'
finish
