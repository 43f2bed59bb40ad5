/* Planning by the options of smp.h and by those of smp-partition gives the same plan, for every
 * field; and every option of smp-partition that says how to plan has a field. */
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
#include "tools/partition/partition_options.h"

enum { MAX_WORDS = 64, MAX_TEXT = 1 << 20 };

int smp_partition_main(int argc, char **argv); /* tools/smp-partition.c */

static char folder[64], cluster[96], fixed[96];

static void set_shape(smp_plan_options *p)
{
    static const char *const set[] = {"T=16", "T=32"};
    p->set = set;
    p->n_set = 2;
    p->stages = 2;
    p->ddp = 2;
    p->chunks = 2;
    p->microbatches = 4;
    p->microbatch_size = 2;
    p->gradient_blocks = 4;
    p->schedule = "interleaved";
    p->group = 2;
    p->placement = "spread";
    p->partitioner = "linear";
}

static void set_tensor(smp_plan_options *p)
{
    static const char *const split[] = {"h*.mlp.fc:columns"};
    p->devices = 4;
    p->stages = 2;
    p->tensor = 2;
    p->tensor_overlap = SMP_TENSOR_OVERLAP_NO;
    p->split = split;
    p->n_split = 1;
    p->microbatches = 4;
    p->schedule = "1f1b";
    p->partitioner = "linear";
}

static void set_shards(smp_plan_options *p)
{
    p->stages = 1;
    p->ddp = 4;
    p->shard = 4;
    p->shard_what = SMP_SHARD_WEIGHTS;
    p->prefetch = 2;
    p->node_replicas = 2;
    p->bucket_bytes = 1 << 20;
    p->gradient_wire = SMP_WIRE_BF16;
    p->microbatches = 4;
    p->state_precision = "bf16";
    p->schedule = "1f1b";
    p->partitioner = "linear";
}

static void set_memory(smp_plan_options *p)
{
    static const char *const freeze[] = {"wte.*"};
    p->stages = 2;
    p->ddp = 1;
    p->devices = 2;
    p->microbatches = 4;
    p->schedule = "1f1b";
    p->memory_bytes = 1 << 24;
    p->recompute = SMP_RECOMPUTE_NONE;
    p->offload = SMP_OFFLOAD_ALL;
    p->offload_states = SMP_OFFLOAD_ALL;
    p->loading_horizon = 2;
    p->freeze = freeze;
    p->n_freeze = 1;
    p->partitioner = "linear";
}

static void set_search(smp_plan_options *p)
{
    static const char *const cuts[] = {"layers"};
    p->stages = 2;
    p->devices = 2;
    p->cut_at = cuts;
    p->n_cut_at = 1;
    p->objective = SMP_OBJECTIVE_BOTTLENECK;
    p->optimize = SMP_OPTIMIZE_MEMORY;
    p->partitioner = "linear";
    p->time_limit_s = 1000.0;
    p->effort = SMP_EFFORT_FULL;
    p->seed = 7;
    p->microbatches = 6;
    p->global_batch = 6;
}

static void set_lag(smp_plan_options *p)
{
    p->stages = 4;
    p->devices = 4;
    p->schedule = "zero-bubble";
    p->active_microbatches = 4;
    p->weight_lag = 2;
    p->microbatches = 8;
    p->partitioner = "linear";
}

static void set_fixed(smp_plan_options *p)
{
    p->fix = fixed;
    p->fix_stages = "0";
    p->microbatches = 8;
    p->partitioner = "linear";
    p->schedule = "1f1b";
}

static void set_split_from(smp_plan_options *p)
{
    p->devices = 4;
    p->stages = 2;
    p->split_from = fixed;
    p->microbatches = 4;
    p->schedule = "1f1b";
    p->partitioner = "linear";
}

/* All else is searched. */
static void set_batch(smp_plan_options *p)
{
    p->devices = 2;
    p->global_batch = 2;
}

