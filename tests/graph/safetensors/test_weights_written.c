/* What weights become by rules: stacked ones are cut into equal parts, or as the rule says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "graph/safetensors/name_family.h"
#include "graph/safetensors/weights_match.h"

enum { WIDE = 8 };

/* A weight of so many rows of WIDE by one rule. */
static smp_status write_rows(const char *rule, int64_t rows, smp_arena *arena,
                             smp_written_source **out, int32_t *n)
{
    const smp_matched_weight weight = {"h0.qkv.weight", {2, {rows, WIDE}}};
    smp_name_rules rules = {0};
    smp_status status = smp_name_rules_add(&rules, "map", rule);
    if (status == SMP_OK)
        status = smp_weights_written(&rules, &weight, 1, arena, out, n);
    smp_name_rules_free(&rules);
    return status;
}

static void expect_rows(const char *rule, int64_t rows, const int64_t end[3])
{
    smp_arena *arena = smp_arena_create();
    smp_written_source *tensor = NULL;
    int32_t n = 0;
    assert_int_equal(write_rows(rule, rows, arena, &tensor, &n), SMP_OK);
    assert_int_equal(n, 3);
    for (int i = 0; i < 3; i++) {
        const int64_t begin = i > 0 ? end[i - 1] : 0;
        assert_int_equal(tensor[i].shape.dim[0], end[i] - begin);
        assert_int_equal(tensor[i].shape.dim[1], WIDE);
        assert_int_equal(tensor[i].piece[0].begin, begin * WIDE);
        assert_int_equal(tensor[i].piece[0].end, end[i] * WIDE);
    }
    smp_arena_destroy(arena);
}

static void test_weights_written_stacks(void **state)
{
    (void)state;
    expect_rows("h{i}.qkv.weight = q.{i} + k.{i} + v.{i}", 24, (int64_t[]){8, 16, 24});
    /* grouped heads: q as wide as the model, k and v of two heads of 2 */
    expect_rows("h{i}.qkv.weight = q.{i} rows d1 + k.{i} + v.{i}", 16, (int64_t[]){8, 12, 16});
    expect_rows("h{i}.qkv.weight = q.{i} + k.{i} rows 3 + v.{i} rows 3", 16,
                (int64_t[]){10, 13, 16});
    expect_rows("h{i}.qkv.weight = q.{i} rows d1 + k.{i} rows 5 + v.{i} rows 3", 16,
                (int64_t[]){8, 13, 16});
}

/* Of every item, which are matrices of WIDE columns, a tensor or two. */
static void test_weights_written_items(void **state)
{
    (void)state;
    static const smp_matched_weight weight[] = {{"h7.up", {3, {12, 4, WIDE}}},
                                                {"h7.down", {3, {12, WIDE, 4}}}};
    smp_arena *arena = smp_arena_create();
    smp_name_rules rules = {0};
    smp_written_source *t = NULL;
    int32_t n = 0;
    assert_int_equal(smp_name_rules_add(&rules, "map",
                                        "h{i}.up = l{i}.{#}.a rows 3 + l{i}.{#}.b\n"
                                        "h{i}.down = l{i}.{#}.c transposed\n"),
                     SMP_OK);
    assert_int_equal(smp_weights_written(&rules, weight, 2, arena, &t, &n), SMP_OK);
    assert_int_equal(n, 36);
    assert_string_equal(t[22].name, "l7.11.a");
    assert_string_equal(t[23].name, "l7.11.b");
    assert_string_equal(t[35].name, "l7.11.c");
    assert_int_equal(t[22].shape.dim[0], 3);
    assert_int_equal(t[22].piece[0].begin, 11 * 4 * WIDE);
    assert_int_equal(t[23].piece[0].begin, 11 * 4 * WIDE + 3 * WIDE);
    assert_int_equal(t[23].piece[0].end, 12 * 4 * WIDE);
    assert_int_equal(t[35].shape.dim[0], 4);
    assert_int_equal(t[35].shape.dim[1], WIDE);
    smp_name_rules_free(&rules);
    smp_arena_destroy(arena);
}

static void expect_refused(const char *rule, int64_t rows, const char *why)
{
    smp_arena *arena = smp_arena_create();
    smp_written_source *tensor;
    int32_t n;
    assert_int_equal(write_rows(rule, rows, arena, &tensor, &n), SMP_ERR_INPUT);
    if (!strstr(smp_last_error(), why))
        fail_msg("%s: got '%s', expected '%s'", rule, smp_last_error(), why);
    smp_arena_destroy(arena);
}

static void test_weights_written_refuses(void **state)
{
    (void)state;
    static const char parts[] = "its rows do not fall into the parts of the rule";
    expect_refused("h{i}.qkv.weight = q + k + v", 16, parts);
    expect_refused("h{i}.qkv.weight = q rows d1 + k + v", 8, parts); /* nothing is left */
    expect_refused("h{i}.qkv.weight = q rows 5 + k rows 5 + v rows 5", 16, parts);
    expect_refused("h{i}.qkv.weight = q rows d1", 16, "`rows` goes with tensors that are stacked");
    expect_refused("h{i}.qkv.weight = q rows d0 + k", 16, "rows: expected a number or d1 to d5");
    expect_refused("h{i}.qkv.weight = q rows + k", 16, "rows: expected a number or d1 to d5");
    expect_refused("h{i}.qkv.weight = q.{#} + k", 16, "`{#}` stands in all tensors of a rule");
    expect_refused("h{#}.qkv.weight = q.{#}", 16, "a '{' without a name");
    expect_refused("h{i}.qkv.weight = q.{i+x} + k", 16, "expected {NAME}, {NAME+N} or {NAME-N}");
}

/* A family is asked for to have its names, so a weight without one is no weight of it; unless a map
 * of one's own names the rest. */
static void test_weights_written_of_a_family_have_its_names(void **state)
{
    (void)state;
    static const smp_matched_weight weight[] = {
        {"wte.weight", {2, {4, WIDE}}},
        {"h0.attn.qkv.weight", {2, {4, WIDE}}},
        {"special.weight", {1, {4}}},
    };
    static const char own[] = "special.weight = mine\nh{i}.attn.qkv.weight = layers.{i}.qkv\n";
    for (int mapped = 0; mapped <= 1; mapped++) {
        smp_arena *arena = smp_arena_create();
        smp_name_rules rules = {0};
        smp_written_source *tensor;
        int32_t n;
        if (mapped)
            assert_int_equal(smp_name_rules_add(&rules, "map", own), SMP_OK);
        assert_int_equal(smp_name_rules_open(&rules, NULL, "hf-llama"), SMP_OK);
        assert_int_equal(smp_weights_written(&rules, weight, 3, arena, &tensor, &n),
                         mapped ? SMP_OK : SMP_ERR_INPUT);
        if (!mapped)
            assert_string_equal(smp_last_error(),
                                "names 'hf-llama': none for 2 of 3 weights: 'h0.attn.qkv.weight', "
                                "nearest h{i}.qkv.weight, 'special.weight'; rules of your own "
                                "(--weights-map) go before them");
        smp_name_rules_free(&rules);
        smp_arena_destroy(arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights_written_stacks),
        cmocka_unit_test(test_weights_written_items),
        cmocka_unit_test(test_weights_written_refuses),
        cmocka_unit_test(test_weights_written_of_a_family_have_its_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
