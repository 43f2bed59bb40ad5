/* Plans whose ops are split over groups of devices: the file is written back to the same bytes,
 * what is broken is refused with its place, the cluster of the file is the machine's and that in
 * memory its groups; and patterns of sketches name ops as they say. */
#include "tests/schedule/fixture.h"

#include "graph/split/split_text.h"
#include "schedule/plan/sketch.h"
#include "schedule/plan/split_patterns.h"

static const char good[] =
    "smp: 1\n"
    "model: {path: gpt.yaml, name: gpt, fingerprint: \"00ff00ff00ff00ff\"}\n"
    "parallel: {devices: 8, pipeline: 2, ddp: 2, tensor: 2, placement: [3, 0, 2, 1], chunks: 1}\n"
    "split:\n"
    "  - {op: fc, as: columns}\n"
    "  - {op: act, as: \"elements@1\"}\n"
    "  - {op: \"att n\", as: \"packed heads\"}\n"
    "batch: {microbatches: 1, microbatch_size: 3}\n"
    "schedule: simple\n"
    "stages:\n"
    "  - {stage: 0, rank: 0, ops: [fc, act, \"att n\"], recompute: false, forward_us: 1.5, "
    "backward_us: 0.1, weight_bytes: 12, stash_bytes: 0}\n"
    "  - {stage: 1, rank: 1, ops: [\"att n:whole\", loss], recompute: true, forward_us: 1, "
    "backward_us: 2, weight_bytes: 0, stash_bytes: 4}\n"
    "programs:\n"
    "  - \"F0.0 >F0.0 <B0.0 B0.0 R.0 O\"\n"
    "  - \"<F0.0 F0.0 B0.0 >B0.0 R.0 O\"\n"
    "predicted: {step_us: 12.5, bubble: 0.25, samples_per_s: 1000000, bottleneck_us: 3, "
    "lower_bound_us: 2.5, gap: 0.2, peak_bytes: [64, 128]}\n"
    "cluster: {name: two, nodes: 2, devices_per_node: 4, cores_per_node: 4, memory: 1000, "
    "overlap: true, optimizer_bytes_per_s: 5000000000, "
    "intra_node: {latency_us: 0.5, bytes_per_s: 10000000000, points: [{bytes: 8, us: 0.25}, "
    "{bytes: 4096, us: 2}]}, "
    "inter_node: {latency_us: 8, bytes_per_s: 1000000000}, "
    "devices: [{count: 7, name: big, memory: 2000, flops_fp32: 50, flops_bf16: 0, "
    "bytes_per_s: 10}, {count: 1, name: small, memory: 1000, flops_fp32: 25, flops_bf16: 50, "
    "bytes_per_s: 5}]}\n";

static smp_plan *parse(const char *text)
{
    smp_plan *plan = NULL;
    if (smp_plan_parse("plan.yaml", text, strlen(text), &plan) != SMP_OK)
        fail_msg("%s", smp_last_error());
    return plan;
}

