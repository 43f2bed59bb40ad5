#!/usr/bin/env bash
# Drawings and exports of smp-partition and smp-run, as files: complete, reproducible, refused with a
# reason. What a browser makes of the page: test_report_page.sh.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
model=$SMP_EXAMPLES/gpt-tiny.yaml
plan=(smp-partition "$model" -n 4 --stages 4 --ddp 1 --chunks 1 --microbatches 8 --microbatch-size 2
    --pipeline interleaved)

page_data() { # the JSON inside a page
    sed -n '/id="data">/,/<\/script>/p' "$1" | sed -e 's/.*id="data">//' -e 's/<\/script>.*//'
}

# The page, the figure and the lines.
expect_exit 0 "${plan[@]}" -o plan.yaml --report page.html --svg plan.svg --explain
expect_match out '^rank 3 +\.*0?>'
expect_match page.html '^<!DOCTYPE html>'
expect_no_match page.html '(src|href)=|https?:|url\(|@import|\{\{'
page_data page.html >data.json
expect_json data.json
expect_match data.json '"model":"gpt-tiny"'
expect_equal "lanes" "$(grep -o '"cells":' data.json | wc -l)" 4
expect_equal "forwards" "$(grep -o '"cells":[^]]*' data.json | sed 's/.*\[//' | tr , '\n' |
    awk 'NR % 7 == 1 && $1 == 0' | wc -l)" 32
expect_match plan.svg '^<svg xmlns='
expect_match plan.svg '>rank 3</text>'
expect_equal "bytes of the page" "$(($(wc -c <page.html) < 300000))" 1
expect_exit 0 "${plan[@]}" --report again.html --svg again.svg
expect_equal "same page" "$(cmp page.html again.html && echo same)" same
expect_equal "same figure" "$(cmp plan.svg again.svg && echo same)" same
expect_exit 1 "${plan[@]}" --report no/such/folder/page.html
expect_match err 'no/such/folder'

# Exports.
expect_exit 0 "${plan[@]}" --export torch-csv:torch.csv --export dot:plan.dot --export json:plan.json
expect_equal "rows" "$(grep -cE '^([0-9]+[FB][0-9]+,){15}[0-9]+[FB][0-9]+$' torch.csv)" 4
expect_match torch.csv '^3F0,3B0,3F1,3B1,'
expect_match torch.csv.stages '^0,0,wte,wpe,h0\.ln_1,'
expect_match plan.dot '^digraph "gpt-tiny" \{'
expect_equal "clusters" "$(grep -c 'subgraph cluster_' plan.dot)" 4
expect_json plan.json

# Layouts of other frameworks need cuts between layers, which the planner can be asked for.
cut=(--cut-at 'h*.ln_1,ln_f')
expect_exit 0 "${plan[@]}" "${cut[@]}" --export megatron-layout:layout --export deepspeed-parts:parts
expect_match layout '^E?t?(\*[0-9])?(\|(t(\*[0-9])?)?L?){3}$'
expect_equal "layers" "$(sed 's/t\*2/tt/g;s/t\*3/ttt/g;s/t\*4/tttt/g' layout | tr -cd t | wc -c)" 4
expect_match parts '^\[0(, [0-9]){3}, 6\]$'
expect_exit 0 "${plan[@]}" --cut-at layers --export megatron-layout:same --export torchtitan:titan.json
expect_json titan.json
expect_match titan.json '^\[\["tok_embeddings"'
expect_match titan.json '"norm", "lm_head"\]\]$'
expect_equal 'its schedule' "$(cat titan.json.csv)" "$(cat torch.csv)"
expect_equal 'whole layers' "$(cat same)" "$(cat layout)"
expect_exit 0 smp-partition "$model" -n 4 --stages 2 --ddp 2 --shard 2 --chunks 1 --microbatches 4 --pipeline simple \
    --cut-at layers --export torch-csv:torch.csv --export json:plan.json
