#!/usr/bin/env bash
# A file of options (--config) says what a command line says, and the command line has the last word.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cat >plan-job.yaml <<YAML
smp: 1
model: $SMP_EXAMPLES/gpt-tiny.yaml
cluster: $SMP_EXAMPLES/cluster-laptop.yaml
n: 2
stages: 2
microbatches: 4
recompute: all
cut-at: [h1.ln_1]
json: true
o: plan.yaml
YAML
expect_exit 0 smp-partition --config plan-job.yaml
cp out from-file
expect_exit 0 smp-partition "$SMP_EXAMPLES/gpt-tiny.yaml" --cluster "$SMP_EXAMPLES/cluster-laptop.yaml" -n 2 --stages 2 \
    --microbatches 4 --recompute all --cut-at h1.ln_1 --json -o other.yaml
expect_equal "plans" "$(cmp plan.yaml other.yaml && echo same)" same
expect_equal "output" "$(sed 's/other\.yaml/plan.yaml/' out | cmp - from-file && echo same)" same
expect_exit 0 smp-partition --config plan-job.yaml --microbatches 8 -o eight.yaml
expect_match eight.yaml 'microbatches: 8\b'

printf 'smp: 1\nplan: plan.yaml\njson: true\n' >check-job.yaml
expect_exit 0 smp-partition check --config check-job.yaml --time-limit 0.1
expect_match out '"legal": true'
expect_bad 'check-job.yaml:2:1: smp-partition: unknown key .plan.' smp-partition --config check-job.yaml

head -c 20000 "$SMP_SOURCE_DIR/README.md" | tr -cd ' -~\n' >text.txt

# A job: what the file says is what the run was told, for its checkpoint, too.
cat >job.yaml <<'YAML'
smp: 1
plan: plan.yaml
data: text.txt
steps: 3
lr: 0.01
no-shuffle: true
json: true
checkpoint: saved
YAML
expect_exit 0 mpirun -n 2 smp-run --config job.yaml
first=$(losses out)
expect_equal "steps" "$(wc -l <<<"$first" | tr -d ' ')" 3
expect_exit 0 mpirun -n 2 smp-run plan.yaml --data text.txt --steps 3 --lr 0.01 --no-shuffle --json
expect_equal "losses" "$(losses out)" "$first"
expect_exit 0 mpirun -n 2 smp-run --config job.yaml --checkpoint none-yet --steps 2 --lr 0.01
expect_equal "steps" "$(losses out | wc -l | tr -d ' ')" 2
expect_exit 0 mpirun -n 2 smp-run plan.yaml --data text.txt --checkpoint saved --resume --steps 5
sed -i 's/^lr: .*/lr: 0.02/' job.yaml
expect_exit 0 mpirun -n 2 smp-run --config job.yaml --checkpoint saved --resume --steps 7
expect_match err '^smp-run: --lr 0.02, the run that is resumed had 0.01'

# What is read is not written, and a place is named.
expect_bad 'plan-job.yaml' smp-partition --config plan-job.yaml -o plan-job.yaml
expect_bad 'job.yaml' smp-run --config job.yaml --trace job.yaml
printf 'smp: 1\nmodel: %s/mlp.yaml\nmicrobatch-size: none\n' "$SMP_EXAMPLES" >bad.yaml
for program in smp-profile smp-partition; do
    expect_bad "bad.yaml:3:1: microbatch-size: got 'none'" "$program" --config bad.yaml
done
expect_bad "bad.yaml:3:1: smp-export: unknown key 'microbatch-size'" smp-export --config bad.yaml
expect_bad "bad.yaml:3:1: smp-import: unknown key 'microbatch-size'" smp-import --config bad.yaml
expect_bad 'absent.yaml' smp-run --config absent.yaml
finish
