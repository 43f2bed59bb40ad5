/* Plan files: what is written is read back to the same bytes; what is broken is refused with the
 * place and the reason. */
#include "tests/schedule/fixture.h"

#include "schedule/plan/sketch.h"
#include "schedule/verify/verify.h"

static const char good[] =
    "smp: 1\n"
    "model: {path: ../models/gpt.yaml, name: gpt, fingerprint: \"00ff00ff00ff00ff\"}\n"
    "parallel: {devices: 4, pipeline: 2, ddp: 2, placement: spread, chunks: 1}\n"
    "batch: {microbatches: 2, microbatch_size: 3}\n"
    "schedule: simple\n"
    "stages:\n"
    "  - {stage: 0, rank: 0, ops: [wte, \"h 0\", h0.attn-x], recompute: false, forward_us: 1.5, "
    "backward_us: 0.1, weight_bytes: 12, stash_bytes: 0}\n"
    "  - {stage: 1, rank: 1, ops: [\"true\", loss], recompute: true, forward_us: 1e-07, "
    "backward_us: 123456789.1234568, weight_bytes: 0, stash_bytes: 9007199254740993}\n"
    "programs:\n"
    "  - \"F0.0 >F0.0 F1.0 >F1.0 <B0.0 B0.0 <B1.0 B1.0 R.0 O\"\n"
    "  - \"<F0.0 F0.0 <F1.0 F1.0 B0.0 >B0.0 B1.0 >B1.0 R.0 O\"\n"
    "predicted: {step_us: 12.5, bubble: 0.25, samples_per_s: 1000000, bottleneck_us: 3, "
    "lower_bound_us: 2.5, gap: 0.2, step_lower_bound_us: 10, step_gap: 0.25, peak_bytes: [64, "
    "128]}\n"
    "cluster: {name: two, nodes: 2, devices_per_node: 2, cores_per_node: 0, memory: 1000, "
    "overlap: true, optimizer_bytes_per_s: 5000000000, "
    "intra_node: {latency_us: 0.5, bytes_per_s: 10000000000, points: [{bytes: 8, us: 0.25}, "
    "{bytes: 4096, us: 2}]}, "
    "inter_node: {latency_us: 8, bytes_per_s: 1000000000}, devices: [{count: 3, name: big, memory: "
    "2000, flops_fp32: 50, flops_bf16: 0, bytes_per_s: 10}, {count: 1, name: small, memory: 1000, "
    "flops_fp32: 25, flops_bf16: 50, bytes_per_s: 5}]}\n"
    "products: {format: 1, device: \"A GPU\", library: b, chosen: [{product: c, algorithm: d}]}\n";

