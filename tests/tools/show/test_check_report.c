/* What smp-partition says of a check: of a plan whose ops are split over groups of devices, and of
 * what each part of a plan falls short by. */
#include "tests/split_check.h"

#include "tools/show/check_report.h"

static void test_check_report_of_groups(void **state)
{
    (void)state;
    static const char text[] = "smp: 1\nparallel: {tensor: 2}\n" MEGATRON
                               "stages: [{ops: wte..h1.res_2}, {ops: h2.ln_1..loss}]\n";
    setting s;
    smp_check check;
    smp_text report = {0}, json = {0};
    open_setting(text, 4, &s);
    assert_int_equal(SMP_OK, smp_check_sketch(&s.request, false, s.sketch, &check));
    assert_int_equal(SMP_OK, smp_check_report(&check, &s.request, &report));
    assert_int_equal(SMP_OK, smp_check_report_json(&check, &s.request, &json));
    assert_non_null(
        strstr(report.data, "on 4 devices = 2 pipeline ranks x 1 replica x tensor 2, "));
    assert_non_null(strstr(report.data, "2 devices compute every op together"));
    assert_non_null(strstr(json.data, "\"parallel\": {\"devices\": 4, \"pipeline\": 2, \"ddp\": 1, "
                                      "\"tensor\": 2, \"chunks\": 1}"));
    smp_text_free(&report);
    smp_text_free(&json);
    smp_check_free(&check);
    close_setting(&s);
}

/* The part that saves most stands in both forms, as a share of what is minimised. */
static void test_check_report_of_parts(void **state)
{
    (void)state;
    static const char text[] = "smp: 1\nparallel: {tensor: 2}\n" MEGATRON
                               "stages: [{ops: wte..h1.res_2}, {ops: h2.ln_1..loss}]\n";
    setting s;
    smp_check check;
    open_setting(text, 4, &s);
    assert_int_equal(SMP_OK, smp_check_sketch(&s.request, false, s.sketch, &check));
    assert_true(check.legal && check.fits);
    check.n_part = SMP_N_PART;
    for (int i = 0; i < SMP_N_PART; i++)
        check.part[i] = (smp_check_part){.kind = (smp_check_part_kind)i};
    check.part[0].saved_us = 10.0;
    check.part[0].share = 0.25;
    for (int bottleneck = 0; bottleneck < 2; bottleneck++) {
        smp_text report = {0}, json = {0};
        char phrase[64];
        s.request.options.objective = bottleneck ? SMP_OBJECTIVE_BOTTLENECK : SMP_OBJECTIVE_STEP;
        assert_int_equal(SMP_OK, smp_check_report(&check, &s.request, &report));
        assert_int_equal(SMP_OK, smp_check_report_json(&check, &s.request, &json));
        snprintf(phrase, sizeof phrase, "of the %s: %s ", bottleneck ? "bottleneck" : "step",
                 smp_check_part_name(check.part[0].kind));
        if (!strstr(report.data, phrase))
            fail_msg("'%s' is missing:\n%s", phrase, report.data);
        snprintf(phrase, sizeof phrase, "\"parts\": [{\"part\": \"%s\"",
                 smp_check_part_name(check.part[0].kind));
        if (!strstr(json.data, phrase))
            fail_msg("'%s' is missing:\n%s", phrase, json.data);
        smp_text_free(&report);
        smp_text_free(&json);
    }
    smp_check_free(&check);
    close_setting(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_check_report_of_groups),
        cmocka_unit_test(test_check_report_of_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