/* fixed: what the case before it wrote. */
static const struct {
    const char *line;
    void (*set)(smp_plan_options *planning);
} cases[] = {
    {"--set T=32 "
     "--stages 2 --ddp 2 --chunks 2 --microbatches 4 --microbatch-size 2 --gradient-blocks 4 "
     "--pipeline interleaved --group 2 --placement spread --partitioner linear",
     set_shape},
    {"--stages 1 --ddp 4 --shard 4 --shard-what weights --prefetch 2 --node-replicas 2 "
     "--bucket-bytes 1MiB --gradient-wire bf16 --microbatches 4 --state-precision bf16 --pipeline "
     "1f1b --partitioner linear",
     set_shards},
    {"--stages 2 --ddp 1 -n 2 --microbatches 4 --pipeline 1f1b --memory 16MiB --recompute none "
     "--offload all --offload-states all "
     "--loading-horizon 2 --freeze wte.* --partitioner linear",
     set_memory},
    {"--stages 2 -n 2 --cut-at layers --objective bottleneck --optimize memory --partitioner "
     "linear --effort full --time-limit 1000 --seed 7 --microbatches 6 --global-batch 6",
     set_search},
    {"--stages 4 -n 4 --pipeline zero-bubble --active-microbatches 4 --weight-lag 2 "
     "--microbatches 8 --partitioner linear",
     set_lag},
    {"-n 4 --stages 2 --tensor 2 --tensor-overlap no --split h*.mlp.fc:columns --microbatches 4 "
     "--pipeline 1f1b --partitioner linear",
     set_tensor},
    {"--fix FIXED:0 --microbatches 8 --pipeline 1f1b --partitioner linear", set_fixed},
    {"-n 4 --stages 2 --split-from FIXED --microbatches 4 --pipeline 1f1b --partitioner linear",
     set_split_from},
    {"-n 2 --global-batch 2", set_batch},
};

static int run_program(const char *line, const char *plan)
{
    char copy[1024], path[160];
    char *word[MAX_WORDS + 1] = {"smp-partition"}, *rest = NULL;
    int n = 1;
    snprintf(copy, sizeof copy, "%s/examples/gpt-tiny.yaml --cluster %s -o %s %s %s",
             SMP_SOURCE_DIR, cluster, plan, strstr(line, "--effort") ? "" : "--effort quick", line);
    for (char *at = strtok_r(copy, " ", &rest); at && n < MAX_WORDS;
         at = strtok_r(NULL, " ", &rest))
        word[n++] = strcmp(at, "FIXED") == 0 ? fixed : at;
    snprintf(path, sizeof path, "%s:0", fixed);
    for (int i = 1; i < n; i++)
        word[i] = strcmp(word[i], "FIXED:0") == 0 ? path : word[i];
    fflush(stdout);
    const int screen = dup(STDOUT_FILENO);
    assert_non_null(freopen("/dev/null", "w", stdout));
    optind = 0; /* glibc: begin anew */
    const int code = smp_partition_main(n, word);
    fflush(stdout);
    assert_true(dup2(screen, STDOUT_FILENO) >= 0);
    close(screen);
    return code;
}

static void read_plan(const char *path, char *out)
{
    char *text = NULL;
    size_t length = 0;
    assert_int_equal(smp_file_read(path, MAX_TEXT - 1, &text, &length), SMP_OK);
    memcpy(out, text, length);
    out[length] = '\0';
    free(text);
}

static void test_plan_options_of_library_and_program(void **state)
{
    (void)state;
    static char one[MAX_TEXT], other[MAX_TEXT];
    char by_program[96], by_library[96];
    snprintf(by_program, sizeof by_program, "%s/program.yaml", folder);
    snprintf(by_library, sizeof by_library, "%s/library.yaml", folder);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (SANITIZED && cases[i].set == set_batch)
            continue; /* all that a search does */
        smp_options options = smp_options_default();
        options.model = SMP_SOURCE_DIR "/examples/gpt-tiny.yaml";
        options.planning.cluster = cluster;
        options.planning.effort = SMP_EFFORT_QUICK;
        cases[i].set(&options.planning);
        if (run_program(cases[i].line, by_program) != 0)
            fail_msg("smp-partition %s", cases[i].line);
        if (smp_plan_write(&options, by_library) != SMP_OK)
            fail_msg("%s: %s", cases[i].line, smp_last_error());
        read_plan(by_program, one);
        read_plan(by_library, other);
        if (strcmp(one, other) != 0)
            fail_msg("%s: two plans:\n%s\n%s", cases[i].line, one, other);
        if (cases[i].set == set_tensor)
            assert_int_equal(smp_file_write(fixed, one, strlen(one)), SMP_OK);
    }
    unlink(by_program);
    unlink(by_library);
}