static smp_plan *parse(const char *text)
{
    smp_plan *plan = NULL;
    if (smp_plan_parse("plan.yaml", text, strlen(text), &plan) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return plan;
}

static void test_plan_file_round_trip(void **state)
{
    (void)state;
    smp_plan *plan = parse(good);
    smp_text text = {0};
    assert_int_equal(SMP_OK, smp_plan_format(plan, &text));
    assert_string_equal(good, text.data);
    smp_text_free(&text);
    smp_plan_destroy(plan);
}

static void test_plan_file_content(void **state)
{
    (void)state;
    smp_plan *plan = parse(good);
    assert_string_equal("../models/gpt.yaml", plan->model_path);
    assert_true(plan->fingerprint == 0x00ff00ff00ff00ffu);
    assert_int_equal(SMP_PLACEMENT_SPREAD, plan->placement);
    assert_int_equal(2, plan->n_stage);
    assert_string_equal("h 0", plan->stage[0].op[1]);
    assert_string_equal("true", plan->stage[1].op[0]);
    assert_int_equal(0, smp_plan_stage_recomputes(&plan->stage[0]));
    assert_int_equal(2, smp_plan_stage_recomputes(&plan->stage[1]));
    assert_true(plan->stage[0].recompute_us == 0.0 && plan->stage[1].recompute_us == 1e-07);
    assert_true(plan->stage[1].stash_bytes == 9007199254740993);
    assert_int_equal(10, plan->program[1].n);
    assert_true(plan->training);
    assert_int_equal(128, plan->predicted.peak_bytes[1]);
    assert_int_equal(2, plan->cluster->intra_node.n_point);
    assert_true(smp_link_us(&plan->cluster->intra_node, 4096) == 2);
    assert_int_equal(4, smp_cluster_devices(plan->cluster));
    assert_string_equal("big", plan->cluster->device[2].name);
    assert_true(smp_device_slowdown(plan->cluster, SMP_PRECISION_FP32, 3) == 2);
    assert_int_equal(1, smp_plan_stage_of(plan, 1, 0));
    assert_int_equal(-1, smp_plan_stage_of(plan, 1, 1));
    smp_schedule_shape shape = smp_plan_shape(plan);
    assert_int_equal(2, shape.pipeline);
    assert_int_equal(2, shape.microbatches);
    smp_plan_destroy(plan);
}

static void test_plan_file_json(void **state)
{
    (void)state;
    smp_plan *plan = parse(good), *again = NULL;
    smp_text json = {0}, yaml = {0};
    assert_int_equal(SMP_OK, smp_plan_format_json(plan, &json));
    assert_non_null(strstr(json.data, "{\"smp\": 1, \"model\": {\"path\": \"../models/gpt.yaml\""));
    assert_non_null(strstr(json.data, "\"programs\": [\"F0.0 >F0.0 F1.0"));
    assert_non_null(strstr(json.data, "\"peak_bytes\": [64, 128]}"));
    assert_non_null(strstr(json.data, "\"microbatch_size\": 3, \"global_batch\": 12}"));
    /* JSON is YAML: it reads as the same plan. */
    assert_int_equal(SMP_OK, smp_plan_parse("plan.json", json.data, json.length, &again));
    assert_int_equal(SMP_OK, smp_plan_format(again, &yaml));
    assert_string_equal(good, yaml.data);
    smp_text_free(&json);
    smp_text_free(&yaml);
    smp_plan_destroy(again);
    smp_plan_destroy(plan);
}

/* The good plan with the first `from` replaced. */
static char *edited(const char *from, const char *to)
{
    const char *at = strstr(good, from);
    if (!at)
        fail_msg("'%s' is not in the plan", from);
    char *text = malloc(sizeof good + strlen(to));
    sprintf(text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    return text;
}

static void test_plan_file_broken(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *place, *message;
    } cases[] = {
        {"smp: 1", "smp: 2", "plan.yaml:1:", ""},
        {"batch: {", "bach: {", "plan.yaml:4:1", "batch"},
        {"microbatch_size: 3}", "microbatch_size: 3, global_batch: 13}",
         "plan.yaml:4:", "got 13, expected what ddp"},
        {"batch: {microbatches: 2, microbatch_size: 3}\n", "",
         "plan.yaml:1:", "'batch' is missing"},
        {"fingerprint: \"00ff", "fingerprint: \"0xff", "plan.yaml:2:", "hexadecimal"},
        {"name: gpt", "name: \"\"", "plan.yaml:2:", "empty"},
        {"devices: 4", "devices: 5", "plan.yaml:3:", "pipeline * ddp = 4"},
        {"devices: 4", "devices: -4", "plan.yaml:3:", "devices"},
        {"pipeline: 2", "pipeline: 4000000000", "plan.yaml:3:", "pipeline"},
        {"chunks: 1", "chunks: 2", "plan.yaml:7:", "expected pipeline * chunks = 4"},
        {"chunks: 1", "chunks: 1000000", "plan.yaml:3:", "stages"},
        {"spread", "wide", "plan.yaml:3:", "cluster, spread or a list"},
        {"spread", "[0, 2, 1]", "plan.yaml:3:", "got a list of 3 devices"},
        {"spread", "[0, 2, 1, 0]", "plan.yaml:3:", "device 0 stands there twice"},
        {"spread", "[0, 2, 1, 4]", "plan.yaml:3:", "placement"},
        {"spread", "[0, 2, 1, x]", "plan.yaml:3:", "placement"},
        {"microbatches: 2", "microbatches: 0", "plan.yaml:4:", "microbatches"},
        {"microbatches: 2", "microbatches: 1", "plan.yaml:10:", "micro-batch 1"},
        {"microbatches: 2", "microbatches: 1000000000", "plan.yaml:10:", "1000000000"},
        {"stage: 0", "stage: 1", "plan.yaml:7:", "expected 0"},
        {"rank: 1", "rank: 2", "plan.yaml:8:", "rank"},
        {"rank: 1", "rank: 0", "plan.yaml:8:", "rank 0 holds more than 1"},
        {"ops: [\"true\", loss]", "ops: []", "plan.yaml:8:", "empty"},
        {"ops: [\"true\", loss]", "ops: loss", "plan.yaml:8:", "ops"},
        {"recompute: false", "recompute: maybe", "plan.yaml:7:", "recompute"},
        {"recompute: false", "recompute: [wte, nope]", "plan.yaml:7:72",
         "stage: recompute: stage 0 has no op 'nope'"},
        {"recompute: false", "recompute: [loss]", "plan.yaml:7:67", "stage 0 has no op 'loss'"},
        {"recompute: false", "recompute: [h0.attn-y]", "plan.yaml:7:67", "nearest is 'h0.attn-x'"},
        {"recompute: false", "recompute: [\"z*\"]", "plan.yaml:7:67", "no op 'z*'"},
        {"recompute: false", "recompute: [h0.attn-x..wte]", "plan.yaml:7:67", "h0.attn-x..wte"},
        {"recompute: false", "recompute: [wte..loss]", "plan.yaml:7:67", "wte..loss"},
        {"recompute: false", "recompute: [[wte]]", "plan.yaml:7:67", "recompute"},
        {"recompute: false", "recompute: {wte: 1}", "plan.yaml:7:", "recompute"},
        {"recompute: false", "recompute: [wte], recompute_us: -1", "plan.yaml:7:", "recompute_us"},
        {"recompute: false", "recompute: false, recompute_us: 0", "plan.yaml:7:87",
         "beside `recompute: false`"},
        {"recompute: true", "recompute: true, recompute_us: 5", "plan.yaml:8:77",
         "beside `recompute: true`"},
        {"forward_us: 1.5", "forward_us: -1.5", "plan.yaml:7:", "forward_us"},
        {"forward_us: 1.5", "forward_us: .nan", "plan.yaml:7:", "forward_us"},
        {"weight_bytes: 12", "weight_bytes: 1e99", "plan.yaml:7:", "weight_bytes"},
        {"F0.0 >F0.0", "Q0.0 >F0.0", "plan.yaml:10:", "Q0.0"},
        {"F0.0 >F0.0", "F0.1 >F0.0", "plan.yaml:10:", "chunk 1"},
        {"F1.0 >F1.0 <B0.0", "<B0.0", "plan.yaml:10:", "got 1 forward actions"},
        {"[64, 128]", "[64]", "plan.yaml:12:", "expected one per rank: 2"},
        {"[64, 128]", "[64, x]", "plan.yaml:12:", "peak_bytes"},
        {"bubble: 0.25", "bubble: 2", "plan.yaml:12:", "bubble"},
        {"nodes: 2", "nodes: 1", "plan.yaml:13:", "got 2 devices"},
        {"bytes_per_s: 1000000000", "bytes_per_s: 0", "plan.yaml:13:", "bytes_per_s"},
        {"bytes: 4096", "bytes: 8", "plan.yaml:13:", "bytes"},
        {"bytes_per_s: 10000000000", "bytes_per_s: 1e-320", "plan.yaml:13:", "bytes_per_s"},
        {"flops_fp32: 25", "flops_fp32: 1e-320", "plan.yaml:13:", "flops_fp32"},
        {"latency_us: 0.5", "latency_us: 1e300", "plan.yaml:13:", "latency_us"},
        {"forward_us: 1.5", "forward_us: 1e300", "plan.yaml:7:", "forward_us"},
        {"step_us: 12.5", "step_us: 1e300", "plan.yaml:12:", "step_us"},
        {"microbatch_size: 3", "microbatch_size: 1048577", "plan.yaml:4:", "microbatch_size"},
        {"overlap: true, ", "", "plan.yaml:13:", "'overlap' is missing"},
        {"count: 3", "count: 4", "plan.yaml:13:", "devices: got more than the 4"},
        {"count: 3", "count: 5", "plan.yaml:13:", "count"},
        {"count: 3", "count: 2", "plan.yaml:13:", "got 3, expected 4"},
        {"count: 3", "count: 0", "plan.yaml:13:", "count"},
        {"flops_fp32: 25", "flops_fp32: 0", "plan.yaml:13:", "flops_fp32"},
        {"  - \"<F0.0", "  # \"<F0.0", "plan.yaml:10:", "expected one per rank"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = edited(cases[i].from, cases[i].to);
        smp_plan *plan = NULL;
        smp_status status = smp_plan_parse("plan.yaml", text, strlen(text), &plan);
        free(text);
        if (status != SMP_ERR_INPUT)
            fail_msg("case %zu: '%s' was accepted", i, cases[i].to);
        if (strncmp(smp_last_error(), cases[i].place, strlen(cases[i].place)) != 0 ||
            !strstr(smp_last_error(), cases[i].message))
            fail_msg("case %zu: '%s', expected '%s' and '%s'", i, smp_last_error(), cases[i].place,
                     cases[i].message);
        assert_null(plan);
    }
}

/* Lists of ops to recompute: names, patterns and ranges among the stage's; written as names. */
static void test_plan_file_recompute(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool mask[3];
        double us;
        const char *written; /* NULL: as it stands */
    } cases[] = {
        {"recompute: [wte, h0.attn-x], recompute_us: 0.25", {true, false, true}, 0.25, NULL},
        {"recompute: [\"h 0\"], recompute_us: 1.5", {false, true, false}, 1.5, NULL},
        {"recompute: [\"h*\"]",
         {false, true, true},
         1.5,
         "recompute: [\"h 0\", h0.attn-x], recompute_us: 1.5"},
        {"recompute: [\"?te\", wte], recompute_us: 1",
         {true, false, false},
         1,
         "recompute: [wte], recompute_us: 1"},
        {"recompute: [\"wte..h 0\"], recompute_us: 1",
         {true, true, false},
         1,
         "recompute: [wte, \"h 0\"], recompute_us: 1"},
        {"recompute: [wte..h0.attn-x]", {true, true, true}, 1.5, "recompute: true"},
        {"recompute: [\"*\"], recompute_us: 1", {true, true, true}, 1.5, "recompute: true"},
        {"recompute: []", {false, false, false}, 0.0, "recompute: false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = edited("recompute: false", cases[i].text);
        smp_plan *plan = parse(text);
        smp_text written = {0}, json = {0};
        assert_memory_equal(cases[i].mask, plan->stage[0].recompute, 3);
        assert_true(plan->stage[0].recompute_us == cases[i].us);
        assert_int_equal(SMP_OK, smp_plan_format(plan, &written));
        free(text);
        text = edited("recompute: false", cases[i].written ? cases[i].written : cases[i].text);
        assert_string_equal(text, written.data);
        assert_int_equal(SMP_OK, smp_plan_format_json(plan, &json));
        assert_true(i > 0 || strstr(json.data, "\"recompute\": [\"wte\", \"h0.attn-x\"], "));
        smp_text_free(&json);
        smp_text_free(&written);
        smp_plan_destroy(plan);
        free(text);
    }
}

/* A cluster of many equal devices is a line; files of before say their memory alone. */
static void test_plan_file_uniform_cluster(void **state)
{
    (void)state;
    enum { NODES = 2048 };
    static smp_device_spec device[8 * NODES];
    smp_plan *plan = parse(good), *again;
    smp_cluster cluster = *plan->cluster;
    smp_text text = {0};
    for (int d = 0; d < 8 * NODES; d++)
        device[d] = (smp_device_spec){.name = "card",
                                      .memory_bytes = 1000,
                                      .flops_fp32 = 50,
                                      .flops_tf32 = 55,
                                      .flops_bf16 = 60,
                                      .flops_fp8 = 65,
                                      .bytes_per_s = 70};
    cluster.nodes = NODES;
    cluster.devices_per_node = 8;
    cluster.device = device;
    plan->cluster = &cluster;
    assert_int_equal(SMP_OK, smp_plan_format(plan, &text));
    assert_true(text.length < sizeof good + 200);
    again = parse(text.data);
    assert_int_equal(8 * NODES, smp_cluster_devices(again->cluster));
    assert_true(again->cluster->device[8 * NODES - 1].bytes_per_s == 70);
    assert_true(again->cluster->device[8 * NODES - 1].flops_tf32 == 55);
    assert_true(again->cluster->device[8 * NODES - 1].flops_fp8 == 65);
    smp_plan_destroy(again);
    smp_text_free(&text);
    smp_plan_destroy(plan);

    const char *runs = strstr(good, ", devices: [");
    smp_text_append(&text, "%.*s}\n", (int)(runs - good), good);
    plan = parse(text.data);
    assert_int_equal(1000, plan->cluster->device[3].memory_bytes);
    assert_true(smp_device_slowdown(plan->cluster, SMP_PRECISION_FP32, 3) == 1);
    smp_text_free(&text);
    smp_plan_destroy(plan);
}

/* The good plan with a line of its own for `execution:`. */
static smp_status parse_execution(const char *line, smp_text *text, smp_plan **out)
{
    const char *stages = strstr(good, "stages:");
    text->length = 0;
    smp_text_append(text, "%.*s%s\n%s", (int)(stages - good), good, line, stages);
    return smp_plan_parse("plan.yaml", text->data, text->length, out);
}

static void test_plan_file_execution(void **state)
{
    (void)state;
    static const struct {
        const char *line, *message;
    } broken[] = {
        {"execution: {device: tpu, precision: bf16}",
         "plan.yaml:6:21: execution: device: got 'tpu'"},
        {"execution: {device: cuda, precision: fp4}", "plan.yaml:6:38: execution: precision: got"},
        {"execution: {device: cpu, precision: tf32}",
         "plan.yaml:6:37: execution: precision: got tf32"},
        {"execution: {device: cuda}", "plan.yaml:6:12: execution: key 'precision' is missing"},
        {"execution: {devise: cuda, precision: bf16}", "'device'"},
        {"execution: cuda", "plan.yaml:6:"},
    };
    static const char *const lines[] = {
        "execution: {device: cuda, precision: bf16}", "execution: {device: cuda, precision: fp16}",
        "execution: {device: cuda, precision: tf32, state_precision: bf16, libraries: 7}"};
    smp_text text = {0};
    smp_plan *plan = parse(good);
    assert_int_equal(SMP_BACKEND_CPU, plan->target.backend);
    assert_int_equal(SMP_PRECISION_FP32, plan->target.precision);
    smp_plan_destroy(plan);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        smp_text again = {0}, json = {0};
        assert_int_equal(SMP_OK, parse_execution(lines[i], &text, &plan));
        assert_int_equal(SMP_BACKEND_CUDA, plan->target.backend);
        assert_int_equal(SMP_OK, smp_plan_format(plan, &again));
        assert_string_equal(text.data, again.data);
        assert_int_equal(SMP_OK, smp_plan_format_json(plan, &json));
        assert_non_null(strstr(json.data, "\"execution\": {\"device\": \"cuda\", \"precision\": "));
        smp_text_free(&again);
        smp_text_free(&json);
        smp_plan_destroy(plan);
    }
    /* what is the same as nothing is not written */
    assert_int_equal(SMP_OK,
                     parse_execution("execution: {device: cpu, precision: fp32}", &text, &plan));
    smp_text again = {0};
    assert_int_equal(SMP_OK, smp_plan_format(plan, &again));
    assert_string_equal(good, again.data);
    smp_text_free(&again);
    smp_plan_destroy(plan);
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        assert_int_equal(SMP_ERR_INPUT, parse_execution(broken[i].line, &text, &plan));
        if (!strstr(smp_last_error(), broken[i].message))
            fail_msg("case %zu: '%s'", i, smp_last_error());
    }
    smp_text_free(&text);
}

