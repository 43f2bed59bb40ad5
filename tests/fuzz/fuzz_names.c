/* The reader of rules of names; and what taken rules make of a few weights, which has to be a list
 * of tensors whose elements are those of the weights. */
#include "tests/fuzz/fuzz.h"

#include "graph/safetensors/weights_match.h"

static const smp_matched_weight weights[] = {
    {"h0.qkv.weight", {2, {12, 4}}}, {"h0.q.weight", {2, {4, 4}}}, {"h0.k.weight", {2, {4, 4}}},
    {"h12.ln.bias", {1, {6}}},       {"s1.b2.c3", {3, {2, 2, 2}}},
};
enum { N_WEIGHT = sizeof weights / sizeof weights[0], ELEMENTS = 48 + 16 + 16 + 6 + 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    smp_name_rules rules = {0};
    smp_arena *arena = smp_arena_create();
    smp_written_source *source = NULL;
    int32_t n = 0;
    int64_t elements = 0;
    FUZZ_REQUIRE(arena);
    if (fuzz_taken(smp_name_rules_read(&rules, fuzz_file(data, size))) &&
        fuzz_taken(smp_weights_written(&rules, weights, N_WEIGHT, arena, &source, &n))) {
        for (int32_t i = 0; i < n; i++)
            elements += source[i].elements;
        FUZZ_REQUIRE(elements == ELEMENTS);
    }
    smp_name_rules_free(&rules);
    smp_arena_destroy(arena);
    return 0;
}
