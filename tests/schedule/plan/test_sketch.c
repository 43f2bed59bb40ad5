/* Sketches: what is missing is found in what is there, and reading ends. */
#include "tests/schedule/fixture.h"

#include "schedule/plan/op_pattern.h"
#include "schedule/plan/sketch.h"

/* A sketch with a list of devices need not say how many replicas there are. */
static void test_sketch_devices(void **state)
{
    (void)state;
    static const struct {
        const char *parallel;
        int ddp; /* 0: refused */
    } cases[] = {{"pipeline: 2, placement: [3, 0, 2, 1]", 2},
                 {"pipeline: 4, placement: [3, 0, 2, 1]", 1},
                 {"pipeline: 2, ddp: 2, placement: [3, 0, 2, 1]", 2},
                 {"pipeline: 2, ddp: 1, placement: [3, 0, 2, 1]", 0},
                 {"pipeline: 3, placement: [3, 0, 2, 1]", 0},
                 {"ddp: 2, placement: [3, 0, 2, 1]", 0},
                 {"placement: [3, 0, 2, 1]", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_sketch *sketch = NULL;
        smp_text text = {0};
        smp_text_append(&text, "smp: 1\nparallel: {%s}\nstages:\n  - {ops: a}\n",
                        cases[i].parallel);
        smp_status status = smp_sketch_parse("s.yaml", text.data, text.length, &sketch);
        if (status != (cases[i].ddp ? SMP_OK : SMP_ERR_INPUT))
            fail_msg("case %zu: %s", i, smp_last_error());
        if (sketch)
            assert_true(sketch->ddp == cases[i].ddp && sketch->device[0] == 3);
        else
            assert_non_null(strstr(smp_last_error(), "s.yaml:2:"));
        smp_sketch_destroy(sketch);
        smp_text_free(&text);
    }
}

/* Entries that look at ever more names come to an end. */
static void test_sketch_mask_is_bounded(void **state)
{
    (void)state;
    static const char *const op[] = {"a", "b", "c"};
    static const char *const texts[] = {"c", "a..b", "*"};
    for (int i = 0; i < 3; i++) {
        const smp_sketch_entry again = {.text = texts[i]};
        const smp_sketch_mask said = {.what = SMP_SKETCH_OPS, .n = 1, .entry = &again};
        bool mask[3];
        int64_t work = SMP_MAX_PATTERN_WORK - 3;
        assert_int_equal(SMP_OK, smp_sketch_op_mask(&said, "offload", 0, op, 3, &work, mask));
        work = SMP_MAX_PATTERN_WORK - i;
        assert_int_equal(SMP_ERR_INPUT,
                         smp_sketch_op_mask(&said, "offload", 0, op, 3, &work, mask));
        assert_non_null(strstr(smp_last_error(), "too many patterns"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sketch_devices),
        cmocka_unit_test(test_sketch_mask_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
