/* The reasons of a plan in words. */
#include "tests/schedule/fixture.h"

#include "tools/show/explain.h"

/* What became of each splitting, in a word of its own. */
static void test_explain_tensor(void **state)
{
    (void)state;
    smp_tensor_tried tried[] = {
        {.tensor = 1, .looked_at = true, .fits = true, .exact = true, .sample_us = 100},
        {.tensor = 2},
        {.tensor = 4, .looked_at = true},
        {.tensor = 8, .looked_at = true, .fits = true, .sample_us = 200},
    };
    const smp_tensor_result made = {.tried = tried, .n_tried = 4};
    smp_text text = {0};
    assert_int_equal(smp_explain_tensor(&made, &text), SMP_OK);
    static const char *const ends[] = {"not looked at for want of effort\n",
                                       "does not fit; not all splittings were compared\n",
                                       "B  not all splittings were compared\n"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (!strstr(text.data, ends[i]))
            fail_msg("'%s' is missing:\n%s", ends[i], text.data);
    smp_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_explain_tensor)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