/* What a rank pays for another one's core: the default where a plan does not say. */
static void test_plan_file_core_switch(void **state)
{
    (void)state;
    char *text =
        edited("cores_per_node: 0,", "cores_per_node: 1, core_switch_us: 0.1, scatter: 0.02, "
                                     "host_memory: 123456, keep_bytes_per_s: 1500000000, launch: "
                                     "{kernel_us: 2, graph_us: 6.5, graph_kernel_us: 0.25},");
    smp_plan *plan = parse(text), *again = NULL, *without = parse(good);
    smp_text written = {0}, plain = {0};
    assert_true(plan->cluster->core_switch_us == 0.1 && plan->cluster->scatter == 0.02);
    assert_true(without->cluster->core_switch_us == SMP_DEFAULT_CORE_SWITCH_US);
    assert_int_equal(SMP_OK, smp_plan_format(plan, &written));
    again = parse(written.data);
    assert_true(again->cluster->core_switch_us == 0.1 && again->cluster->scatter == 0.02);
    assert_true(again->cluster->host_memory_bytes == 123456);
    assert_true(again->cluster->keep_bytes_per_s == 1.5e9);
    assert_true(again->cluster->launch.kernel_us == 2 && again->cluster->launch.graph_us == 6.5);
    assert_true(again->cluster->launch.graph_kernel_us == 0.25);
    assert_int_equal(SMP_OK, smp_plan_format(without, &plain));
    assert_null(strstr(plain.data, "core_switch_us"));
    assert_null(strstr(plain.data, "scatter"));
    assert_null(strstr(plain.data, "launch"));
    assert_null(strstr(plain.data, "host_memory"));
    free(text);
    smp_text_free(&written);
    smp_text_free(&plain);
    smp_plan_destroy(plan);
    smp_plan_destroy(again);
    smp_plan_destroy(without);
}

