/* smp-partition without memory: it plans, checks, draws and exports, and each time another
 * allocation fails. It says so, or has no need of it and does what it would have done; nothing
 * crashes or leaks. SMP_STARVE=all lets every one fail, SMP_STARVE=paths one of every call path;
 * else a part of these does, drawn by a seed. */
#include <fcntl.h>
#include <getopt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/status.h"
#include "graph/base/text.h"
#include "tests/case_count.h"
#include "tests/tools/fail_allocation.h"

enum { MAX_WORDS = 32, MOST = 24, MAX_FILE = 1 << 24 };

int smp_partition_main(int argc, char **argv); /* tools/smp-partition.c */

static char folder[64];
static int failures;

/* Runs the program on the words of a line; its output goes to the file `shown`. */
static int run(const char *line)
{
    char copy[1024], *word[MAX_WORDS + 1] = {"smp-partition"}, *rest = NULL;
    int n = 1;
    snprintf(copy, sizeof copy, "%s --effort full", line); /* the same on a busy machine */
    for (char *at = strtok_r(copy, " ", &rest); at && n < MAX_WORDS;
         at = strtok_r(NULL, " ", &rest))
        word[n++] = at;
    optind = 0; /* glibc: begin anew */
    return smp_partition_main(n, word);
}

/* What the run left behind: both streams and every file that it may write. */
static const char *const outputs[] = {"shown",      "plan.yaml", "report.html",
                                      "trace.json", "export",    "export.stages"};
enum { OUTPUTS = sizeof outputs / sizeof *outputs };

typedef struct result {
    int code;
    char message[512];
    long allocations;
    char *data[OUTPUTS];
    size_t length[OUTPUTS];
} result;

static void take_outputs(result *r)
{
    for (int i = 0; i < OUTPUTS; i++) {
        r->data[i] = NULL;
        r->length[i] = 0;
        if (access(outputs[i], R_OK) == 0)
            assert_int_equal(smp_file_read(outputs[i], MAX_FILE, &r->data[i], &r->length[i]),
                             SMP_OK);
        unlink(outputs[i]);
    }
}

static void free_outputs(result *r)
{
    for (int i = 0; i < OUTPUTS; i++)
        free(r->data[i]);
}

/* A file is whole or not there. */
static void check_outputs(const result *got, const result *expected, bool all)
{
    for (int i = 0; i < OUTPUTS; i++) {
        if (!all && (i == 0 || !got->data[i]))
            continue;
        if (got->length[i] != expected->length[i] ||
            (got->length[i] > 0 && memcmp(got->data[i], expected->data[i], got->length[i]) != 0)) {
            print_error("%s is not what it is with memory, without that of\n", outputs[i]);
            fail_allocation_print();
            failures++;
        }
    }
}

/* What the run comes to when allocation `number` fails; 0, -1: none does. */
static result run_without(const char *line, long number)
{
    result r = {0};
    fflush(stdout);
    const int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO);
    const int shown = open("shown", O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(out >= 0 && err >= 0 && shown >= 0);
    assert_true(dup2(shown, STDOUT_FILENO) >= 0 && dup2(shown, STDERR_FILENO) >= 0);
    fail_allocation(number);
    r.code = run(line);
    r.allocations = fail_allocation_count();
    fflush(stdout);
    assert_true(dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0);
    close(shown);
    close(out);
    close(err);
    snprintf(r.message, sizeof r.message, "%s", r.code != 0 ? smp_last_error() : "");
    take_outputs(&r);
    if (fail_allocation_leaks() > 0) {
        print_error("... when this one fails\n");
        fail_allocation_print();
        failures++;
    }
    return r;
}

/* narrow: said in addition in the ordinary run, so that less is searched; most of the time goes
 * into noting the ways to every allocation. */
static void starve(const char *wide, const char *narrow, int code, unsigned seed)
{
    long tried = 0, not_needed = 0;
    char line[1024];
    snprintf(line, sizeof line, "%s%s", wide, is_long() ? "" : narrow);
    result with = run_without(line, 0);
    assert_int_equal(with.code, code);
    for (long k = 0; (k = fail_allocation_next(k, MOST, seed)) > 0; tried++) {
        result without = run_without(line, k);
        const bool needed = strstr(without.message, "memory") && without.code == 1;
        if (!needed && (without.code != with.code || strcmp(without.message, with.message) != 0)) {
            print_error("exit code %d, message '%s' without the memory of\n", without.code,
                        without.message);
            fail_allocation_print();
            failures++;
        }
        not_needed += !needed;
        check_outputs(&without, &with, !needed);
        free_outputs(&without);
    }
    free_outputs(&with);
    print_message("%s: %ld of %ld allocations failed, %ld were not needed\n", line, tried,
                  with.allocations, not_needed);
}

#define MLP SMP_SOURCE_DIR "/examples/mlp.yaml"
#define LINEAR SMP_SOURCE_DIR "/examples/linear.yaml"
#define BRANCHES SMP_SOURCE_DIR "/examples/branches.yaml"
#define GPT SMP_SOURCE_DIR "/examples/gpt-tiny.yaml"
#define MIXED SMP_SOURCE_DIR "/examples/cluster-mixed.yaml"
#define A100 SMP_SOURCE_DIR "/examples/cluster-a100.yaml"

