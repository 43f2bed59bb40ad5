#!/usr/bin/env bash
# --help, --version and wrong options of the programs.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

version=$(sed -nE 's/^#define SMP_VERSION_STRING "(.*)"/\1/p' "$SMP_SOURCE_DIR/smp.h")

for program in smp-profile smp-partition smp-run smp-import smp-export; do
    expect_exit 0 "$program" --help
    expect_match out "[Uu]sage:.*$program"
    expect_equal "bytes on standard error" "$(wc -c <err | tr -d ' ')" 0
    expect_exit 0 "$program" --help=man
    expect_match out "^\.TH ${program^^} 1 "
    expect_match out '^\\fB\\-\\-version\\fR'
    expect_exit 0 "$program" --help=bash
    expect_exit 0 bash -n out
    expect_bad "expected man or bash" "$program" --help=html
    expect_exit 0 "$program" --version
    expect_match out "^$program ${version//./\\.}"
    [ "$program" = smp-import ] || expect_match out 'CUDA' # what it was built with, where that matters

    expect_bad '--no-such-option' "$program" --no-such-option
    expect_bad . "$program"
    data=()
    [ "$program" != smp-run ] || data=(--data absent.txt)
    [ "$program" != smp-export ] || data=(--onnx x.onnx --checkpoint absent)
    expect_bad 'absent\.yaml' "$program" absent.yaml ${data[@]+"${data[@]}"}
done

# Only what opens a job needs MPI.
for program in smp-partition smp-import smp-export smp-run; do
    needed=$(ldd "$SMP_BIN_DIR/$program" | grep -c libmpi || true)
    expect_equal "$program: libraries of MPI" "$((needed > 0))" "$([ "$program" = smp-run ] && echo 1 || echo 0)"
done

# Every option of the contract is known and described.
has_options() { # program option...
    local program=$1 option
    shift
    expect_exit 0 "$program" --help
    for option in "$@"; do
        expect_match out "(^|[^-a-z])$option([^-a-z]|\$)"
    done
}
has_options smp-profile -o --device --microbatch-size --dtype --links --link-time --plugin --check-gradients --describe-device
has_options smp-partition -o -n --cluster --profile --stages --ddp --chunks --microbatches \
    --microbatch-size --pipeline --schedule --optimize --objective --active-microbatches --placement --memory \
    --recompute --seed --explain --json --trace --report --export --svg --fix --cut-at --effort --time-limit --global-batch --schedule-from \
    --group --partitioner --model --plugin --device --precision --help --version \
    --offload --loading-horizon --offload-states --tensor --tensor-overlap --split --split-from
expect_match out '^       smp-partition check PLAN'
has_options smp-partition --costs --same-bits-as
for name in simple gpipe interleaved 1f1b zero-bubble linear exact torch-csv; do
    expect_match out "(^|[ ,(])$name([ ,)]|\$)" # from the registries
done
expect_equal "lines of over 100 columns" "$(grep -cE '^.{101}' out || true)" 0
has_options smp-run --data --steps --optimizer --lr --min-lr --warmup --decay-steps --weight-decay \
    --beta1 --beta2 --epsilon --momentum --clip --seed --data-seed --no-shuffle --checkpoint \
    --save-every --resume --trace --json --log-every --timeout --timeout-start --timeout-save --check-replicas --on-drift --checksum --eval-data --eval-every \
    --device --max-skipped --drop-last --plugin --profile-out --export-weights --nesterov --trust-coefficient \
    --lr-schedule --decay-every --gamma --weights-like --eval-split --epochs --predict --predict-data --predict-reduce --tensor \
    --export-size --weights --weights-only --weights-map --names --log --progress --keep --keep-best --resume-best --save-must --elastic --rows
has_options smp-import -o --weights --loss --dim --help --version
has_options smp-export --onnx --tensor --external-data --checkpoint --best --weights --weights-map --names --plugin --help --version

# What bash completes: options after a dash, words after an option that chooses.
completes() { # words typed: what they may become, in `words`
    expect_exit 0 smp-partition --help=bash
    cp out complete.bash
    # shellcheck disable=SC2016 # for the shell that is started
    words=$(bash -c 'source ./complete.bash; COMP_WORDS=(smp-partition "$@"); COMP_CWORD=$#; _smp_partition
        echo "${COMPREPLY[*]}"' - "$@")
}
completes model.yaml --sch
expect_equal "completions of --sch" "$words" '--schedule --schedule-from'
completes model.yaml --placement s
expect_equal "completions of --placement s" "$words" spread

# Values that options do not take.
write_good_model model.yaml
bad_value() { # program, argument words
    local program=$1
    shift
    expect_bad "${1#-}" "$program" model.yaml "$@"
}
bad_value smp-profile --microbatch-size 0
bad_value smp-profile --microbatch-size three
bad_value smp-profile --device abacus
bad_value smp-profile --dtype fp7
expect_bad '--offload-to here: nothing is measured of that without --links' \
    smp-profile "$SMP_EXAMPLES/mlp.yaml" --offload-to here
for option in --stages --ddp --chunks --microbatches --microbatch-size -n; do
    bad_value smp-partition "$option" -1
    bad_value smp-partition "$option" 99999999999999999999
    bad_value smp-partition "$option" 2x
done
bad_value smp-partition --pipeline sideways
bad_value smp-partition --schedule sideways
expect_bad "got 'interleavd', expected one of simple \(gpipe\), .*; nearest is 'interleaved'" \
    smp-partition model.yaml --pipeline interleavd
expect_bad "nearest is '1f1b'" smp-partition model.yaml --schedule 1f1
bad_value smp-partition --optimize everything
bad_value smp-partition --objective profit
bad_value smp-partition --placement anywhere
bad_value smp-partition --placement DPP
bad_value smp-partition --placement DPTD
bad_value smp-partition --placement ''
bad_value smp-partition --memory lots
bad_value smp-partition --memory -5GB
bad_value smp-partition --memory 1e300
bad_value smp-partition --memory 2000PiB
bad_value smp-partition --recompute sometimes
bad_value smp-partition --offload sometimes
bad_value smp-partition --loading-horizon -1
bad_value smp-partition --device abacus
bad_value smp-partition --precision fp7
bad_value smp-partition --active-microbatches 0
bad_value smp-partition --group x
bad_value smp-partition --partitioner scissors
bad_value smp-partition --time-limit -1
bad_value smp-partition --export cuneiform:plan.clay
bad_value smp-partition --cut-at ,
bad_value smp-partition --fix
bad_value smp-partition --seed
finish