/* Cut anywhere, a plan is refused or read, never worse. */
/* The part of a backward that I takes: half of it where only other stages say it. */
static void test_plan_file_split_backward(void **state)
{
    (void)state;
    char *text = edited("backward_us: 0.1,", "backward_us: 0.1, backward_input_us: 0.025,");
    smp_plan *plan = parse(text), *again = NULL, *without = parse(good);
    smp_text written = {0};
    assert_true(plan->backward_input_us[0] == 0.025);
    assert_true(plan->backward_input_us[1] == plan->stage[1].backward_us / 2);
    assert_null(without->backward_input_us);
    assert_int_equal(SMP_OK, smp_plan_format(plan, &written));
    again = parse(written.data);
    assert_memory_equal(again->backward_input_us, plan->backward_input_us, 2 * sizeof(double));
    free(text);
    text = edited("backward_us: 0.1,", "backward_us: 0.1, backward_input_us: 0.2,");
    smp_plan *more = NULL;
    assert_int_equal(SMP_ERR_INPUT, smp_plan_parse("plan.yaml", text, strlen(text), &more));
    assert_non_null(strstr(smp_last_error(), "backward_input_us"));
    free(text);
    smp_text_free(&written);
    smp_plan_destroy(plan);
    smp_plan_destroy(again);
    smp_plan_destroy(without);
}

