/* smp-partition --explain over every combination of means against memory: recomputation, offload,
 * states in host memory, shards, tensor parallelism, chunks. Each of them that the plan has is a
 * row of its table. For the sanitizers, too. */
#include <getopt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "graph/base/text.h"
#include "tests/case_count.h"
#include "tests/tools/scratch_folder.h"

enum { MAX_WORDS = 64, MAX_TEXT = 1 << 20, MEANS = 6 };

int smp_partition_main(int argc, char **argv); /* tools/smp-partition.c */

/* With `links: host`, without which nothing is offloaded. */
static const char cluster[] =
    "smp: 1\n"
    "name: short of memory\n"
    "nodes: 1\n"
    "devices_per_node: 8\n"
    "device: {name: small, memory: %s, compute: {fp32: 1TFLOP/s}, bandwidth: 100GB/s}\n"
    "links:\n"
    "  intra_node: {bandwidth: 10GB/s, latency_us: 5}\n"
    "  inter_node: {bandwidth: 10GB/s, latency_us: 5}\n"
    "  host: {bandwidth: 10GB/s, latency_us: 5}\n";

static const struct {
    const char *without, *with;
    const char *row; /* of the table, with the means alone; NULL: none */
} means[MEANS] = {
    {"--recompute none", "--recompute all", "recompute alone"},
    {"--offload none", "--offload all", "offload alone"},
    {"--offload-states none", "--offload-states all", "states in host memory alone"},
    {"--shard 1", "--shard 2 --shard-what weights", "shards alone"},
    {"--tensor 1 --stages 2 --ddp 2", "--tensor 2 --stages 2 --ddp 2", NULL},
    {"--chunks 1", "--chunks 2", NULL},
};

/* The program on the words of a line; what it printed. */
static int run(const char *line, char *shown, size_t size)
{
    char copy[1024], path[96], *word[MAX_WORDS + 1] = {"smp-partition"}, *rest = NULL;
    int n = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *at = strtok_r(copy, " ", &rest); at && n < MAX_WORDS;
         at = strtok_r(NULL, " ", &rest))
        word[n++] = at;
    snprintf(path, sizeof path, "%s/shown", folder);
    fflush(stdout);
    const int screen = dup(STDOUT_FILENO);
    assert_true(screen >= 0);
    assert_non_null(freopen(path, "w", stdout));
    optind = 0; /* glibc: begin anew */
    const int code = smp_partition_main(n, word);
    fflush(stdout);
    assert_true(dup2(screen, STDOUT_FILENO) >= 0);
    close(screen);
    char *text = NULL;
    size_t length = 0;
    assert_int_equal(smp_file_read(path, MAX_TEXT, &text, &length), SMP_OK);
    snprintf(shown, size, "%.*s", (int)length, text);
    free(text);
    assert_int_equal(unlink(path), 0);
    return code;
}

static void write_cluster(const char *path, const char *memory)
{
    char text[1024];
    const int n = snprintf(text, sizeof text, cluster, memory);
    assert_int_equal(smp_file_write(path, text, (size_t)n), SMP_OK);
}

static void test_every_combination_of_means(void **state)
{
    (void)state;
    static char shown[MAX_TEXT];
    char path[96], line[1024];
    snprintf(path, sizeof path, "%s/cluster.yaml", folder);
    write_cluster(path, "1GB");
    for (unsigned chosen = 0; chosen < 1u << MEANS; chosen++) {
        if (!SANITIZED && !is_long() && chosen % 3 > 0) /* all means are left */
            continue;
        int n = snprintf(line, sizeof line,
                         "%s/examples/gpt-tiny.yaml --cluster %s -n %d --explain --microbatches 4 "
                         "--microbatch-size 2 --pipeline simple --partitioner linear",
                         SMP_SOURCE_DIR, path, chosen >> 4 & 1 ? 8 : 4);
        for (int m = 0; m < MEANS; m++)
            n += snprintf(line + n, sizeof line - (size_t)n, " %s",
                          chosen >> m & 1 ? means[m].with : means[m].without);
        const int code = run(line, shown, sizeof shown);
        if (code != 0)
            fail_msg("exit %d: %s\n%s", code, line, shown);
        for (int m = 0; m < MEANS; m++)
            if (means[m].row && !strstr(shown, means[m].row) != !(chosen >> m & 1))
                fail_msg("'%s' %s: %s\n%s", means[m].row,
                         chosen >> m & 1 ? "is missing" : "should not be there", line, shown);
    }
    assert_int_equal(unlink(path), 0);
}

/* All that is left to the planner, where it takes them all. */
static void test_means_that_the_planner_takes(void **state)
{
    (void)state;
    static char shown[MAX_TEXT];
    char path[96], line[1024];
    snprintf(path, sizeof path, "%s/cluster.yaml", folder);
    write_cluster(path, "6MiB");
    snprintf(line, sizeof line,
             "%s/examples/gpt-tiny.yaml --cluster %s -n 4 --stages 2 --ddp 2 --shard 2 "
             "--microbatches 4 --microbatch-size 2 --chunks 2 --pipeline interleaved --prefetch 1 "
             "--partitioner linear --placement cluster --explain --effort full",
             SMP_SOURCE_DIR, path);
    assert_int_equal(run(line, shown, sizeof shown), 0);
    for (int m = 0; m < MEANS; m++)
        if (means[m].row && !strstr(shown, means[m].row))
            fail_msg("'%s' is missing:\n%s", means[m].row, shown);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_combination_of_means),
        cmocka_unit_test(test_means_that_the_planner_takes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
