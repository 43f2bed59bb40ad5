/* Lives read from events: what is counted and what it is made of; lines that are no events, or
 * broken at random, are passed over or refused, and what is drawn stays whole. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/case_count.h"
#include "tools/life/job_life.h"

static char path[256];

/* Two supervisors. The first has a failure (step 20 is done again) and other devices, and is
 * killed; the second is told that the clock was set back, and ends. */
static const char whole[] =
    "{\"time_s\": 1000, \"event\": \"begin\", \"starts\": 0, \"step\": 0, \"least\": 1, \"most\": "
    "4, "
    "\"at_hand\": 4}\n"
    "{\"time_s\": 1002, \"event\": \"plan\", \"devices\": 4, \"made\": true, \"ahead\": false}\n"
    "{\"time_s\": 1002, \"event\": \"start\", \"incarnation\": 1, \"devices\": 4, \"slots\": [0, "
    "1], "
    "\"plan\": \"plan-1.yaml\", \"predicted_us\": 5, \"global_batch\": 8}\n"
    "{\"time_s\": 1005, \"event\": \"resumed\", \"from\": \"beginning\", \"step\": 0, \"done\": 1, "
    "\"lost_steps\": 0, \"detect_s\": 0, \"plan_s\": 0, \"start_s\": 1, \"load_s\": 2}\n"
    "{\"time_s\": 1014.5, \"event\": \"steps\", \"step\": 20}\n"
    "{\"time_s\": 1015, \"event\": \"ended\", \"why\": \"failure\", \"exit_code\": 137, \"step\": "
    "20, "
    "\"since_step_s\": 0.5, \"detect_s\": 0.25}\n"
    "{\"time_s\": 1015, \"event\": \"failure\", \"rank\": 2, \"device\": 3, \"step\": 20, "
    "\"signal\": "
    "9, \"exit_code\": 137, \"stalled\": false}\n"
    "{\"time_s\": 1015, \"event\": \"left_out\", \"device\": 3}\n"
    "{\"time_s\": 1015, \"event\": \"host\", \"host\": \"h\\u0001\", \"state\": \"lost\"}\n"
    "{\"time_s\": 1015, \"event\": \"start\", \"devices\": 3, \"global_batch\": 8}\n"
    "{\"time_s\": 1018, \"event\": \"resumed\", \"from\": \"memory\", \"step\": 19, \"done\": 20, "
    "\"lost_steps\": 1, \"detect_s\": 0.25, \"pause_s\": 0, \"plan_s\": 0.5, \"start_s\": 1, "
    "\"load_s\": 1.5}\n"
    "{\"time_s\": 1022.5, \"event\": \"steps\", \"step\": 29}\n"
    "{\"time_s\": 1023, \"event\": \"devices\", \"at_hand\": 1}\n"
    "{\"time_s\": 1023, \"event\": \"ended\", \"why\": \"devices\", \"exit_code\": 137, \"step\": "
    "30, "
    "\"since_step_s\": 0, \"detect_s\": 0}\n"
    "{\"time_s\": 1023, \"event\": \"wait\", \"at_hand\": 1, \"needed\": 2}\n"
    "{\"time_s\": 1030, \"event\": \"begin\", \"starts\": 2, \"step\": 30, \"least\": 1, \"most\": "
    "4, "
    "\"at_hand\": 2}\n"
    "{\"time_s\": 1030, \"event\": \"start\", \"devices\": 2, \"global_batch\": 8}\n"
    "{\"time_s\": 1032, \"event\": \"resumed\", \"from\": \"<memory>\", \"step\": 30, \"done\": "
    "31, "
    "\"lost_steps\": 0, \"detect_s\": 0, \"plan_s\": 0, \"start_s\": 1, \"load_s\": 1}\n"
    "{\"time_s\": 900, \"event\": \"steps\", \"step\": 32}\n"
    "{\"time_s\": 1041, \"event\": \"ended\", \"why\": \"done\", \"exit_code\": 0, \"step\": 40, "
    "\"since_step_s\": 0, \"detect_s\": 0}\n"
    "{\"time_s\": 1042, \"event\": \"end\", \"exit_code\": 0}\n";

static smp_status read_text(const char *text, size_t bytes, smp__life *life)
{
    assert_int_equal(smp_file_write(path, text, bytes), SMP_OK);
    return smp__life_read(path, life);
}

static void test_life_is_counted(void **state)
{
    smp__life life;
    (void)state;
    assert_int_equal(read_text(whole, sizeof whole - 1, &life), SMP_OK);
    assert_int_equal(life.supervisors, 2);
    assert_int_equal(life.failures, 1);
    assert_int_equal(life.changes, 1);
    assert_int_equal(life.steps, 40);
    assert_int_equal(life.lost_steps, 1);
    assert_int_equal(life.most, 4);
    assert_true(life.ended && life.in_samples && life.skipped == 0);
    assert_float_equal(life.length_s, 42.0, 1e-9);
    /* 20 steps of half a second; 10 of 11 (0.5 s); 10 of 1 s. */
    assert_float_equal(life.part_s[SMP__LIFE_STEPS], 10.0 + 5.0 + 10.0, 1e-9);
    /* Of both recoveries, not of the beginning. */
    assert_float_equal(life.part_s[SMP__LIFE_DETECT], 0.25, 1e-9);
    assert_float_equal(life.part_s[SMP__LIFE_START], 2.0, 1e-9);
    assert_float_equal(life.part_s[SMP__LIFE_LOAD], 2.5, 1e-9);
    smp__life_free(&life);
}