static void test_plan_file_truncated(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof good - 2; n++) {
        smp_plan *plan = NULL;
        smp_status status = smp_plan_parse("plan.yaml", good, n, &plan);
        assert_true(status == SMP_OK || status == SMP_ERR_INPUT);
        if (status == SMP_OK)
            assert_true(n > (size_t)(strstr(good, "cluster:") - good) - 3);
        smp_plan_destroy(plan);
    }
}

static void assert_written(const smp_plan *plan, const char *expected)
{
    smp_text yaml = {0};
    assert_int_equal(SMP_OK, smp_plan_format(plan, &yaml));
    assert_string_equal(expected, yaml.data);
    smp_text_free(&yaml);
}

static void test_plan_file_devices(void **state)
{
    (void)state;
    assert_int_equal(5, smp_placement_device(SMP_PLACEMENT_CLUSTER, NULL, 4, 2, 1, 1));
    assert_int_equal(3, smp_placement_device(SMP_PLACEMENT_SPREAD, NULL, 4, 2, 1, 1));
    char *text = edited("spread", "[3, 0, 2, 1]");
    smp_plan *plan = parse(text);
    for (int i = 0; i < 4; i++)
        assert_int_equal(plan->device[i], smp_plan_device(plan, i / 2, i % 2));
    assert_int_equal(3, plan->device[0]);
    assert_written(plan, text);
    smp_plan_destroy(plan);
    free(text);
}

