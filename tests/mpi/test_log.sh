#!/usr/bin/env bash
# A log has a row for each step with the numbers of --json; a run that stops and resumes leaves the log
# of one that did not, rows behind the step that it resumes from taken away; what cannot be a log is
# refused before the first step. The causes of a step's time add up to it.
# shellcheck source=../cli/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/../cli/lib.sh"
command -v python3 >/dev/null || exit 77
write_text text.txt 3000
write_text held-out.txt 500
write_good_model good.yaml
sed -e '/name: head/i\  - {op: linear, name: fc, in: x, out: x, features: d}\n  - {op: gelu, name: act, in: x, out: x}' \
    good.yaml >model.yaml
reader=$tests_dir/tools/read_log.py
common=(--data text.txt --eval-data held-out.txt --eval-every 5 --lr 0.01 --warmup 3 --seed 5 --json)

plan() { # file devices ddp options...
    expect_exit 0 smp-partition model.yaml -n "$2" --stages 2 --ddp "$3" --microbatches $((4 / $3)) \
        --microbatch-size 1 -o "$1" "${@:4}"
}
plan two.yaml 2 1
plan four.yaml 4 2 --recompute all --gradient-blocks 4

rows() { # log name: what of it must repeat, in NAME.rows
    run python3 "$reader" "$1"
    expect_equal "$1: read" "$status" 0
    cp out "$2.rows"
}

# time_adds_up NAME RANKS [group]: the causes of all ranks, data aside, make the mean step, the first two aside.
time_adds_up() {
    checks=$((checks + 1))
    python3 - "$1.json" "$2" "${3:-stages}" <<'CHECK' >out 2>err || fail "$1: times"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1]) if line.startswith("{")]
steps = [line["step_us"] for line in lines if "step_us" in line][2:]
time = [line["time"] for line in lines if "time" in line]
assert len(time) == 1 and time[0]["steps"] == len(steps) and len(time[0]["ranks"]) == int(sys.argv[2]), time
mean = sum(steps) / len(steps)
for rank in time[0]["ranks"]:
    causes = {k: v for k, v in rank.items() if k.endswith("_us") and k not in ("peer_us", "data_us")}
    assert all(v >= 0 for v in causes.values()), causes
    assert abs(sum(causes.values()) - mean) < 0.02 * mean + 2, (causes, mean)
    assert all(causes[k] > 0 for k in ("forward_us", "backward_us", "optimizer_us")), causes
    assert rank["data_us"] > 0 and rank["predicted"]["forward_us"] > 0, rank
    assert rank.get("peer", 1 - rank["pipeline_rank"]) == 1 - rank["pipeline_rank"], rank
    assert 0 <= rank.get("peer_us", 0) <= causes["messages_us"] + 0.1, rank
    assert rank["resident_bytes"] > rank["arena_bytes"] > 0, rank
assert any(rank.get("peer_us", 0) > 0 for rank in time[0]["ranks"]) != (sys.argv[3] == "group"), time
for rank in time[0]["ranks"]:
    said = rank["predicted"]
    assert (rank["group_us"] > 0) == (said["group_us"] > 0) == (sys.argv[3] == "group"), time
    assert said["group_us"] < said["forward_us"] + said["backward_us"], time
assert any(rank["recompute_us"] > 0 for rank in time[0]["ranks"]) == (int(sys.argv[2]) == 4), time
CHECK
}

expect_exit 0 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 16 --log whole.csv
cp out whole.json
rows whole.csv whole
expect_equal "rows" "$(wc -l <whole.rows | tr -d ' ')" 16
expect_equal "losses" "$(sed -nE 's/^[0-9]+ loss=([^ ]*).*/\1/p' whole.rows)" \
    "$(losses whole.json | cut -d' ' -f2 | while read -r x; do printf '%.6g\n' "$x"; done)"
expect_equal "evaluations" "$(grep -E 'eval_loss=.* accuracy=' whole.rows | cut -d' ' -f1 | tr '\n' ' ')" \
    "5 10 15 16 "
time_adds_up whole 2

