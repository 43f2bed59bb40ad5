/* What several machines have of a state: sets of bytes against a table of bits, which state is gone
 * on from, indices and lines that are damaged. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/checkpoint/kept_ranges.h"

enum { BYTES = 64, TRIALS = 2000 };

static void must(smp_status status)
{
    if (status != SMP_OK)
        fail_msg("%s", smp_last_error());
}

static unsigned draw(unsigned below)
{
    static uint64_t state = 7;
    state = state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (unsigned)((state >> 33) % below);
}

/* A random set, and the same as bits. */
static uint64_t draw_set(smp__spans *set)
{
    uint64_t bits = 0;
    *set = (smp__spans){0};
    for (unsigned n = draw(6); n > 0; n--) {
        const unsigned begin = draw(BYTES), end = begin + draw(BYTES - begin + 1);
        must(smp__spans_add(set, begin, end));
        for (unsigned i = begin; i < end; i++)
            bits |= UINT64_C(1) << i;
    }
    smp__spans_join(set);
    return bits;
}

static void expect_bits(const smp__spans *set, uint64_t bits)
{
    uint64_t found = 0;
    assert_true(smp__spans_are_set(set->at, set->n, BYTES));
    for (int i = 0; i < set->n; i++)
        for (int64_t k = set->at[i].begin; k < set->at[i].end; k++)
            found |= UINT64_C(1) << k;
    assert_true(found == bits);
    assert_int_equal(smp__spans_bytes(set), __builtin_popcountll(bits));
}

static void test_spans_against_bits(void **state)
{
    (void)state;
    for (int trial = 0; trial < TRIALS; trial++) {
        smp__spans set[3], out = {0};
        uint64_t bits[3];
        for (int i = 0; i < 3; i++)
            bits[i] = draw_set(&set[i]);
        must(smp__spans_common(&set[0], &set[1], &out));
        expect_bits(&out, bits[0] & bits[1]);
        must(smp__spans_without(&set[0], &set[1], &out));
        expect_bits(&out, bits[0] & ~bits[1]);
        must(smp__spans_both(&set[0], &set[1], &out));
        expect_bits(&out, bits[0] | bits[1]);
        must(smp__spans_alone(set, 3, 1, &out));
        expect_bits(&out, bits[1] & ~bits[0] & ~bits[2]);
        const unsigned begin = draw(BYTES), end = begin + draw(BYTES - begin);
        const uint64_t asked = ((UINT64_C(1) << (end - begin)) - 1) << begin;
        assert_int_equal(smp__spans_cover(&set[2], begin, end), (bits[2] & asked) == asked);
        smp__spans_free(&out);
        for (int i = 0; i < 3; i++)
            smp__spans_free(&set[i]);
    }
}

/* "ID BRANCH STEP NUMBER BEGUN BYTES NAMED PLACE N SPANS" */
static int choose(const char *const *lines, int n, int *chosen)
{
    smp__kept_state states[8] = {0};
    int n_chosen;
    for (int i = 0; i < n; i++)
        assert_true(smp__kept_state_parse(lines[i], &states[i]));
    must(smp__kept_choose(states, n, chosen, &n_chosen));
    for (int i = 0; i < n; i++)
        smp__spans_free(&states[i].spans);
    return n_chosen;
}

static void test_kept_choose(void **state)
{
    (void)state;
    int chosen[8];
    const char *const split[] = {"00000000000000aa 1 5 0 0 90 1 0 1 0-50",
                                 "00000000000000aa 1 5 0 0 90 0 2 1 40-90"};
    assert_int_equal(choose(split, 2, chosen), 1);
    assert_int_equal(chosen[0], 0);
    assert_int_equal(choose(split, 1, chosen), 0); /* half of it */
    const char *const unnamed[] = {"00000000000000aa 1 5 0 0 90 0 0 1 0-50",
                                   "00000000000000aa 1 5 0 0 90 0 2 1 40-90"};
    assert_int_equal(choose(unnamed, 2, chosen), 0);
    /* of a machine that was away: another branch, which is later by its steps alone */
    const char *const stale[] = {"00000000000000aa 1 9 0 0 90 1 0 1 0-90",
                                 "00000000000000bb 2 6 0 0 90 1 0 1 0-90",
                                 "00000000000000bb 2 7 0 0 90 1 1 1 0-90",
                                 "00000000000000cc 1 1 1 0 90 1 1 1 0-90",
                                 "00000000000000bb 2 6 1 0 90 1 2 1 0-90",
                                 "00000000000000dd 0 1 9223372036854775807 0 90 1 0 1 0-90"};
    assert_int_equal(choose(stale, 6, chosen), 5); /* of bb, 6 is one state */
    const int order[] = {5, 2, 1, 3, 0};
    assert_memory_equal(chosen, order, sizeof order);
    const char *const mixed[] = {"00000000000000aa 1 5 0 0 90 1 0 1 0-50",
                                 "00000000000000bb 1 5 0 0 90 1 0 1 50-90"};
    assert_int_equal(choose(mixed, 2, chosen), 0);
}

