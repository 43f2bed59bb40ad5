/* Far sides on the CPU: what is copied out comes back, beside the thread that asks; a slow link is
 * as slow as it says; what fails says where. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/offload/offload_area.h"
#include "graph/base/clock.h"
#include "graph/base/random.h"

enum { SLOTS = 40, MOST_BYTES = 300000 };

static char folder[64];
static const smp_device *cpu;
static void *context;

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    cpu = smp_device_find("cpu");
    return mkdtemp(folder) && cpu->open(&(smp_device_options){.stamps = 1}, &context) == SMP_OK ? 0
                                                                                                : 1;
}

/* The file of an area has no name: the folder is empty at any time. */
static int tear_down(void **state)
{
    (void)state;
    cpu->close(context);
    return rmdir(folder);
}

static smp_offload_area_options options_of(bool file, int64_t bytes)
{
    return (smp_offload_area_options){.device = cpu,
                                      .device_context = context,
                                      .bytes = bytes,
                                      .slots = 2 * SLOTS,
                                      .folder = file ? folder : NULL};
}

static smp_offload_area *open_area(bool file, int64_t bytes)
{
    smp_offload_area *area = NULL;
    const smp_offload_area_options options = options_of(file, bytes);
    assert_int_equal(smp_offload_area_open(&options, &area), SMP_OK);
    assert_string_equal(smp_offload_area_name(area), file ? "file" : "memory");
    return area;
}

static smp_status wait_for(smp_offload_area *area, int slot)
{
    const struct timespec nap = {.tv_nsec = 20000};
    for (bool done = false;;) {
        SMP_TRY(smp_offload_area_join(area, slot, &done));
        if (done)
            return SMP_OK;
        nanosleep(&nap, NULL);
    }
}

static void fill(uint8_t *values, int64_t n, uint64_t *seed)
{
    for (int64_t i = 0; i < n; i++)
        values[i] = (uint8_t)(smp_random_mix((*seed)++) >> 32);
}

/* Blocks of any sizes, several rounds over the same places, back in another order than out. */
static void there_and_back(bool file)
{
    uint64_t seed = 7 + file;
    int64_t at[SLOTS], bytes[SLOTS], total = 0;
    uint8_t *out[SLOTS], *back[SLOTS];
    for (int i = 0; i < SLOTS; i++) {
        bytes[i] = 1 + (int64_t)(smp_random_mix(seed++) % MOST_BYTES);
        at[i] = total;
        total += (bytes[i] + 63) / 64 * 64;
        out[i] = malloc((size_t)bytes[i]);
        back[i] = malloc((size_t)bytes[i]);
    }
    smp_offload_area *area = open_area(file, total);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < SLOTS; i++) {
            fill(out[i], bytes[i], &seed);
            memset(back[i], 0, (size_t)bytes[i]);
            assert_int_equal(
                smp_offload_area_begin(area, i, SMP_COPY_TO_HOST, out[i], at[i], bytes[i]), SMP_OK);
        }
        for (int k = 0; k < SLOTS; k++) {
            const int i = (k * 7 + round) % SLOTS;
            assert_int_equal(wait_for(area, i), SMP_OK);
            assert_int_equal(smp_offload_area_begin(area, SLOTS + i, SMP_COPY_TO_DEVICE, back[i],
                                                    at[i], bytes[i]),
                             SMP_OK);
        }
        for (int i = 0; i < SLOTS; i++) {
            double begin_s, end_s, next_s, next_end_s;
            assert_int_equal(wait_for(area, SLOTS + i), SMP_OK);
            assert_memory_equal(out[i], back[i], (size_t)bytes[i]);
            assert_true(smp_offload_area_times(area, i, &begin_s, &end_s) && begin_s <= end_s);
            assert_true(
                i + 1 == SLOTS ||
                (smp_offload_area_times(area, i + 1, &next_s, &next_end_s) && end_s <= next_s));
        }
    }
    char *base; /* the same bytes where they lie */
    assert_int_equal(smp_offload_area_base(area, &base), SMP_OK);
    for (int i = 0; i < SLOTS; i++)
        assert_memory_equal(base + at[i], out[i], (size_t)bytes[i]);
    smp_offload_area_close(area);
    for (int i = 0; i < SLOTS; i++) {
        free(out[i]);
        free(back[i]);
    }
}

static void test_far_memory_there_and_back(void **state)
{
    (void)state;
    there_and_back(false);
}

static void test_far_file_there_and_back(void **state)
{
    (void)state;
    there_and_back(true);
}

/* An area is zeroed, as the states of an optimizer have to be. */
static void test_far_is_zeroed(void **state)
{
    (void)state;
    for (int file = 0; file < 2; file++) {
        smp_offload_area *area = open_area(file, 100000);
        char *base;
        assert_int_equal(smp_offload_area_base(area, &base), SMP_OK);
        for (int i = 0; i < 100000; i++)
            assert_int_equal(base[i], 0);
        smp_offload_area_close(area);
    }
}

/* Each way is a link: its copies queue up, those of the other way do not wait for them, and who
 * asks goes on. */