static char *edited(const char *from, const char *to)
{
    const char *at = strstr(good, from);
    if (!at)
        fail_msg("'%s' is not in the plan", from);
    char *text = malloc(sizeof good + strlen(to));
    sprintf(text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    return text;
}

static void assert_written(const smp_plan *plan, const char *expected)
{
    smp_text yaml = {0};
    assert_int_equal(SMP_OK, smp_plan_format(plan, &yaml));
    assert_string_equal(expected, yaml.data);
    smp_text_free(&yaml);
}

static void test_plan_split_round_trip(void **state)
{
    (void)state;
    smp_plan *plan = parse(good), *again = NULL;
    smp_text json = {0};
    assert_written(plan, good);
    assert_int_equal(SMP_OK, smp_plan_format_json(plan, &json));
    assert_non_null(
        strstr(json.data, "\"devices\": 8, \"pipeline\": 2, \"ddp\": 2, \"tensor\": 2"));
    assert_non_null(strstr(json.data, "\"split\": [{\"op\": \"fc\", \"as\": \"columns\"}, {"));
    assert_int_equal(SMP_OK, smp_plan_parse("plan.json", json.data, json.length, &again));
    assert_written(again, good);
    smp_plan_destroy(again);
    smp_text_free(&json);
    smp_plan_destroy(plan);
}

/* In memory all numbers are of groups. */
static void test_plan_split_content(void **state)
{
    (void)state;
    smp_plan *plan = parse(good);
    const smp_cluster *cluster = plan->cluster;
    assert_int_equal(4, plan->devices);
    assert_int_equal(8, smp_plan_processes(plan));
    assert_int_equal(3, smp_plan_device(plan, 0, 0));
    assert_int_equal(2, plan->splitting.devices);
    assert_int_equal(3, plan->splitting.n_entry);
    assert_string_equal("att n", plan->splitting.entry[2].op);
    assert_string_equal("packed heads", plan->splitting.entry[2].as);
    assert_int_equal(7, plan->splitting.entry[2].where.line);
    assert_int_equal(4, smp_cluster_devices(cluster));
    assert_int_equal(2, cluster->devices_per_node);
    assert_int_equal(2, cluster->group);
    assert_true(cluster->device[2].memory_bytes == 2000 && cluster->device[2].flops_fp32 == 50);
    assert_true(cluster->device[3].memory_bytes == 1000 && cluster->device[3].flops_fp32 == 25);
    assert_int_equal(8, smp_cluster_devices(cluster->of));
    assert_int_equal(4, cluster->of->devices_per_node);
    smp_plan_destroy(plan);
}

/* A plan of no groups says nothing of them, and one of before is as it was. */
static void test_plan_split_of_one(void **state)
{
    (void)state;
    const char *split = strstr(good, "split:"), *batch = strstr(good, "batch:");
    smp_text one = {0}, without = {0};
    char *text = edited("tensor: 2", "tensor: 1");
    text[strstr(text, "devices: 8") - text + strlen("devices: ")] = '4';
    const size_t head = (size_t)(strstr(text, "split:") - text);
    smp_text_append(&one, "%.*s%s", (int)head, text, text + head + (batch - split));
    free(text);
    smp_plan *plan = parse(one.data);
    assert_int_equal(4, smp_plan_processes(plan));
    assert_null(plan->cluster->of);
    const char *tensor = strstr(one.data, "tensor: 1, ");
    smp_text_append(&without, "%.*s%s", (int)(tensor - one.data), one.data,
                    tensor + strlen("tensor: 1, "));
    assert_written(plan, without.data);
    smp_plan_destroy(plan);
    plan = parse(without.data);
    assert_int_equal(0, plan->splitting.devices);
    assert_written(plan, without.data);
    smp_plan_destroy(plan);
    smp_text_free(&one);
    smp_text_free(&without);
}

static void test_plan_split_broken(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"tensor: 2", "tensor: 3",
         "plan.yaml:3:53: parallel: tensor: got 3, expected a divisor of `devices`, 8"},
        {"tensor: 2", "tensor: 16", "plan.yaml:3:53: parallel: tensor: got 16"},
        {"tensor: 2", "tensor: 4",
         "plan.yaml:3:21: parallel: devices: got 8, expected pipeline * ddp * tensor = 16"},
        {"tensor: 2", "tensor: 0", "plan.yaml:3:53: parallel: tensor"},
        {"tensor: 2", "tensor: two", "plan.yaml:3:53: parallel: tensor"},
        {"tensor: 2", "tensors: 2", "'tensor'"},
        {"devices: 8", "devices: 4",
         "plan.yaml:3:21: parallel: devices: got 4, expected pipeline * ddp * tensor = 8"},
        {"[3, 0, 2, 1]", "[3, 0, 2, 1, 4, 5, 6, 7]", "plan.yaml:3:67: parallel: placement"},
        {"tensor: 2, ", "",
         "plan.yaml:3:21: parallel: devices: got 8, expected pipeline * ddp = 4"},
        {"devices: 8, pipeline: 2, ddp: 2, tensor: 2", "devices: 4, pipeline: 2, ddp: 2, tensor: 1",
         "plan.yaml:5:3: split: got 3 ops, expected `parallel: {tensor: T}`"},
        {"op: fc", "on: fc", "plan.yaml:5:6: split: unknown key 'on'"},
        {"op: fc, ", "", "plan.yaml:5:5: split: key 'op' is missing"},
        {", as: columns", "", "plan.yaml:5:5: split: key 'as' is missing"},
        {"as: columns", "as: [columns]", "plan.yaml:5:18: "},
        {"as: columns", "as: \"\"", "plan.yaml:5:18: "},
        {"{op: fc, as: columns}", "fc", "plan.yaml:5:5: split: "},
        {"devices_per_node: 4", "devices_per_node: 5",
         "plan.yaml:17:50: cluster: devices_per_node: got 5, expected a multiple of the 2"},
        {"nodes: 2, devices_per_node: 4", "nodes: 1, devices_per_node: 4",
         "plan.yaml:17:29: cluster: got 4 devices, expected 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = edited(cases[i].from, cases[i].to);
        if (strstr(cases[i].message, "got 5, expected a multiple")) { /* as many are described */
            char *count = strstr(text, "count: 7");
            count[7] = '9';
        }
        smp_plan *plan = NULL;
        smp_status status = smp_plan_parse("plan.yaml", text, strlen(text), &plan);
        free(text);
        if (status != SMP_ERR_INPUT)
            fail_msg("case %zu: '%s' was accepted", i, cases[i].to);
        if (!strstr(smp_last_error(), cases[i].message) ||
            strncmp(smp_last_error(), "plan.yaml:", 10) != 0)
            fail_msg("case %zu: '%s', expected '%s'", i, smp_last_error(), cases[i].message);
    }
}