expect_match err '^smp-partition: torch-csv does not say that there are 2 replicas \(ddp\): wrap .*DistributedDataParallel'
expect_match err '^smp-partition: torch-csv does not say that states lie in shards of 2 replicas: '
expect_equal 'what formats do not say' "$(grep -c 'does not say' err)" "$(grep -c 'torch-csv does not say' err)"
cannot_say() { # REGEX COMMAND...: the plan is shown; the export is not there, for that reason
    expect_exit 2 "${@:2}"
    expect_equal 'lines on standard error' "$(grep -c . err)" 1
    expect_match err "$1"
    expect_match out '^stage +rank'
    [ ! -e refused ] || fail 'what was refused is there'
}
cannot_say 'megatron-layout: .*two kinds' smp-partition "$SMP_EXAMPLES/t5-small.yaml" -n 2 --stages 2 --ddp 1 --chunks 1 \
    --pipeline simple --microbatches 2 --cut-at layers --export megatron-layout:refused
cannot_say "deepspeed-parts: .*no layers" smp-partition "$SMP_EXAMPLES/mlp.yaml" -n 2 --stages 2 --ddp 1 --chunks 1 \
    --pipeline simple --microbatches 2 --export deepspeed-parts:refused
expect_bad "cut-at: no op of model .* names a layer" smp-partition "$SMP_EXAMPLES/mlp.yaml" -n 2 --cut-at layers
three=(smp-partition "$model" -n 3 --stages 3 --ddp 1 --chunks 1 --microbatches 4 --pipeline simple)
cannot_say "megatron-layout: .*is cut.*--cut-at 'h\*\.ln_1,ln_f'" \
    "${three[@]}" --export megatron-layout:refused
cannot_say 'deepspeed-parts: .*is cut' "${three[@]}" --export deepspeed-parts:refused
expect_bad "got format 'dott'.*did you mean 'dot'" "${plan[@]}" --export dott:refused
expect_bad 'expected FORMAT:FILE' "${plan[@]}" --export dot

# A run: the prediction and what was measured.
write_text text.txt 20000
expect_exit 0 smp-partition "$model" -n 2 --stages 2 --ddp 1 --microbatches 4 -o two.yaml
expect_exit 0 mpirun -n 2 smp-run two.yaml --data text.txt --steps 2 --report run.html
page_data run.html >run.json
expect_json run.json
expect_match run.json '"name":"measured"'
expect_equal "lanes" "$(grep -o '"cells":' run.json | wc -l)" 4
# What it tells of all steps needs no script.
sed '/<script/,$d' run.html >still.html
expect_equal "curves" "$(grep -c "<svg .*<path class='curve' d='M" still.html)" 5
expect_equal "ranks" "$(sed -n "/<table id='times'/,/<\/table>/p" still.html | grep -c "^<tr><td>[01]</td>.*title='forward ")" 2
expect_equal "memory of ranks" "$(sed -n "/<table id='resident'/,/<\/table>/p" still.html | grep -cE '^<tr><td>[01]</td>(<td>[0-9.]+ MiB</td>){3}')" 2
expect_no_match page.html '<svg' # a plan has no steps
expect_exit 2 mpirun -n 2 smp-run two.yaml --data text.txt --steps 2 --report no/such/run.html
expect_match err 'cannot write the report'
expect_no_match out 'step 1' # found before the first step
sed -E '/^cluster: /,/^[a-z]/{/^cluster: /d;/^ /d}' two.yaml >bare.yaml
expect_no_match bare.yaml '^cluster:'
expect_exit 2 mpirun -n 2 smp-run bare.yaml --data text.txt --steps 2 --report run.html
expect_match err 'the plan has no .cluster:'
expect_exit 0 smp-partition "$model" -n 1 --microbatches 4 -o one.yaml
expect_exit 1 bash -c 'smp-run one.yaml --data text.txt --steps 2 >/dev/full'
expect_match err 'standard output: cannot write all results'
finish