static void test_planning_survives_without_memory(void **state)
{
    (void)state;
    static const struct {
        const char *wide, *narrow;
    } lines[] = {
        {MLP " -n 2 -o plan.yaml --explain --trace trace.json --report report.html",
         " --cut-at act_*"},
        {MLP " -n 2 -o plan.yaml --svg export --json --pipeline zero-bubble --optimize memory"
             " --stages 2 --microbatches 2",
         " --cut-at act_*"},
        {MLP
         " -n 2 --microbatches 3 --stages 2 --pipeline auto --recompute all --export json:export",
         " --cut-at act_*"},
        {BRANCHES " -n 2 --stages 2 --chunks 1 --microbatches 2 --pipeline simple --cluster " MIXED
                  " --placement spread --export dot:export",
         ""},
        {BRANCHES " -n 4 --stages 2 --chunks 2 --objective bottleneck --partitioner metis-kway"
                  " --microbatches 4 --cut-at * --export torch-csv:export",
         ""},
        {BRANCHES
         " -n 2 --stages 2 --partitioner exact --microbatches 4 --export torch-stages:export",
         " --chunks 1 --cut-at join,tail.*"},
        {GPT " -n 4 --stages 2 --ddp 2 --chunks 1 --microbatches 4 --cut-at h*.ln_1,ln_f"
             " --partitioner linear --export megatron-layout:export",
         ""},
        {GPT " -n 2 --stages 2 --chunks 1 --memory 12MB --microbatches 2 --cut-at h*.ln_1,ln_f"
             " --partitioner linear --export deepspeed-parts:export",
         ""},
    };
    const unsigned n = sizeof lines / sizeof *lines;
    for (unsigned i = 0; i < n; i++)
        starve(lines[i].wide, lines[i].narrow, 0, i);
    starve(is_long() ? GPT " -n 2 --stages 2 --memory 1MB --microbatches 2 --partitioner linear"
                     : LINEAR " -n 2 --stages 2 --memory 100 --microbatches 2 --partitioner linear",
           " --chunks 1", 3, n);
    assert_int_equal(failures, 0);
}

/* A plan as input: the one of a run with memory, and what somebody wrote by hand. */
static void test_checks_survive_without_memory(void **state)
{
    (void)state;
    const char *const lines[] = {
        "check kept.yaml --explain -o plan.yaml --trace trace.json --report report.html",
        is_long() ? "check sketch.yaml --json --model " MLP
                  : "check sketch.yaml --json --model " LINEAR,
        MLP " -n 2 --fix kept.yaml:0 --microbatches 4 -o plan.yaml",
    };
    const char *const sketch = is_long()
                                   ? "smp: 1\nschedule: simple\nbatch: {microbatches: 2}\nstages:\n"
                                     "- {ops: [five_to_two, fc_1], recompute: true}\n"
                                     "- {ops: act_1..loss}\n"
                                   : "smp: 1\nschedule: simple\nbatch: {microbatches: 2}\nstages:\n"
                                     "- {ops: [linear], recompute: true}\n- {ops: loss..loss}\n";
    static const char wrong[] = "smp: 1\nstages:\n- {ops: [fc_11, '*']}\n";
    result kept = run_without(MLP " -n 2 --stages 2 --microbatches 4 -o kept.yaml", -1);
    assert_int_equal(kept.code, 0);
    free_outputs(&kept);
    assert_int_equal(smp_file_write("sketch.yaml", sketch, strlen(sketch)), SMP_OK);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        starve(lines[i], "", 0, (unsigned)i);
    assert_int_equal(smp_file_write("sketch.yaml", wrong, sizeof wrong - 1), SMP_OK);
    starve(lines[1], "", 2, 0);
    assert_int_equal(unlink("kept.yaml") | unlink("sketch.yaml"), 0);
    assert_int_equal(failures, 0);
}

/* A link stays one, and what it points to is what it was or what it should be. */
static void test_written_files_survive_without_memory(void **state)
{
    (void)state;
    struct stat info;
    assert_int_equal(symlink("aside", "link"), 0);
    long count = 1;
    for (long number = 1; number <= count + 1; number++) {
        char *data = NULL;
        size_t bytes = 0;
        assert_int_equal(smp_file_write("aside", "old", 3), SMP_OK);
        fail_allocation(number);
        const smp_status status = smp_file_write("link", "new", 3);
        count = fail_allocation_count();
        assert_int_equal(fail_allocation_leaks(), 0);
        /* What looks for files that dead writers left can do without. */
        assert_true(status == SMP_OK || (number <= count && status == SMP_ERR_NO_MEMORY));
        assert_true(lstat("link", &info) == 0 && S_ISLNK(info.st_mode));
        assert_int_equal(smp_file_read("aside", MAX_FILE, &data, &bytes), SMP_OK);
        assert_string_equal(data, status == SMP_OK ? "new" : "old");
        free(data);
    }
    assert_int_equal(unlink("link") | unlink("aside"), 0);
}

static int enter_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    return mkdtemp(folder) ? chdir(folder) : -1;
}

static int leave_folder(void **state)
{
    (void)state;
    return chdir("/") | rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planning_survives_without_memory),
        cmocka_unit_test(test_checks_survive_without_memory),
        cmocka_unit_test(test_written_files_survive_without_memory),
    };
    return cmocka_run_group_tests(tests, enter_folder, leave_folder);
}