/* Groups of two and one. */
static char *make_different(const char *from, const char *to)
{
    static const char *const edits[][2] = {
        {"devices: 8,", "devices: 6,"},
        {"placement: [3, 0, 2, 1]", "placement: cluster"},
        {"nodes: 2, devices_per_node: 4", "nodes: 1, devices_per_node: 8"},
        {"rank: 0, ops", "rank: 0, tensor: 2, ops"},
        {"rank: 1, ops: [\"att n:whole\", ", "rank: 1, tensor: 1, ops: ["},
        {"act, \"att n\"]", "act, \"att n\", \"att n:whole\"]"}};
    smp_text text = {0};
    smp_text_append(&text, "%s", good);
    for (size_t i = 0; i <= sizeof edits / sizeof edits[0]; i++) {
        const bool own = i == sizeof edits / sizeof edits[0];
        const char *old = own ? from : edits[i][0], *at = old ? strstr(text.data, old) : NULL;
        smp_text made = {0};
        if (own && !from)
            break;
        assert_non_null(at);
        smp_text_append(&made, "%.*s%s%s", (int)(at - text.data), text.data, own ? to : edits[i][1],
                        at + strlen(old));
        smp_text_free(&text);
        text = made;
    }
    return text.data;
}

static void test_plan_split_groups_differ(void **state)
{
    (void)state;
    char *text = make_different(NULL, NULL);
    smp_plan *plan = parse(text);
    static const int first[2][2] = {{0, 2}, {3, 5}};
    int replica, rank, index;
    assert_written(plan, text);
    assert_int_equal(4, plan->devices);
    assert_int_equal(6, smp_plan_processes(plan));
    assert_int_equal(2, smp_plan_tensor(plan));
    assert_int_equal(2, smp_plan_rank_tensor(plan, 0));
    assert_int_equal(1, smp_plan_rank_tensor(plan, 1));
    for (int d = 0; d < 2; d++)
        for (int r = 0; r < 2; r++) {
            assert_int_equal(first[d][r], smp_plan_device(plan, d, r));
            assert_int_equal(first[d][r], smp_plan_first_process(plan, d, r));
        }
    assert_true(smp_plan_place(plan, 4, &replica, &rank, &index));
    assert_int_equal(1, replica);
    assert_int_equal(0, rank);
    assert_int_equal(1, index);
    assert_false(smp_plan_place(plan, 6, &replica, &rank, &index));
    assert_int_equal(1, plan->splitting.n_fewer);
    assert_string_equal("loss", plan->splitting.fewer[0].op);
    assert_int_equal(1, plan->splitting.fewer[0].devices);
    assert_int_equal(8, smp_cluster_devices(plan->cluster));
    assert_int_equal(2, plan->cluster->group);
    smp_plan_destroy(plan);
    free(text);
}