# Devices far slower than this one: the run says that it was misjudged, where, and what to do about it.
cat >slow.yaml <<'END'
smp: 1
nodes: 1
devices_per_node: 2
device: {memory: 4GB, compute: {fp32: 1MFLOP/s}, bandwidth: 1GB/s}
links: {intra_node: {bandwidth: 1GB/s, latency_us: 5}}
END
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" -n 2 --stages 2 --chunks 1 --microbatches 4 --cluster slow.yaml \
    -o slow-plan.yaml
expect_match out '^costs: estimated from the peaks of device$'
expect_exit 0 mpirun -n 2 smp-run slow-plan.yaml --data text.txt --steps 3 --log slow.csv
expect_match out '^a step takes .*, 0\.0[0-9] times the .* that the plan predicts; most of that: backward of rank [01], '
expect_match out "^the plan's costs are not this machine's: --profile-out FILE"

# Stopped behind step 9, saved behind step 6, under another plan; the last row is cut off.
expect_exit 0 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 6 --checkpoint behind
for log in part.csv events; do
    file=$log
    [ "$log" = part.csv ] || file=$log/events.out.tfevents.1.smp
    rm -rf saved
    cp -r behind saved
    expect_exit 0 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 9 --log "$log"
    head -c -3 "$file" >"cut.log"
    cp cut.log "$file"
    expect_exit 0 mpirun -n 4 smp-run four.yaml "${common[@]}" --steps 16 --checkpoint saved --resume \
        --log "$log"
    cp out part.json
    time_adds_up part 4
    rows "$file" part
    # The gradient's bits differ with its blocks, so only the first rows are those of `whole`.
    expect_equal "$log: steps" "$(cut -d' ' -f1 part.rows | tr '\n' ' ')" "$(seq -s ' ' 16) "
    expect_equal "$log: first rows" "$(head -n 6 part.rows)" "$(head -n 6 whole.rows)"
done
rm -rf saved
expect_exit 0 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 5 --checkpoint saved --log again.csv
expect_exit 0 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 16 --checkpoint saved --resume --log again.csv
rows again.csv again
expect_equal "a run that was stopped" "$(cat again.rows)" "$(cat whole.rows)"

# Ranks that compute every operator together.
sed 's/layers: 4/layers: 1/' "$SMP_EXAMPLES/gpt-tiny.yaml" >gpt.yaml
expect_exit 0 smp-partition gpt.yaml -n 2 --stages 1 --tensor 2 --microbatches 4 \
    --microbatch-size 1 -o group.yaml
expect_exit 0 mpirun -n 2 smp-run group.yaml "${common[@]}" --steps 8 --log group.csv
cp out group.json
time_adds_up group 2 group

# Refused, before a step.
bad() { # regex log
    expect_exit 2 mpirun -n 2 smp-run two.yaml "${common[@]}" --steps 16 --checkpoint saved --resume \
        --log "$2"
    expect_match err "$1"
    expect_equal "steps" "$(losses out)" ""
}
cp -r saved before
echo 'step,loss' >head.csv
bad "head.csv:1:1: not a log to go on with: expected the head 'step,loss,lr" head.csv
(head -n 3 whole.csv && echo 'x,1' && tail -n 3 whole.csv) >line.csv
bad "line.csv:4:1: expected a row that begins with a step after 2" line.csv
printf 'damage' | dd of=events/events.out.tfevents.1.smp bs=1 seek=100 conv=notrunc status=none
bad 'events.out.tfevents.1.smp: not an event file to go on with: byte [0-9]+ begins no record' events
bad 'no/such/log.csv: cannot write the log: No such file' no/such/log.csv
bad 'no/such/folder: cannot make the folder of the log: No such file' no/such/folder
echo mine >notes.txt
bad "--log: got the file 'notes.txt', expected FILE.csv, or a folder for TensorBoard" notes.txt
expect_exit 2 mpirun -n 2 smp-run two.yaml "${common[@]}" --log events
expect_match err 'events: holds the log of another run: go on with --resume, or choose another folder'
expect_exit 2 smp-run two.yaml "${common[@]}" --progress perhaps
expect_match err "got 'perhaps', expected auto, yes or no"
finish