/* Against saves by number and step. */
static void test_kept_is_after(void **state)
{
    static const struct {
        int64_t number, begun, saved, step;
        bool after;
    } cases[] = {{2, 0, 1, 9, true}, {2, 0, 2, 9, true},  {2, 0, 3, 1, false}, {2, 4, 1, 9, true},
                 {2, 4, 2, 4, true}, {2, 4, 2, 9, false}, {2, 4, 2, 3, false}, {2, 4, 3, 4, false}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const smp__kept_state s = {.number = cases[i].number, .begun = cases[i].begun};
        assert_int_equal(smp__kept_is_after(&s, cases[i].saved, cases[i].step), cases[i].after);
    }
}

static void test_kept_lines(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "aa 1 5 0 0 90 1 0 1 0-50",
                                      "00000000000000aa 1 5 0 0 90 1 0 1 0-91",
                                      "00000000000000aa 1 5 0 0 90 1 0 2 0-50",
                                      "00000000000000aa 1 5 0 0 90 1 0 2 0-50 50-60",
                                      "00000000000000aa 1 5 0 0 90 1 0 2 0-50 40-60",
                                      "00000000000000aa 1 5 0 0 90 2 0 1 0-50",
                                      "00000000000000aa 1 5 0 0 90 1 3 1 0-50",
                                      "00000000000000aa 1 -5 0 0 90 1 0 1 0-50",
                                      "00000000000000aa 1 5 0 0 90 1 0 1 0-50 x",
                                      "00000000000000aa 1 5 0 0 90 1 0 99999999 0-50",
                                      "00000000000000aa 1 99999999999999999999 0 0 90 1 0 1 0-50"};
    smp__kept_state s;
    smp_text line = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        if (smp__kept_state_parse(bad[i], &s))
            fail_msg("'%s' is taken for a state", bad[i]);
    static const char good[] = "00000000000000aa 1 5 9223372036854775807 4 90 1 2 2 0-50 60-90";
    assert_true(smp__kept_state_parse(good, &s));
    smp__kept_state_print(&s, &line);
    assert_string_equal(line.data, good);
    smp_text_free(&line);
    smp__kept_state_free(&s);
}

/* Every byte of an index counts, but for those that are read by nobody. */
static void test_kept_index(void **state)
{
    (void)state;
    char path[128];
    snprintf(path, sizeof path, "%s/smp-test-XXXXXX", P_tmpdir);
    const int file = mkstemp(path);
    assert_true(file >= 0);
    smp__span spans[] = {{0, 50}, {60, 90}};
    smp__kept_state s = {.id = 0xaa,
                         .branch = 1,
                         .step = 5,
                         .number = 3,
                         .begun = 4,
                         .bytes = 90,
                         .spans = {.at = spans, .n = 2}},
                    out;
    assert_false(smp__kept_index_read(file, &out));
    must(smp__kept_index_write(file, &s, true, path));
    const off_t length = lseek(file, 0, SEEK_END);
    for (off_t at = 0; at < length; at++) {
        char byte, other;
        assert_int_equal(pread(file, &byte, 1, at), 1);
        other = (char)(byte ^ 4);
        assert_int_equal(pwrite(file, &other, 1, at), 1);
        const bool read = smp__kept_index_read(file, &out);
        assert_int_equal(read, at >= 80 && at < 128);
        if (read)
            smp__kept_state_free(&out);
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    assert_true(smp__kept_index_read(file, &out));
    assert_int_equal(out.step, 5);
    assert_int_equal(out.begun, 4);
    assert_int_equal(out.spans.n, 2);
    smp__kept_state_free(&out);
    assert_int_equal(ftruncate(file, length - 1), 0);
    assert_false(smp__kept_index_read(file, &out));
    assert_int_equal(close(file), 0);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spans_against_bits), cmocka_unit_test(test_kept_choose),
        cmocka_unit_test(test_kept_is_after), cmocka_unit_test(test_kept_lines),
        cmocka_unit_test(test_kept_index)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
