/* Sketches: what is missing is found in what is there. */
#include "tests/schedule/fixture.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sketch_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
