#!/usr/bin/env bash
# Plans and data that do not fit the model or the job: exit 2, one message, nothing written.
# shellcheck source=lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

write_good_model good.yaml
write_text text.txt 20000
expect_exit 0 smp-partition good.yaml -n 1 --stages 1 --microbatches 2 --microbatch-size 2 -o plan.yaml
expect_exit 0 smp-run plan.yaml --data text.txt --steps 2
expect_match out '^step 2  loss [0-9]+\.[0-9]+'

# bad_plan SED-EXPRESSION REGEX: the plan, edited, as bad.yaml.
bad_plan() {
    sed -E "$1" plan.yaml >bad.yaml
    expect_equal "edit '$1' changed something" "$(cmp -s plan.yaml bad.yaml && echo no || echo yes)" yes
    expect_bad "$2" smp-run bad.yaml --data text.txt --steps 2 --checkpoint saved --trace trace.json
    rm -f bad.yaml
}
at='(^|[ /])bad\.yaml:[0-9]+:[0-9]+: .*'
bad_plan 's/(fingerprint: *"?)[0-9a-f]{4}/\10000/' 'fingerprint'
bad_plan 's/^smp: 1/smp: 9/' "${at}9"
bad_plan 's/microbatches:/microbatchs:/' "${at}microbatchs"
bad_plan 's/microbatches: 2/microbatches: -2/' "${at}microbatches"
bad_plan 's/microbatches: 2/microbatches: two/' "${at}microbatches"
bad_plan 's/pipeline: 1/pipeline: 4000000000/' "$at"
bad_plan 's/wte/wtf/' 'wtf'
bad_plan 's/F0\.0(.*)B0\.0/B0.0\1F0.0/' 'B0\.0'
bad_plan 's/ O"/"/' 'O'
bad_plan 's/F0\.0/Q0.0/' "${at}Q0\.0"
bad_plan 's/F0\.0/F99999999999.0/' "$at"
bad_plan 's/model: \{path: [^,]*,/model: {path: absent.yaml,/' 'absent\.yaml'
head -c "$(($(wc -c <plan.yaml) / 2))" plan.yaml >bad.yaml
expect_bad 'bad\.yaml' smp-run bad.yaml --data text.txt --steps 2

# The model changed after the plan was made.
cp good.yaml kept.yaml
sed -i '9s/128/130/' good.yaml
expect_bad 'fingerprint' smp-run plan.yaml --data text.txt --steps 2
mv kept.yaml good.yaml

# Data.
expect_bad 'absent\.txt' smp-run plan.yaml --data absent.txt --steps 2
expect_bad '--data|no data' smp-run plan.yaml --steps 2
printf 'short' >short.txt
expect_bad 'short\.txt' smp-run plan.yaml --data short.txt --steps 2
: >empty.txt
expect_bad 'empty\.txt' smp-run plan.yaml --data empty.txt --steps 2
mkdir folder
expect_bad 'folder' smp-run plan.yaml --data folder --steps 2
{ head -c 10000 text.txt; printf '\377'; head -c 5000 text.txt; } >foreign.txt
expect_bad 'foreign\.txt.*255' smp-run plan.yaml --data foreign.txt --steps 2
head -c 3001 text.txt >odd.bin
expect_bad 'odd\.bin' smp-run plan.yaml --data odd.bin --steps 2
head -c 3000 text.txt >large.bin # pairs of letters: tokens far above 127
expect_bad 'large\.bin' smp-run plan.yaml --data large.bin --steps 2
expect_bad 'nothing' smp-run plan.yaml --data nothing=text.npy --steps 2
printf 'no numpy file at all' >broken.npy
expect_bad 'broken\.npy' smp-run plan.yaml --data tokens=broken.npy --data targets=broken.npy --steps 2
if [ "$(id -u)" -ne 0 ]; then
    cp text.txt secret.txt
    chmod 0 secret.txt
    expect_bad 'secret\.txt' smp-run plan.yaml --data secret.txt --steps 2
fi

# Where hwloc sees nothing of the machine, the message is still the only one.
mkdir no-machine
HWLOC_FSROOT=$PWD/no-machine expect_bad 'absent\.yaml' smp-run absent.yaml --data text.txt --steps 2

# Options of the run.
for words in '--steps -1' '--steps many' '--optimizer adagrad' '--lr -1' '--lr nan' '--beta1 1.5' \
    '--clip -1' '--timeout -1' '--on-drift pray' '--timeout-start 5d' '--timeout-save nan' '--log-every 0' '--max-skipped -1' \
    '--save-every 0' '--save-every 0m' '--save-every 10d' '--save-every m' '--save-every 1e99h' \
    '--decay-steps 3 --warmup 4' '--decay-steps 4 --warmup 4'; do
    # shellcheck disable=SC2086 # words
    expect_bad "$(cut -d' ' -f1 <<<"${words#--}")" smp-run plan.yaml --data text.txt $words
done
expect_bad "device: got 'abacus', expected cpu, cuda or auto" \
    smp-run plan.yaml --data text.txt --device abacus
expect_exit 0 smp-run plan.yaml --data text.txt --steps 1 --decay-steps 5 --warmup 4
expect_bad 'checkpoint' smp-run plan.yaml --data text.txt --steps 2 --checkpoint empty --resume
finish