/* Spans do not overlap; what is known of turns. */
static void test_life_in_order(void **state)
{
    smp__life life;
    (void)state;
    assert_int_equal(read_text(whole, sizeof whole - 1, &life), SMP_OK);
    for (int i = 1; i < life.n_span; i++)
        assert_true(life.span[i].from_s >= life.span[i - 1].to_s - 1e-9);
    assert_int_equal(life.span[0].part, SMP__LIFE_PLAN);
    assert_float_equal(life.span[0].to_s, 2.0, 1e-9);
    assert_int_equal(life.n_level, 3);
    assert_int_equal(life.level[1].devices, 1);
    assert_int_equal(life.n_rate, 4);
    assert_float_equal(life.rate[0].per_s, 16.0, 1e-6); /* 19 steps of 8 samples in 9.5 s */
    assert_int_equal(life.n_turn, 7);
    assert_string_equal(life.turn[0].what, "the job begins");
    assert_string_equal(life.turn[1].what, "rank 2 (device 3) died (signal 9)");
    assert_true(life.turn[1].resumed && life.turn[1].before == 4 && life.turn[1].after == 3);
    assert_string_equal(life.turn[1].from, "memory");
    assert_string_equal(life.turn[2].what, "device 3 is left out");
    assert_string_equal(life.turn[3].what, "host h\001: lost");
    assert_string_equal(life.turn[4].what, "other devices are at hand");
    assert_false(life.turn[4].resumed); /* the supervisor was killed before */
    assert_string_equal(life.turn[5].what, "waits: 1 of 2 devices at hand");
    assert_string_equal(life.turn[6].what, "the supervisor is started again");
    smp__life_free(&life);
}

static void draw_both(const smp__life *life, smp_text *html, smp_text *svg)
{
    smp__life_html(life, html);
    smp__life_svg(life, svg);
    assert_false(html->failed || svg->failed);
    assert_null(strstr(html->data, "nan"));
    assert_null(strstr(svg->data, "nan"));
    assert_null(strstr(svg->data, "inf"));
}

static void test_life_is_drawn(void **state)
{
    smp__life life;
    smp_text html = {0}, svg = {0};
    (void)state;
    assert_int_equal(read_text(whole, sizeof whole - 1, &life), SMP_OK);
    draw_both(&life, &html, &svg);
    assert_null(strstr(html.data, "<memory"));
    assert_non_null(strstr(html.data, "&lt;memory"));
    assert_non_null(strstr(html.data, "59.5 % of 42.0 s in steps that count"));
    assert_non_null(strstr(svg.data, "samples/s"));
    assert_non_null(strstr(svg.data, "rank 2 (device 3) died (signal 9)"));
    smp_text_free(&html);
    smp_text_free(&svg);
    smp__life_free(&life);
}

/* A supervisor that was refused, and one whose first line cannot be read, are before the job; two
 * steps, of which the second took long, take no longer than there was time. */
static void test_life_begins_with_the_job(void **state)
{
    static const char text[] =
        "{\"time_s\": 10, \"event\": \"begin\"}\n"
        "{\"time_s\": 20, \"event\": \"begin\", \"most\": 9, \"at_hand\": 9}\n"
        "{\"time_s\": 21, \"event\": \"error\", \"exit_code\": 2}\n"
        "{\"time_s\": 21, \"event\": \"end\", \"exit_code\": 2}\n"
        "{\"time_s\": 5000, \"event\": \"begin\", \"most\": 2, \"at_hand\": 2}\n"
        "{\"time_s\": 5000, \"event\": \"start\", \"devices\": 2}\n"
        "{\"time_s\": 5001, \"event\": \"resumed\", \"from\": \"aaaaaaaaaaaaa\xe2\x82\xac\", "
        "\"step\": 0, \"done\": 1, \"lost_steps\": 0}\n"
        "{\"time_s\": 5009, \"event\": \"steps\", \"step\": 2}\n"
        "{\"time_s\": 9999, \"event\": \"steps\"}\n"
        "{\"time_s\": 5010, \"event\": \"end\", \"exit_code\": 0}\n";
    smp__life life;
    (void)state;
    assert_int_equal(read_text(text, sizeof text - 1, &life), SMP_OK);
    assert_int_equal(life.skipped, 2);
    assert_non_null(strstr(life.first_skipped, ", line 1"));
    assert_float_equal(life.length_s, 10.0, 1e-9);
    assert_int_equal(life.supervisors, 1);
    assert_int_equal(life.most, 2);
    assert_int_equal(life.exit_code, 0);
    assert_int_equal(life.n_turn, 1);
    assert_string_equal(life.turn[0].from, "aaaaaaaaaaaaa");     /* the last of 16 bytes is half */
    assert_float_equal(life.part_s[SMP__LIFE_STEPS], 9.0, 1e-9); /* not twice eight */
    smp__life_free(&life);
}