/* A list that says what a word says is written as the word. */
static void test_plan_file_devices_by_name(void **state)
{
    (void)state;
    char *text = edited("spread", "[0, 2, 1, 3]");
    smp_plan *plan = parse(text);
    assert_int_equal(SMP_PLACEMENT_SPREAD, plan->placement);
    assert_null(plan->device);
    assert_written(plan, good);
    smp_plan_destroy(plan);
    free(text);
}

static const char model[] =
    "smp: 1\nname: gpt\n"
    "inputs: {i: {dtype: float32, shape: [4]}, target: {dtype: float32, shape: [4]}}\n"
    "ops:\n"
    "  - {op: linear, name: a, in: i, out: x, features: 4}\n"
    "  - {op: linear, name: b, in: x, out: x, features: 4}\n"
    "  - {op: mse, name: loss, in: [x, target], out: loss}\n"
    "loss: loss\n";

/* A plan of the model above: ops of the two stages as text. */
static smp_plan *plan_of(const smp_graph *graph, const char *first, const char *second)
{
    smp_text text = {0};
    smp_text_append(&text,
                    "smp: 1\nmodel: {path: m.yaml, name: gpt, fingerprint: \"%016llx\"}\n"
                    "parallel: {devices: 2, pipeline: 2, ddp: 1, placement: cluster, chunks: 1}\n"
                    "batch: {microbatches: 1, microbatch_size: 1}\nschedule: simple\nstages:\n",
                    (unsigned long long)graph->fingerprint);
    for (int s = 0; s < 2; s++)
        smp_text_append(&text,
                        "  - {stage: %d, rank: %d, ops: [%s], recompute: false, forward_us: 0, "
                        "backward_us: 0, weight_bytes: 0, stash_bytes: 0}\n",
                        s, s, s == 0 ? first : second);
    smp_text_append(&text, "programs: [F0.0 >F0.0 <B0.0 B0.0 R.0 O, <F0.0 F0.0 B0.0 >B0.0 R.0 O]\n"
                           "predicted: {step_us: 0, bubble: 0, samples_per_s: 0, bottleneck_us: 0, "
                           "lower_bound_us: 0, gap: 0, peak_bytes: [0, 0]}\n");
    smp_plan *plan = parse(text.data);
    smp_text_free(&text);
    return plan;
}