static void test_plan_split_groups_broken(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *message;
    } cases[] = {
        {"devices: 6", "devices: 8",
         "plan.yaml:3:21: parallel: devices: got 8, expected ddp * the 3 of all ranks' groups = 6"},
        {"tensor: 1, ops", "tensor: 3, ops",
         "plan.yaml:12:5: stage: tensor: got 3, expected at most the 2 of `parallel`"},
        {"tensor: 1, ops", "tensor: 0, ops", "plan.yaml:12:33: stage: tensor"},
        {"placement: cluster", "placement: spread", "plan.yaml:3:67: parallel: placement: got"},
        {"nodes: 1, devices_per_node: 8", "nodes: 2, devices_per_node: 4",
         "a group of 2 from device 3 on lies on two nodes"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *text = make_different(cases[i].from, cases[i].to);
        smp_plan *plan = NULL;
        smp_status status = smp_plan_parse("plan.yaml", text, strlen(text), &plan);
        free(text);
        if (status != SMP_ERR_INPUT)
            fail_msg("case %zu: '%s' was accepted", i, cases[i].to);
        if (!strstr(smp_last_error(), cases[i].message))
            fail_msg("case %zu: '%s', expected '%s'", i, smp_last_error(), cases[i].message);
    }
}

/* Cut anywhere, a plan is refused or read, never worse. */
static void test_plan_split_truncated(void **state)
{
    (void)state;
    for (size_t n = 0; n < sizeof good - 2; n++) {
        smp_plan *plan = NULL;
        smp_status status = smp_plan_parse("plan.yaml", good, n, &plan);
        assert_true(status == SMP_OK || status == SMP_ERR_INPUT);
        smp_plan_destroy(plan);
    }
}

/* Groups are what a sketch has replicas of. */
static void test_plan_split_sketch_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *parallel;
        int ddp; /* -1: refused */
    } cases[] = {{"devices: 8, pipeline: 2, tensor: 2", 2},
                 {"devices: 8, pipeline: 4, tensor: 2", 1},
                 {"devices: 8, pipeline: 2, tensor: 8", 0},
                 {"devices: 8, pipeline: 2, tensor: 3", -1},
                 {"pipeline: 2, tensor: 2", 0},
                 {"pipeline: 2, tensor: 2, placement: [3, 0, 2, 1]", 2},
                 {"devices: 8, pipeline: 2, tensor: 2, placement: [3, 0, 2, 1]", 2},
                 {"devices: 4, pipeline: 2, tensor: 2, placement: [3, 0, 2, 1]", -1},
                 {"tensor: 2", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_sketch *sketch = NULL;
        smp_text text = {0};
        smp_text_append(&text,
                        "smp: 1\nparallel: {%s}\nsplit: [{op: \"h*\", as: columns}]\n"
                        "stages:\n  - {ops: a}\n",
                        cases[i].parallel);
        smp_status status = smp_sketch_parse("s.yaml", text.data, text.length, &sketch);
        if (status != (cases[i].ddp >= 0 ? SMP_OK : SMP_ERR_INPUT))
            fail_msg("case %zu: %s", i, smp_last_error());
        if (sketch) {
            assert_int_equal(cases[i].ddp, sketch->ddp);
            assert_string_equal("h*", sketch->splitting.entry[0].op);
        }
        smp_sketch_destroy(sketch);
        smp_text_free(&text);
    }
}

static const char model[] =
    "smp: 1\nname: two\n"
    "inputs: {i: {dtype: float32, shape: [4, 6]}, target: {dtype: float32, shape: [4, 6]}}\n"
    "ops:\n"
    "  - {op: linear, name: h0.fc, in: i, out: x, features: 8}\n"
    "  - {op: gelu, name: h0.act, in: x, out: x}\n"
    "  - {op: linear, name: h0.proj, in: x, out: x, features: 6}\n"
    "  - {op: linear, name: h1.fc, in: x, out: x, features: 8}\n"
    "  - {op: gelu, name: h1.act, in: x, out: x}\n"
    "  - {op: linear, name: h1.proj, in: x, out: x, features: 9}\n"
    "  - {op: linear, name: out, in: x, out: x, features: 6}\n"
    "  - {op: mse, name: loss, in: [x, target], out: loss}\n"
    "loss: loss\n";

