/* Plans of which something lies in host memory: their keys, written as they are read; what is left
 * out, and what is wrong. */
#include "tests/schedule/fixture.h"

static const char good[] =
    "smp: 1\n"
    "model: {path: model.yaml, name: gpt, fingerprint: \"00ff00ff00ff00ff\"}\n"
    "parallel: {devices: 2, pipeline: 2, ddp: 1, placement: cluster, chunks: 1, offload_states: "
    "true}\n"
    "batch: {microbatches: 2, microbatch_size: 3}\n"
    "schedule: simple\n"
    "loading_horizon: 3\n"
    "stages:\n"
    "  - {stage: 0, rank: 0, ops: [wte, mid, h0.attn-x], recompute: false, offload: [wte, "
    "h0.attn-x], offload_bytes: 640, forward_us: 1.5, backward_us: 0.1, weight_bytes: 12, "
    "stash_bytes: 640}\n"
    "  - {stage: 1, rank: 1, ops: [loss], recompute: true, forward_us: 1, backward_us: 2, "
    "weight_bytes: 0, stash_bytes: 9}\n"
    "programs:\n"
    "  - \"F0.0 S0.0 >F0.0 F1.0 >F1.0 <B0.0 L0.0 B0.0 <B1.0 B1.0 R.0 O\"\n"
    "  - \"<F0.0 F0.0 <F1.0 F1.0 B0.0 >B0.0 B1.0 >B1.0 R.0 O\"\n"
    "predicted: {step_us: 12.5, bubble: 0.25, samples_per_s: 1000000, bottleneck_us: 3, "
    "lower_bound_us: 2.5, gap: 0.2, peak_bytes: [64, 128], host_bytes: [640, 0]}\n"
    "cluster: {name: two, nodes: 1, devices_per_node: 2, cores_per_node: 0, memory: 2000, "
    "overlap: true, optimizer_bytes_per_s: 5000000000, "
    "intra_node: {latency_us: 0.5, bytes_per_s: 10000000000}, "
    "inter_node: {latency_us: 8, bytes_per_s: 1000000000}, "
    "host: {latency_us: 10, bytes_per_s: 2000000000}, "
    "devices: [{count: 2, name: big, memory: 2000, flops_fp32: 50, flops_bf16: 0, "
    "bytes_per_s: 10}]}\n";

static smp_plan *parse(const char *text)
{
    smp_plan *plan = NULL;
    if (smp_plan_parse("plan.yaml", text, strlen(text), &plan) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return plan;
}

/* `text`, which is freed, with the first `from` replaced. */
static char *replaced(char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    if (!at)
        fail_msg("'%s' is not in the plan", from);
    char *new = malloc(strlen(text) + strlen(to) + 1);
    sprintf(new, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return new;
}

/* What travels: names, bytes, horizon, host memory. */
static void test_plan_offload_round_trip(void **state)
{
    (void)state;
    char *text = strdup(good);
    smp_plan *plan = parse(text), *again = NULL;
    smp_text written = {0}, json = {0};
    assert_int_equal(SMP_OK, smp_plan_format(plan, &written));
    assert_string_equal(text, written.data);
    assert_memory_equal(((bool[]){true, false, true}), plan->stage[0].offload, 3);
    assert_int_equal(0, smp_plan_stage_offloads(&plan->stage[1]));
    assert_int_equal(640, plan->stage[0].offload_bytes);
    assert_int_equal(640, plan->predicted.host_bytes[0]);
    assert_true(plan->sharding.offload_states && plan->travels[0] && !plan->travels[1]);
    const smp_schedule_shape shape = smp_plan_shape(plan);
    assert_int_equal(3, shape.offloading.horizon);
    assert_true(plan->travels == shape.offloading.stage);
    assert_true(plan->cluster->host.bytes_per_s == 2e9);
    assert_int_equal(SMP_ACTION_STORE, plan->program[0].action[1].kind);
    assert_int_equal(SMP_OK, smp_plan_format_json(plan, &json));
    assert_int_equal(SMP_OK, smp_plan_parse("plan.json", json.data, json.length, &again));
    assert_int_equal(640, again->stage[0].offload_bytes);
    smp_plan_destroy(again);
    smp_plan_destroy(plan);
    smp_text_free(&json);
    smp_text_free(&written);
    text = replaced(text, "loading_horizon: 3\n", ""); /* left out: 1 */
    plan = parse(text);
    assert_int_equal(1, plan->loading_horizon);
    smp_plan_destroy(plan);
    text = replaced(text, ", offload_bytes: 640", "");
    assert_int_equal(SMP_ERR_INPUT, smp_plan_parse("plan.yaml", text, strlen(text), &plan));
    assert_non_null(strstr(smp_last_error(), "offload_bytes"));
    text = replaced(text, "offload: [wte, h0.attn-x]", "offload: [wet], offload_bytes: 640");
    assert_int_equal(SMP_ERR_INPUT, smp_plan_parse("plan.yaml", text, strlen(text), &plan));
    assert_non_null(
        strstr(smp_last_error(), "stage: offload: stage 0 has no op 'wet', nearest is 'wte'"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_offload_round_trip),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
