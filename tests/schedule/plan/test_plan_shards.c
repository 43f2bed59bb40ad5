/* What a plan may not say of sharded states, buckets and hops: refused with the place and the
 * reason. */
#include "tests/schedule/fixture.h"

static const char plan[] = "smp: 1\n"
                           "model: {path: gpt.yaml, name: gpt, fingerprint: \"00ff00ff00ff00ff\"}\n"
                           "parallel: {devices: 8, pipeline: 2, ddp: 4, placement: spread, "
                           "chunks: 1, %s}\n";

static void test_plan_shards_refused(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"shard: 2", "'shard_what' is missing"},
        {"shard_what: weights", "'shard' is missing"},
        {"shard: 2, shard_what: losses", "losses"},
        {"shard: 3, shard_what: weights", "shard: got 3"},
        {"shard: 8, shard_what: weights", "shard: got 8"},
        {"shard: 0, shard_what: weights", "shard"},
        {"bucket_bytes: 0", "bucket_bytes"},
        {"bucket_bytes: many", "bucket_bytes"},
        {"prefetch: -1", "prefetch"},
        {"gradient_wire: fp16", "gradient_wire: got 'fp16'"},
        {"gradient_wire: 16", "gradient_wire"},
        {"node_replicas: 1", "node_replicas"},
        {"node_replicas: 3", "node_replicas: got 3"},
        {"node_replicas: 4", "node_replicas: got 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_text text = {0};
        smp_plan *read = NULL;
        smp_text_append(&text, plan, cases[i][0]);
        assert_false(text.failed);
        if (smp_plan_parse("plan.yaml", text.data, strlen(text.data), &read) != SMP_ERR_INPUT)
            fail_msg("'%s' was accepted", cases[i][0]);
        if (strncmp(smp_last_error(), "plan.yaml:3:", 12) != 0 ||
            !strstr(smp_last_error(), cases[i][1]))
            fail_msg("'%s': '%s', expected '%s'", cases[i][0], smp_last_error(), cases[i][1]);
        assert_null(read);
        smp_text_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_plan_shards_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