enum { MOST = 8 };

typedef struct entries {
    const char *op, *as;
} entries;

static smp_status resolve(const smp_graph *graph, const entries *from, smp_arena *arena,
                          smp_splitting *out)
{
    smp_split_entry entry[MOST];
    smp_splitting splitting = {.devices = 2, .entry = entry};
    for (int i = 0; i < MOST && from[i].op; i++)
        entry[splitting.n_entry++] =
            (smp_split_entry){from[i].op, from[i].as, {"s.yaml", i + 3, 5}};
    return smp_splitting_resolve(&splitting, graph, arena, out);
}

static void test_plan_split_patterns(void **state)
{
    (void)state;
    static const struct {
        entries from[MOST];
        const char *text; /* all that is split, or the message */
        bool refused;
    } cases[] = {
        {{{0}}, "", false},
        {{{"h0.fc", "columns"}}, "h0.fc columns\n", false},
        {{{"h*.fc", "columns"}}, "h0.fc columns\nh1.fc columns\n", false},
        /* kinds that lack the rule are passed over, the order is the model's */
        {{{"h*.act", "elements@1"}, {"h0.fc..h0.proj", "rows"}},
         "h0.fc rows\nh0.act elements@1\nh0.proj rows\nh1.act elements@1\n",
         false},
        /* a later pattern wins over an earlier one, a name over both */
        {{{"h0.fc", "rows"}, {"h*", "rows"}, {"h*.fc", "columns"}, {"h1.proj", "whole"}},
         "h0.fc rows\nh0.proj rows\nh1.fc columns\n",
         false},
        {{{"out", "whole"}, {"*", "rows"}},
         "h0.fc rows\nh0.proj rows\nh1.fc rows\nh1.proj rows\n",
         false},
        {{{"h*", "rows"}, {"*", "whole"}}, "", false},
        {{{"h0.fc", "columns"}, {"h2.*", "rows"}},
         "s.yaml:4:5: split: no op of model 'two' is 'h2.*'",
         true},
        {{{"h0.fx", "columns"}},
         "s.yaml:3:5: split: no op of model 'two' is 'h0.fx', nearest is 'h0.fc'",
         true},
        {{{"h*.act", "columns"}},
         "s.yaml:3:5: split: op 'h0.act' (gelu): split 'columns', expected whole, elements@",
         true},
        {{{"h0.act", "elements"}}, "s.yaml:3:5: split: op 'h0.act' (gelu)", true},
        {{{"h0.fc", "columns"}, {"h0.fc", "rows"}},
         "s.yaml:4:5: split: op 'h0.fc' is named twice",
         true},
        {{{"h*.proj", "columns"}},
         "s.yaml:3:5: split: op 'h1.proj' (linear): split 'columns': its sizes, or what is frozen, "
         "do not allow that "
         "on 2 devices",
         true},
        {{{"h1.proj", "whole"}, {"h*.proj", "columns"}}, "h0.proj columns\n", false},
        {{{"h*.proj", "columns"}, {"h1.proj", "whole"}}, "h0.proj columns\n", false},
        {{{"*", "sideways"}}, "split 'sideways', expected whole, columns", true},
    };
    smp_graph *graph = NULL;
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_arena *arena = smp_arena_create();
        smp_splitting out = {0};
        smp_text text = {0};
        smp_status status = resolve(graph, cases[i].from, arena, &out);
        if (status != (cases[i].refused ? SMP_ERR_INPUT : SMP_OK))
            fail_msg("case %zu: %s", i, status == SMP_OK ? "accepted" : smp_last_error());
        if (cases[i].refused) {
            if (!strstr(smp_last_error(), cases[i].text))
                fail_msg("case %zu: '%s'", i, smp_last_error());
        } else {
            assert_int_equal(2, out.devices);
            for (int32_t k = 0; k < out.n_entry; k++) {
                const int from = out.entry[k].where.line - 3; /* the entry that it is of */
                assert_in_range(from, 0, MOST - 1);
                assert_string_equal(cases[i].from[from].as, out.entry[k].as);
            }
            for (int32_t k = 0; k < out.n_entry; k++)
                smp_text_append(&text, "%s %s\n", out.entry[k].op, out.entry[k].as);
            assert_string_equal(cases[i].text, text.data ? text.data : "");
        }
        smp_text_free(&text);
        smp_arena_destroy(arena);
    }
    smp_graph_destroy(graph);
}