static void test_lines_that_are_no_events(void **state)
{
    static const char *const bad[] = {"{\"time_s\": 1",
                                      "[1, 2]",
                                      "events",
                                      "{\"event\": \"steps\"}",
                                      "{\"time_s\": -1, \"event\": \"end\"}",
                                      "{\"time_s\": 1, \"event\": \"devices\", \"at_hand\": 1e99}",
                                      "{\"time_s\": 1, \"event\": \"steps\", \"step\": \"x\"}",
                                      "{\"time_s\": 1, \"event\": [\"steps\"]}",
                                      "{\"time_s\": .inf, \"event\": \"steps\", \"step\": 3}"};
    const char *fine = strchr(whole, '\n') + 1;
    smp__life life;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        smp_text text = {0};
        smp_text_append_bytes(&text, whole, (size_t)(fine - whole));
        smp_text_append(&text, "%s\n%s%s", bad[i], fine, bad[i]);
        assert_int_equal(read_text(text.data, text.length, &life), SMP_OK);
        assert_int_equal(life.skipped, 2);
        assert_non_null(strstr(life.first_skipped, ", line 2"));
        assert_int_equal(life.steps, 40);
        smp__life_free(&life);
        smp_text_free(&text);
    }
    assert_int_equal(read_text("", 0, &life), SMP_ERR_INPUT);
    smp__life_free(&life);
    assert_int_equal(read_text(fine, strlen(fine) / 2, &life), SMP_ERR_INPUT); /* no beginning */
    smp__life_free(&life);
    unlink(path);
    assert_int_equal(smp__life_read(path, &life), SMP_ERR_INPUT);
    smp__life_free(&life);
}

/* Bytes, lines and their order changed at random. */
static void test_broken_files(void **state)
{
    char text[sizeof whole];
    unsigned seed = 1;
    (void)state;
    for (int i = 0; i < few_or_many(400, 20000); i++) {
        smp__life life;
        smp_text html = {0}, svg = {0};
        memcpy(text, whole, sizeof whole);
        for (int k = rand_r(&seed) % 12; k >= 0; k--) {
            const size_t at = (size_t)rand_r(&seed) % (sizeof whole - 1);
            static const char bytes[] = "0123456789-e.,:{}[]\"\n\0";
            text[at] = bytes[(size_t)rand_r(&seed) % (sizeof bytes - 1)];
        }
        const smp_status status = read_text(text, sizeof whole - 1, &life);
        assert_true(status == SMP_OK || status == SMP_ERR_INPUT);
        if (status == SMP_OK)
            draw_both(&life, &html, &svg);
        smp_text_free(&html);
        smp_text_free(&svg);
        smp__life_free(&life);
    }
}

static int name_file(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "%s/smp-life-XXXXXX", P_tmpdir);
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_file(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

/* A device is found slow, another plan is taken, and the device recovers. */
static void test_life_of_a_slow_device(void **state)
{
    static const char text[] =
        "{\"time_s\": 0, \"event\": \"begin\", \"starts\": 0, \"step\": 0, \"least\": 1, "
        "\"most\": 2, \"at_hand\": 2}\n"
        "{\"time_s\": 1, \"event\": \"start\", \"devices\": 2, \"global_batch\": 8}\n"
        "{\"time_s\": 2, \"event\": \"slow\", \"device\": 1, \"host\": \"h\", \"speed\": "
        "0.35}\n"
        "{\"time_s\": 3, \"event\": \"ended\", \"why\": \"slow\", \"exit_code\": 4, "
        "\"step\": 0}\n"
        "{\"time_s\": 4, \"event\": \"slow\", \"device\": 1, \"host\": \"h\", \"speed\": "
        "1.00}\n";
    smp__life life;
    (void)state;
    assert_int_equal(read_text(text, sizeof text - 1, &life), SMP_OK);
    assert_int_equal(life.changes, 1);
    assert_int_equal(life.skipped, 0);
    assert_int_equal(life.n_turn, 3);
    assert_string_equal(life.turn[0].what, "device 1 is slow: 35 % of its usual speed");
    assert_string_equal(life.turn[1].what, "another plan, as fast as devices are");
    assert_string_equal(life.turn[2].what, "device 1 is no longer taken for slow");
    smp__life_free(&life);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_life_of_a_slow_device),
        cmocka_unit_test(test_life_is_counted),
        cmocka_unit_test(test_life_in_order),
        cmocka_unit_test(test_life_is_drawn),
        cmocka_unit_test(test_lines_that_are_no_events),
        cmocka_unit_test(test_life_begins_with_the_job),
        cmocka_unit_test(test_broken_files),
    };
    return cmocka_run_group_tests(tests, name_file, remove_file);
}
