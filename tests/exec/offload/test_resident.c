/* What a process has in memory is what its plan says that a rank reserves, on the device and of the
 * host, within 1 % of a job that is large enough; a file in place of the host's memory takes that
 * much of a disk and nothing of memory. */
#include <mpi.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "exec/state/handle.h"
#include "tests/case_count.h"
#include "tests/exec/changed_plan.h"
#include "tests/exec/open_ranks.h"

enum { MICROBATCHES = 12, BATCH = 16, T = 64 };

static const char model[] =
    "smp: 1\n"
    "name: wide\n"
    "inputs:\n"
    "  tokens: {dtype: int32, shape: [64]}\n"
    "  goal: {dtype: float32, shape: [64, 4]}\n"
    "ops:\n"
    "  - {op: embedding, name: a, in: tokens, out: y, rows: 16, features: 1024}\n"
    "  - {op: layernorm, name: n, in: y, out: y}\n"
    "  - {op: gelu, name: b, in: y, out: y}\n"
    "  - {op: gelu, name: c, in: y, out: y}\n"
    "  - {op: gelu, name: d, in: y, out: y}\n"
    "  - {op: gelu, name: e, in: y, out: y}\n"
    "  - {op: gelu, name: f, in: y, out: y}\n"
    "  - {op: linear, name: last, in: y, out: y, features: 4}\n"
    "  - {op: mse, name: loss, in: [y, goal], out: l}\n"
    "loss: l\n";

static int64_t anonymous_bytes(void)
{
    char line[256];
    long long kib = -1;
    FILE *status = fopen("/proc/self/status", "r");
    assert_non_null(status);
    while (fgets(line, sizeof line, status) && sscanf(line, "RssAnon: %lld kB", &kib) != 1)
        ;
    assert_int_equal(fclose(status), 0);
    assert_true(kib > 0);
    return 1024 * kib;
}

/* Blocks of the file of the host area, which has no name. */
static int64_t file_bytes(void)
{
    char path[64], target[256];
    struct stat file;
    for (int fd = 3; fd < 256; fd++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        const ssize_t n = readlink(path, target, sizeof target - 1);
        if (n > 0 && (target[n] = '\0', strstr(target, "smp-offload-")) && fstat(fd, &file) == 0)
            return 512 * (int64_t)file.st_blocks;
    }
    return 0;
}

static void assert_within(int64_t got, int64_t expected, double share)
{
    print_message("%.1f MB, expected %.1f MB\n", 1e-6 * (double)got, 1e-6 * (double)expected);
    assert_true((double)llabs(got - expected) <= share * (double)expected);
}

/* The first job of a process takes some megabytes of libraries, whatever its size. */
static void measure(plan_changes changes, bool file, bool first)
{
    char model_path[96], plan_path[96];
    smp_options options = smp_options_default();
    smp_graph *graph = NULL;
    smp *job = NULL;
    smp_step_result result;
    static int32_t tokens[MICROBATCHES * BATCH * T];
    static float goal[MICROBATCHES * BATCH * T * 4];
    for (int i = 0; i < MICROBATCHES * BATCH * T; i++)
        tokens[i] = i * 7 % 16;
    snprintf(model_path, sizeof model_path, "%s/model.yaml", ranks_folder);
    snprintf(plan_path, sizeof plan_path, "%s/plan.yaml", ranks_folder);
    must(smp_file_write(model_path, model, strlen(model)));
    must(smp_graph_read(model_path, &graph));
    options.model = model_path;
    options.planning.microbatches = MICROBATCHES;
    options.planning.microbatch_size = BATCH;
    options.planning.schedule = "simple";
    must(changed_plan_write(&options, 1, graph, changes, plan_path));
    options.model = NULL;
    options.plan = plan_path;
    options.runtime.offload_to = file ? ranks_folder : NULL;
    const int64_t before = anonymous_bytes();
    must(smp_init(&job, &options));
    const void *const inputs[] = {tokens, goal};
    for (int step = 0; step < 2; step++)
        must(smp_step(job, inputs, &result));
    const smp_predicted *predicted = &job->plan->predicted;
    const int64_t host = predicted->host_bytes ? predicted->host_bytes[0] : 0;
    if (!first)
        assert_within(anonymous_bytes() - before, predicted->peak_bytes[0] + (file ? 0 : host),
                      0.01);
    if (file)
        assert_within(file_bytes(), host, 0.01);
    smp_finalize(job);
    smp_graph_destroy(graph);
    assert_int_equal(unlink(plan_path) + unlink(model_path), 0);
}

static void test_resident_is_predicted(void **state)
{
    (void)state;
    if (SANITIZED)
        skip(); /* it has memory of its own */
    for (int first = 1; first >= 0; first--)
        measure((plan_changes){.seed = 1}, false, first);
    measure((plan_changes){.seed = 1, .offload_percent = 100}, false, false);
    measure((plan_changes){.seed = 1, .offload_percent = 100, .offload_states = true}, false,
            false);
    measure((plan_changes){.seed = 1, .offload_percent = 100}, true, false);
}

int main(int argc, char **argv)
{
    open_ranks(&argc, &argv);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_resident_is_predicted)};
    return close_ranks(cmocka_run_group_tests(tests, NULL, NULL));
}