/* Names become patterns where these say the same in fewer lines. */
static void test_plan_split_shortened(void **state)
{
    (void)state;
    static const struct {
        entries from[MOST];
        const char *text;
    } cases[] = {
        {{{0}}, ""},
        {{{"h*.fc", "columns"}}, "h*.fc columns\n"},
        {{{"h*", "rows"}}, "h*.fc rows\nh*.proj rows\n"},
        {{{"h*.fc", "columns"}, {"h*.act", "elements@1"}, {"h0.proj", "rows"}, {"out", "columns"}},
         "h*.fc columns\nh*.act elements@1\nh*.proj rows\nout columns\nh1.proj whole\n"},
        {{{"h*.fc", "columns"}, {"h*.act", "elements@1"}, {"h*.proj", "rows"}, {"out", "columns"}},
         "h*.fc columns\nh*.act elements@1\nh*.proj rows\nout columns\n"},
        {{{"h0.fc", "columns"}, {"h1.fc", "rows"}}, "h0.fc columns\nh1.fc rows\n"},
        {{{"h0.fc", "columns"}}, "h0.fc columns\n"},
    };
    smp_graph *graph = NULL;
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        smp_arena *arena = smp_arena_create();
        smp_splitting all = {0}, few = {0}, again = {0};
        smp_text text = {0};
        assert_int_equal(SMP_OK, resolve(graph, cases[i].from, arena, &all));
        assert_int_equal(SMP_OK, smp_splitting_shorten(&all, graph, arena, &few));
        assert_int_equal(SMP_OK, smp_splitting_resolve(&few, graph, arena, &again));
        assert_int_equal(again.n_entry, all.n_entry);
        for (int32_t k = 0; k < all.n_entry; k++) {
            assert_string_equal(again.entry[k].op, all.entry[k].op);
            assert_string_equal(again.entry[k].as, all.entry[k].as);
        }
        for (int32_t k = 0; k < few.n_entry; k++)
            smp_text_append(&text, "%s %s\n", few.entry[k].op, few.entry[k].as);
        if (strcmp(cases[i].text, text.data ? text.data : "") != 0)
            fail_msg("case %zu: %s", i, text.data ? text.data : "");
        smp_text_free(&text);
        smp_arena_destroy(arena);
    }
    smp_graph_destroy(graph);
}

/* Without a place, as of an option; and by nobody: nothing. */
static void test_plan_split_patterns_of_options(void **state)
{
    (void)state;
    const smp_split_entry entry = {"nothing", "rows", {0}};
    smp_splitting splitting = {.devices = 2, .n_entry = 1, .entry = &entry}, out = {0};
    smp_graph *graph = NULL;
    smp_arena *arena = smp_arena_create();
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
    assert_int_equal(SMP_ERR_INPUT, smp_splitting_resolve(&splitting, graph, arena, &out));
    assert_int_equal(0, strncmp(smp_last_error(), "split: no op of model 'two'", 27));
    splitting.devices = 1;
    assert_int_equal(SMP_OK, smp_splitting_resolve(&splitting, graph, arena, &out));
    assert_int_equal(0, out.n_entry);
    smp_arena_destroy(arena);
    smp_graph_destroy(graph);
}