static void test_plan_file_bind(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second, *message;
    } cases[] = {
        {"a", "b, loss", NULL},
        {"a, b", "loss", NULL},
        {"a", "b", "op 'loss' of the model lies in no stage"},
        {"a", "b, loss, c", "op 'c'"},
        {"a, b", "b, loss", "op 'b' lies in stage 0 and in stage 1"},
        {"b", "a, loss", "op 'b' in stage 0 reads the output of op 'a' in stage 1"},
        {"b, a", "loss", "expected the order of the model"},
    };
    smp_graph *graph = NULL;
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_plan *plan = plan_of(graph, cases[i].first, cases[i].second);
        int32_t *stage = NULL;
        smp_status status = smp_plan_bind(plan, graph, &stage);
        assert_int_equal(cases[i].message ? SMP_ERR_INPUT : SMP_OK, status);
        if (cases[i].message && !strstr(smp_last_error(), cases[i].message))
            fail_msg("case %zu: '%s'", i, smp_last_error());
        if (!cases[i].message)
            assert_int_equal(i, stage[1] == 0);
        free(stage);
        smp_plan_destroy(plan);
    }
    smp_plan *plan = plan_of(graph, "a", "b, loss");
    int32_t *stage = NULL;
    plan->target = (smp_target){SMP_BACKEND_CUDA, SMP_PRECISION_BF16};
    assert_int_equal(SMP_ERR_INPUT, smp_plan_bind(plan, graph, &stage));
    assert_non_null(strstr(smp_last_error(), "the plan is for cuda in bf16"));
    assert_int_equal(SMP_OK, smp_graph_set_target(graph, plan->target));
    assert_int_equal(SMP_OK, smp_plan_bind(plan, graph, &stage));
    free(stage);
    smp_plan_destroy(plan);
    plan = parse(good);
    assert_int_equal(SMP_ERR_INPUT, smp_plan_bind(plan, graph, &stage));
    assert_non_null(strstr(smp_last_error(), "fingerprint 00ff00ff00ff00ff"));
    smp_plan_destroy(plan);
    smp_graph_destroy(graph);
}