/* What a program may say wrong, and the command line cannot. */
static void test_plan_options_refused(void **state)
{
    (void)state;
    smp_options options = smp_options_default();
    options.model = SMP_SOURCE_DIR "/examples/gpt-tiny.yaml";
    options.planning.recompute = (smp_recompute)3;
    assert_int_equal(smp_plan_write(&options, "/dev/null"), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "planning.recompute: got 3, expected 0 to 2");
    options.planning.recompute = SMP_RECOMPUTE_AUTO;
    options.planning.effort = (smp_effort)4;
    assert_int_equal(smp_plan_write(&options, "/dev/null"), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "planning.effort: got 4, expected 0 to 3");
    options.planning.effort = SMP_EFFORT_QUICK;
    options.planning.n_cut_at = 2;
    assert_int_equal(smp_plan_write(&options, "/dev/null"), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(), "planning.n_cut_at: got 2 without as many in cut_at");
    options.planning.n_cut_at = 0;
    options.planning.placement = "near";
    assert_int_equal(smp_plan_write(&options, "/dev/null"), SMP_ERR_INPUT);
    assert_string_equal(smp_last_error(),
                        "--placement: got 'near', expected cluster, spread or auto");
    options.size--;
    assert_int_equal(smp_plan_write(&options, "/dev/null"), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "begin with smp_options_default()"));
}

static bool is_in(size_t at, size_t begin, size_t size)
{
    return at >= begin && at < begin + size;
}

/* Of the rows that take something, those that end elsewhere are files to write or read, what is
 * printed, several plans, and lists, which the parser hands on. */
static void test_plan_options_have_a_field_each(void **state)
{
    (void)state;
    static const char *const elsewhere[] = {"o",      "costs",  "same-bits-as", "plugin", "trace",
                                            "report", "svg",    "export",       "split",  "cut-at",
                                            "freeze", "set",    "sweep",        "csv",    "tokens",
                                            "price",  "events", "keep-every",   NULL};
    for (const smp_option *row = smp__partition_table.row; row->name; row++) {
        bool known = row->kind == SMP_OPTION_HEADING || !row->value || row->set ||
                     is_in(row->at, offsetof(smp_partition_options, job), sizeof(smp_options));
        for (int i = 0; elsewhere[i]; i++)
            known = known || strcmp(row->name, elsewhere[i]) == 0;
        if (!known)
            fail_msg("--%s: smp.h has no field for it", row->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_options_of_library_and_program),
        cmocka_unit_test(test_plan_options_refused),
        cmocka_unit_test(test_plan_options_have_a_field_each),
    };
    static const char text[] =
        "smp: 1\n"
        "name: two nodes\n"
        "nodes: 2\n"
        "devices_per_node: 2\n"
        "device: {name: small, memory: 1GB, compute: {fp32: 1TFLOP/s}, bandwidth: 100GB/s}\n"
        "links:\n"
        "  intra_node: {bandwidth: 10GB/s, latency_us: 5}\n"
        "  inter_node: {bandwidth: 1GB/s, latency_us: 5}\n"
        "  host: {bandwidth: 10GB/s, latency_us: 5}\n";
    snprintf(folder, sizeof folder, "%s/smp-test-XXXXXX", P_tmpdir);
    if (!mkdtemp(folder))
        return 1;
    snprintf(cluster, sizeof cluster, "%s/cluster.yaml", folder);
    snprintf(fixed, sizeof fixed, "%s/fixed.yaml", folder);
    if (smp_file_write(cluster, text, sizeof text - 1) != SMP_OK)
        return 1;
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(cluster);
    unlink(fixed);
    rmdir(folder);
    return failed;
}
