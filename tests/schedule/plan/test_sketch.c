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

/* Of two stages; every number of it is replaced below. */
static const char whole[] =
    "smp: 1\n"
    "model: {path: m.yaml, name: mlp, fingerprint: \"0465456ce7e4f521\"}\n"
    "parallel: {devices: 2, pipeline: 2, ddp: 1, placement: cluster, chunks: 1, bucket_bytes: 64}\n"
    "batch: {microbatches: 2, microbatch_size: 1, gradient_blocks: 1}\n"
    "schedule: simple\n"
    "loading_horizon: 1\n"
    "stages:\n"
    "  - {stage: 0, rank: 0, ops: [a, b], recompute: [a], recompute_us: 1.5, offload: true, "
    "offload_bytes: 8, forward_us: 4.1, backward_us: 5.4, backward_input_us: 2.5, "
    "weight_bytes: 1472, stash_bytes: 128}\n"
    "  - {stage: 1, rank: 1, ops: [c, d], recompute: false, forward_us: 4.0, backward_us: 4.2, "
    "weight_bytes: 184, stash_bytes: 8}\n"
    "programs:\n"
    "  - \"F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 <B1.0 B1.0 R.0 O\"\n"
    "  - \"<F0.0 F0.0 <F1.0 F1.0 B0.0 >B0.0 B1.0 >B1.0 R.0 O\"\n"
    "predicted: {step_us: 34.4, bubble: 0.4, samples_per_s: 57979.5, bottleneck_us: 9.6, "
    "lower_bound_us: 9.5, gap: 0.1, step_lower_bound_us: 34.4, step_gap: 0.1, "
    "peak_bytes: [6400, 1856]}\n"
    "cluster: {name: laptop, nodes: 1, devices_per_node: 4, cores_per_node: 4, "
    "memory: 3221225472, overlap: true, optimizer_bytes_per_s: 1428571428, "
    "intra_node: {latency_us: 3, bytes_per_s: 6000000000}, "
    "inter_node: {latency_us: 3, bytes_per_s: 6000000000}, "
    "devices: [{count: 4, name: cpu, memory: 3221225472, flops_fp32: 100000000000, "
    "flops_bf16: 0, bytes_per_s: 10000000000}]}\n";

/* The plan with the number at `at` replaced: is it read as a plan, and as a sketch? */
static void read_both(const char *at, size_t length, const char *value, bool is[2])
{
    smp_text text = {0};
    smp_plan *plan = NULL;
    smp_sketch *sketch = NULL;
    smp_text_append(&text, "%.*s%s%s", (int)(at - whole), whole, value, at + length);
    is[0] = smp_plan_parse("p.yaml", text.data, text.length, &plan) == SMP_OK;
    is[1] = smp_sketch_parse("p.yaml", text.data, text.length, &sketch) == SMP_OK;
    smp_plan_destroy(plan);
    smp_sketch_destroy(sketch);
    smp_text_free(&text);
}

/* What smp-run refuses of a number by itself, smp-partition check refuses, too. */
static void test_sketch_and_plan_have_one_verdict(void **state)
{
    (void)state;
    static const char *const values[] = {"-1", ".nan", "1e400", "0.5", "word"};
    int numbers = 0, refused = 0;
    bool is[2];
    read_both(whole, 0, "", is);
    if (!is[0] || !is[1])
        fail_msg("%s", smp_last_error());
    for (const char *at = strstr(whole, "devices:"); *at; at++) {
        const size_t length = strspn(at, "0123456789.");
        if ((at[-1] != ' ' && at[-1] != '[') || length == 0)
            continue;
        numbers++;
        for (size_t v = 0; v < sizeof values / sizeof values[0]; v++) {
            read_both(at, length, values[v], is);
            refused += !is[0];
            if (!is[0] && is[1])
                fail_msg("%s in place of '%.30s' is taken", values[v], at);
        }
    }
    assert_true(numbers > 40 && refused > 100);
    read_both(strstr(whole, "2, pipeline"), 1, "1000000", is); /* that do not go together */
    assert_true(!is[0] && !is[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sketch_devices),
        cmocka_unit_test(test_sketch_mask_is_bounded),
        cmocka_unit_test(test_sketch_and_plan_have_one_verdict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
