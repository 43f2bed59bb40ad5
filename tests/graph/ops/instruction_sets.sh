#!/usr/bin/env bash
# Equal bits on SSE2, AVX2 and AVX-512: what op_bits.c prints from kernels of each set, oneDNN's the same;
# then with oneDNN and the C library, too, held to each set, as on a processor that has no more. Of those,
# only the operators that compute through oneDNN may differ, and each of them does.
set -euo pipefail
by_onednn=(attention conv2d expert_linear gelu linear linear_cross_entropy ring_attention ring_linear softmax tanh)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

digests() { # set of the kernels, of oneDNN, of the C library
    GLIBC_TUNABLES=$3 ONEDNN_MAX_CPU_ISA=$2 "$SMP_BIN_DIR/op_bits_$1"
}

of_processor() { # set
    case $1 in
    sse2) digests sse2 SSE41 glibc.cpu.hwcaps=-AVX2,-FMA ;;
    avx2) digests avx2 AVX2 glibc.cpu.hwcaps=-AVX512F,-AVX512VL ;;
    x86-64-v4) digests x86-64-v4 AVX512_CORE '' ;;
    esac
}

differing() { # two files: the operators whose lines differ
    diff "$1" "$2" | sed -n 's/^[<>] \([^ ]*\) .*/\1/p' | LC_ALL=C sort -u || true
}

flags=$(grep -m 1 '^flags' /proc/cpuinfo)
sets=(sse2)
if [[ $flags == *' avx2 '* && $flags == *' fma '* ]]; then sets+=(avx2); fi
if [[ $flags == *' avx512f '* && $flags == *' avx512bw '* && $flags == *' avx512cd '* &&
    $flags == *' avx512dq '* && $flags == *' avx512vl '* ]]; then sets+=(x86-64-v4); fi
if [ ${#sets[@]} -eq 1 ]; then
    echo "instruction_sets: this processor has SSE2 alone: nothing to compare"
    exit 77
fi
[ ${#sets[@]} -eq 3 ] || echo "instruction_sets: this processor lacks AVX-512: ${sets[*]} are compared"

status=0
for set in "${sets[@]}"; do
    digests "$set" SSE41 '' >"$folder/kernels.$set"
    of_processor "$set" >"$folder/processor.$set"
    [ -s "$folder/kernels.$set" ]
    other=$(differing "$folder/kernels.sse2" "$folder/kernels.$set")
    if [ -n "$other" ]; then
        echo "instruction_sets: kernels for sse2 and $set give other bits: ${other//$'\n'/ }" >&2
        status=1
    fi
done
differing "$folder/processor.sse2" "$folder/processor.${sets[-1]}" >"$folder/other"
differing "$folder/processor.sse2" "$folder/processor.avx2" >>"$folder/other"
if ! difference=$(diff <(printf '%s\n' "${by_onednn[@]}") <(LC_ALL=C sort -u "$folder/other")); then
    echo "instruction_sets: listed (<) against found (>) to differ between processors:" >&2
    echo "$difference" >&2
    status=1
fi
[ $status -eq 0 ] && echo "instruction_sets: ${sets[*]}: $(wc -l <"$folder/kernels.sse2") digests are equal," \
    "between processors all but those of ${by_onednn[*]}"
exit $status