/* The n-th block of YAML in a text, malloc'ed. */
static char *yaml_block(const char *text, int n)
{
    const char *begin = text, *end;
    for (int i = 0; i <= n; i++) {
        begin = strstr(begin, "```yaml\n");
        if (!begin)
            fail_msg("schedule/plan/FORMAT.md has no block of YAML number %d", n);
        begin += strlen("```yaml\n");
    }
    end = strstr(begin, "```");
    assert_non_null(end);
    return strndup(begin, (size_t)(end - begin));
}

/* Every "key: " of a text is a `key` of the document. */
static void assert_keys_documented(const char *yaml, const char *document)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    for (const char *c = yaml; *c;) {
        size_t n = strspn(c, letters);
        char key[64];
        snprintf(key, sizeof key, "`%.*s`", (int)n, c);
        if (n > 0 && c[n] == ':' && !strstr(document, key))
            fail_msg("schedule/plan/FORMAT.md does not say what %s is", key);
        c += n > 0 ? n : 1;
    }
}

/* The example of the documentation is a plan of the model beside it, and its keys are explained. */
static void test_plan_file_documented(void **state)
{
    (void)state;
    char path[512], *document;
    size_t bytes;
    snprintf(path, sizeof path, SMP_SOURCE_DIR "/schedule/plan/FORMAT.md");
    if (smp_file_read(path, 1 << 20, &document, &bytes) != SMP_OK)
        fail_msg("%s", smp_last_error());
    char *model_yaml = yaml_block(document, 0), *plan_yaml = yaml_block(document, 1);
    char *sketch_yaml = yaml_block(document, 2);
    smp_graph *graph = NULL;
    smp_sketch *sketch = NULL;
    smp_text again = {0};
    smp_plan *plan = parse(plan_yaml);
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model_yaml, strlen(model_yaml), &graph));
    if (smp_verify(plan, graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(SMP_OK, smp_sketch_parse("s.yaml", sketch_yaml, strlen(sketch_yaml), &sketch));
    plan->target = (smp_target){SMP_BACKEND_CUDA, SMP_PRECISION_BF16};
    assert_int_equal(SMP_OK, smp_plan_format(plan, &again));
    char *before_keys = strstr(document, "Its keys:");
    assert_non_null(before_keys);
    assert_keys_documented(strstr(again.data, "model:"), before_keys);
    assert_keys_documented("points: flops_tf32: tensor: split: op: as: ", before_keys);
    smp_sketch_destroy(sketch);
    smp_plan_destroy(plan);
    smp_graph_destroy(graph);
    smp_text_free(&again);
    free(model_yaml);
    free(plan_yaml);
    free(sketch_yaml);
    free(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_file_documented),
        cmocka_unit_test(test_plan_file_round_trip),
        cmocka_unit_test(test_plan_file_content),
        cmocka_unit_test(test_plan_file_json),
        cmocka_unit_test(test_plan_file_broken),
        cmocka_unit_test(test_plan_file_recompute),
        cmocka_unit_test(test_plan_file_execution),
        cmocka_unit_test(test_plan_file_split_backward),
        cmocka_unit_test(test_plan_file_core_switch),
        cmocka_unit_test(test_plan_file_truncated),
        cmocka_unit_test(test_plan_file_devices),
        cmocka_unit_test(test_plan_file_devices_by_name),
        cmocka_unit_test(test_plan_file_bind),
        cmocka_unit_test(test_plan_file_uniform_cluster),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