/* More patterns than may be looked for. */
static void test_plan_split_patterns_are_bounded(void **state)
{
    (void)state;
    enum { MANY = 40000 };
    static smp_split_entry entry[MANY];
    smp_text text = {0};
    smp_graph *graph = NULL;
    smp_splitting out = {0};
    smp_arena *arena = smp_arena_create();
    smp_text_append(&text, "smp: 1\ninputs: {x: {dtype: float32, shape: [4, 2]}}\nops:\n"
                           "  - repeat: 10000\n    as: i\n    ops: [{op: relu, name: \"r{i}\", in: "
                           "x, out: x}]\nmode: inference\n");
    if (smp_graph_parse("m.yaml", text.data, text.length, &graph) != SMP_OK)
        fail_msg("%s", smp_last_error());
    for (int i = 0; i < MANY; i++)
        entry[i] = (smp_split_entry){"r*9999", "whole", {"s.yaml", 1, i}};
    const smp_splitting splitting = {.devices = 2, .n_entry = MANY, .entry = entry};
    assert_int_equal(SMP_ERR_INPUT, smp_splitting_resolve(&splitting, graph, arena, &out));
    assert_non_null(strstr(smp_last_error(), "too many patterns"));
    smp_text_free(&text);
    smp_arena_destroy(arena);
    smp_graph_destroy(graph);
}

/* Written by its entries, opened for each device: the same plan binds to all of them. */
static void test_plan_split_opens_its_model(void **state)
{
    (void)state;
    static const entries from[MOST] = {
        {"h*.fc", "columns"}, {"h*.act", "elements@1"}, {"h0.proj", "rows"}};
    smp_graph *whole = NULL;
    smp_splitting splitting = {0};
    smp_arena *arena = smp_arena_create();
    assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &whole));
    assert_int_equal(SMP_OK, resolve(whole, from, arena, &splitting));
    for (int index = 0; index < 2; index++) {
        smp_graph *graph = NULL;
        assert_int_equal(SMP_OK, smp_graph_parse("m.yaml", model, strlen(model), &graph));
        if (smp_splitting_apply(&splitting, index, &graph) != SMP_OK)
            fail_msg("%s", smp_last_error());
        assert_true(graph->whole && graph->whole->fingerprint == whole->fingerprint);
        assert_int_equal(index, graph->device);
        assert_true(smp_graph_find_op(graph, "h0.proj:whole") >= 0);
        smp_graph_destroy(graph);
    }
    smp_arena_destroy(arena);
    smp_graph_destroy(whole);
}

/* The example of the documentation splits what it says. */
static void test_plan_split_documented(void **state)
{
    (void)state;
    char *document;
    size_t bytes;
    smp_graph *graph = NULL;
    smp_sketch *sketch = NULL;
    smp_splitting out;
    assert_int_equal(SMP_OK, smp_file_read(SMP_SOURCE_DIR "/schedule/plan/FORMAT.md", 1 << 20,
                                           &document, &bytes));
    const char *begin = strstr(document, "```yaml\nsmp: 1\nparallel: {tensor: 2}\n");
    assert_non_null(begin);
    begin += strlen("```yaml\n");
    if (smp_sketch_parse("s.yaml", begin, (size_t)(strstr(begin, "```") - begin), &sketch) !=
            SMP_OK ||
        smp_graph_read(SMP_SOURCE_DIR "/examples/gpt-tiny.yaml", &graph) != SMP_OK ||
        smp_splitting_resolve(&sketch->splitting, graph, sketch->arena, &out) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_int_equal(24, out.n_entry);
    assert_int_equal(SMP_OK, smp_splitting_apply(&out, 1, &graph));
    smp_graph_destroy(graph);
    smp_sketch_destroy(sketch);
    free(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_split_round_trip),
        cmocka_unit_test(test_plan_split_content),
        cmocka_unit_test(test_plan_split_of_one),
        cmocka_unit_test(test_plan_split_broken),
        cmocka_unit_test(test_plan_split_groups_differ),
        cmocka_unit_test(test_plan_split_groups_broken),
        cmocka_unit_test(test_plan_split_truncated),
        cmocka_unit_test(test_plan_split_sketch_numbers),
        cmocka_unit_test(test_plan_split_patterns),
        cmocka_unit_test(test_plan_split_patterns_of_options),
        cmocka_unit_test(test_plan_split_shortened),
        cmocka_unit_test(test_plan_split_patterns_are_bounded),
        cmocka_unit_test(test_plan_split_opens_its_model),
        cmocka_unit_test(test_plan_split_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