static void test_far_throttle(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20, COPIES = 4 };
    static char values[2 * COPIES][BYTES];
    const double each_s = 0.01;
    char text[32];
    snprintf(text, sizeof text, "%.17g", BYTES / each_s);
    setenv("SMP_THROTTLE_HOST", text, 1);
    smp_offload_area *area = open_area(false, 2 * COPIES * BYTES);
    unsetenv("SMP_THROTTLE_HOST");
    const double begin_s = smp_clock_s();
    for (int i = 0; i < 2 * COPIES; i++)
        assert_int_equal(smp_offload_area_begin(area, i,
                                                i % 2 ? SMP_COPY_TO_DEVICE : SMP_COPY_TO_HOST,
                                                values[i], (int64_t)i * BYTES, BYTES),
                         SMP_OK);
    const double asked_s = smp_clock_s();
    for (int i = 0; i < 2 * COPIES; i++) {
        double from_s, to_s;
        assert_int_equal(wait_for(area, i), SMP_OK);
        const double now_s = smp_clock_s();
        assert_true(smp_offload_area_times(area, i, &from_s, &to_s));
        assert_true(now_s >= to_s && to_s >= from_s + 0.999 * each_s);
        assert_true(from_s >= begin_s + 0.999 * (i / 2) * each_s);
        assert_true(from_s <= asked_s + (i / 2) * each_s);
    }
    smp_offload_area_close(area);
}

static void test_far_throttle_is_a_number(void **state)
{
    (void)state;
    smp_offload_area *area = NULL;
    const smp_offload_area_options options = options_of(false, 64);
    setenv("SMP_THROTTLE_HOST", "fast", 1);
    assert_int_equal(smp_offload_area_open(&options, &area), SMP_ERR_INPUT);
    unsetenv("SMP_THROTTLE_HOST");
    assert_non_null(strstr(smp_last_error(), "SMP_THROTTLE_HOST: got 'fast'"));
    assert_null(area);
}

static void expect_refused(const char *where, int64_t bytes, smp_status status, const char *says)
{
    smp_offload_area *area = NULL;
    smp_offload_area_options options = options_of(true, bytes);
    options.folder = where;
    assert_int_equal(smp_offload_area_open(&options, &area), status);
    if (!strstr(smp_last_error(), says))
        fail_msg("'%s' does not say '%s'", smp_last_error(), says);
    assert_null(area);
}

static void test_far_folder_is_missing(void **state)
{
    (void)state;
    char where[96];
    snprintf(where, sizeof where, "%s/none", folder);
    expect_refused(where, 64, SMP_ERR_INPUT, "none': no file can be made there: No such file");
}

static void limit_files(rlim_t bytes)
{
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* What the disk does not have is missed at the beginning. */
static void test_far_file_without_room(void **state)
{
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    limit_files(1 << 20);
    expect_refused(folder, 2 << 20, SMP_ERR_FAILED, "': 2 MiB cannot be reserved there: File too");
    limit_files(RLIM_INFINITY);
}

/* The area's file, which has no name. */
static int find_file(void)
{
    char path[64], target[256];
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(path, target, sizeof target - 1);
        if (n > 0 && (target[n] = '\0', strstr(target, "smp-offload-")))
            return fd;
    }
    fail_msg("no file of an area is open");
    return -1;
}

static void test_far_file_that_ends(void **state)
{
    (void)state;
    static char values[5000];
    smp_offload_area *area = open_area(true, 10000);
    assert_int_equal(ftruncate(find_file(), 7000), 0);
    assert_int_equal(smp_offload_area_begin(area, 0, SMP_COPY_TO_DEVICE, values, 0, 5000), SMP_OK);
    assert_int_equal(smp_offload_area_begin(area, 1, SMP_COPY_TO_DEVICE, values, 4000, 5000),
                     SMP_OK);
    assert_int_equal(wait_for(area, 0), SMP_OK);
    assert_int_equal(wait_for(area, 1), SMP_ERR_FAILED);
    assert_non_null(strstr(smp_last_error(), "reading 5000 bytes at 4000 of its file: it ends"));
    smp_offload_area_close(area);
}

static void test_far_file_that_cannot_be_written(void **state)
{
    (void)state;
    static char values[5000];
    signal(SIGXFSZ, SIG_IGN);
    smp_offload_area *area = open_area(true, 10000);
    limit_files(4096);
    assert_int_equal(smp_offload_area_begin(area, 0, SMP_COPY_TO_HOST, values, 5000, 5000), SMP_OK);
    assert_int_equal(wait_for(area, 0), SMP_ERR_FAILED);
    limit_files(RLIM_INFINITY);
    assert_non_null(strstr(smp_last_error(), "writing 5000 bytes at 5000 of its file: File too"));
    smp_offload_area_close(area);
}

/* What is asked for and not begun is left undone. */
static void test_far_closes_in_the_middle(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    char *values = calloc(SLOTS, BYTES);
    for (int file = 0; file < 2; file++) {
        smp_offload_area *area = open_area(file, (int64_t)SLOTS * BYTES);
        for (int i = 0; i < SLOTS; i++)
            assert_int_equal(smp_offload_area_begin(area, i, SMP_COPY_TO_HOST,
                                                    values + (int64_t)i * BYTES, (int64_t)i * BYTES,
                                                    BYTES),
                             SMP_OK);
        smp_offload_area_close(area);
    }
    free(values);
    smp_offload_area_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_far_memory_there_and_back),
        cmocka_unit_test(test_far_file_there_and_back),
        cmocka_unit_test(test_far_is_zeroed),
        cmocka_unit_test(test_far_throttle),
        cmocka_unit_test(test_far_throttle_is_a_number),
        cmocka_unit_test(test_far_folder_is_missing),
        cmocka_unit_test(test_far_file_without_room),
        cmocka_unit_test(test_far_file_that_ends),
        cmocka_unit_test(test_far_file_that_cannot_be_written),
        cmocka_unit_test(test_far_closes_in_the_middle),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
