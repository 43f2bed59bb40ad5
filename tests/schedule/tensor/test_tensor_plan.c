/* Plans of models whose operators are split: on small graphs none of all splittings has a shorter
 * step; on a GPT whose weights do not fit the pattern of Megatron-LM comes out, with positions
 * split in between, or with sums where they cannot be; groups are as large as it takes, and what is
 * fixed stays. */
#include "tests/schedule/tensor/setting.h"

#include <math.h>

#include "graph/split/split_choose.h"
#include "graph/split/split_text.h"
#include "partition/problem/flow.h"
#include "schedule/memory/memory.h"
#include "schedule/tensor/tensor_plan.h"

enum { MOST_OPS = 8 };

static double random_below(uint64_t *random, double n)
{
    *random = smp_random_mix(*random + 1);
    return floor((double)(*random >> 11) * 0x1p-53 * n);
}

static void random_model(uint64_t *random, int ops, smp_text *text)
{
    static const char *const lines[] = {
        "op: linear, in: %s, features: 256", "op: linear, in: %s, features: 256, bias: false",
        "op: layernorm, in: %s", "op: gelu, in: %s", "op: add, in: [%s, %s]"};
    const int n = ops - 1; /* the loss is one, too */
    text->length = 0;
    smp_text_append(text, "smp: 1\nname: random\n"
                          "inputs: {x: {dtype: float32, shape: [64, 256]}, y: {dtype: float32, "
                          "shape: [64, 256]}}\nops:\n"
                          "  - {op: linear, name: n0, in: x, out: t0, features: 256}\n");
    for (int i = 1; i < n; i++) {
        char line[128], name[2][16];
        snprintf(name[0], sizeof name[0], "t%d", i - 1); /* nothing is left unread */
        snprintf(name[1], sizeof name[1], "t%d", i - 1 - (int)random_below(random, i < 2 ? i : 2));
        snprintf(line, sizeof line, lines[(int)random_below(random, 5)], name[0], name[1]);
        smp_text_append(text, "  - {%s, name: n%d, out: t%d}\n", line, i, i);
    }
    smp_text_append(text, "  - {op: mse, name: loss, in: [t%d, y], out: loss}\nloss: loss\n",
                    n - 1);
}

/* Microseconds of a step in which every op is split as `entry` says; INFINITY: not to be had. */
static double step_of(const setting *s, const smp_split_entry *entry, int32_t n)
{
    smp_tensor_result made;
    const smp_tensor_request how = {
        .tensor = s->request.options.devices, .fixed = entry, .n_fixed = n, .only_fixed = n > 0};
    smp_status status = smp_tensor_plan(&s->request, &how, "model.yaml", &made);
    if (status != SMP_OK)
        return INFINITY;
    const double us = made.result.plan->predicted.step_us;
    smp_tensor_result_destroy(&made);
    return us;
}

/* Splittings that are planned one by one. */
typedef struct every {
    const setting *s;
    int left; /* choices of an op that are tried, the whole first */
    smp_split_entry entry[MOST_OPS];
    smp_text as[MOST_OPS];
    int64_t planned;
} every;

static double best_of_all(every *e, int32_t op)
{
    const smp_graph *graph = e->s->graph;
    smp_split_choice choice[SMP_SPLIT_CHOICES];
    double best = INFINITY;
    if (op == graph->n_op) {
        e->planned++;
        return step_of(e->s, e->entry, op);
    }
    const int n = smp_split_choices(graph, op, e->s->request.options.devices, choice);
    for (int k = 0; k < n && k < e->left; k++) {
        e->as[op].length = 0;
        smp_split_format(graph, op, choice[k], &e->as[op]);
        e->entry[op] = (smp_split_entry){.op = graph->op[op].name, .as = e->as[op].data};
        best = fmin(best, best_of_all(e, op + 1));
    }
    return best;
}

/* The search has all choices, the comparison the first `left` of each op: it may only be faster. */
static int64_t plan_every_splitting(uint64_t *random, int number, int ops, int left)
{
    setting s;
    smp_text text = {0};
    every e = {.s = &s, .left = left};
    random_model(random, ops, &text);
    open_setting(&s, text.data, number % 2 ? 2 : 4, 1 << 30, number % 3 ? 1e11 : 1e9);
    const double found = step_of(&s, NULL, 0), best = best_of_all(&e, 0);
    assert_true(best < INFINITY);
    if (!(found <= best * 1.0001))
        fail_msg("graph %d: a step of %g us was found, there is one of %g\n%s", number, found, best,
                 text.data);
    for (int k = 0; k < MOST_OPS; k++)
        smp_text_free(&e.as[k]);
    smp_graph_destroy(s.graph);
    smp_text_free(&text);
    return e.planned;
}

static void test_tensor_no_splitting_is_faster(void **state)
{
    (void)state;
    uint64_t random = 11;
    int64_t planned[2] = {0};
    for (int i = 0; i < 10; i++)
        planned[0] += plan_every_splitting(&random, i, 4 + i % (MOST_OPS - 3), 3);
    for (int i = 0; i < 10; i++)
        planned[1] += plan_every_splitting(&random, i, 3 + i % 3, SMP_SPLIT_CHOICES);
    printf("%lld splittings planned of at most 3 choices of an op, %lld of all\n",
           (long long)planned[0], (long long)planned[1]);
}

static const char gpt[] =
    "smp: 1\nname: gpt\nlet: {T: 1024, d: 1024, heads: 16, layers: 4, vocab: 4096}\n"
    "inputs: {tokens: {dtype: int32, shape: [T]}, targets: {dtype: int32, shape: [T]}}\nops:\n"
    "  - {op: embedding, name: wte, in: tokens, out: x, rows: vocab, features: d}\n"
    "  - repeat: layers\n    as: i\n    ops:\n"
    "      - {op: layernorm, name: \"h{i}.ln_1\", in: x, out: a}\n"
    "      - {op: linear, name: \"h{i}.qkv\", in: a, out: a, features: 3*d}\n"
    "      - {op: attention, name: \"h{i}.attn\", in: a, out: a, heads: heads, causal: true}\n"
    "      - {op: linear, name: \"h{i}.proj\", in: a, out: a, features: d}\n"
    "      - {op: add, name: \"h{i}.res_1\", in: [x, a], out: x}\n"
    "      - {op: layernorm, name: \"h{i}.ln_2\", in: x, out: m}\n"
    "      - {op: linear, name: \"h{i}.fc\", in: m, out: m, features: 4*d}\n"
    "      - {op: gelu, name: \"h{i}.gelu\", in: m, out: m}\n"
    "      - {op: linear, name: \"h{i}.down\", in: m, out: m, features: d}\n"
    "      - {op: add, name: \"h{i}.res_2\", in: [x, m], out: x}\n"
    "  - {op: linear, name: head, in: x, out: logits, features: vocab, bias: false}\n"
    "  - {op: cross_entropy, name: loss, in: [logits, targets], out: loss}\n"
    "loss: loss\n";

static const char *as_of(const smp_plan *plan, const char *op)
{
    for (int32_t i = 0; i < plan->splitting.n_entry; i++)
        if (strcmp(plan->splitting.entry[i].op, op) == 0)
            return plan->splitting.entry[i].as;
    return "whole";
}

/* Where nothing travels beside compute and memory is short: all weights and their states take
 * 1.1 GB. */
static void plan_megatron(const char *text, int64_t memory_bytes, smp_tensor_result *made,
                          const char *const (*wanted)[2])
{
    setting s;
    open_setting(&s, text, DEVICES, memory_bytes, 3e11);
    s.cluster.overlap = false;
    s.request.options.stages = s.request.options.ddp = 1;
    s.request.options.microbatch_size = 1;
    const smp_tensor_request how = {.tensor = DEVICES};
    if (smp_tensor_plan(&s.request, &how, "model.yaml", made) != SMP_OK)
        fail_msg("%s", smp_last_error());
    for (; (*wanted)[0]; wanted++)
        assert_string_equal(as_of(made->result.plan, (*wanted)[0]), (*wanted)[1]);
    assert_int_equal(smp_plan_processes(made->result.plan), DEVICES);
    smp_graph_destroy(s.graph);
}

static void test_tensor_finds_megatrons_pattern(void **state)
{
    (void)state;
    static const char *const wanted[][2] = {{"h1.ln_1", "positions@0"},
                                            {"h1.qkv", "columns/3"},
                                            {"h1.attn", "packed heads"},
                                            {"h1.proj", "rows"},
                                            {"h1.res_1", "elements@0"},
                                            {"h1.ln_2", "positions@0"},
                                            {"h1.fc", "columns"},
                                            {"h1.gelu", "elements@1"},
                                            {"h1.down", "rows"},
                                            {"h1.res_2", "elements@0"},
                                            {"head", "columns"},
                                            {"loss", "classes"},
                                            {NULL, NULL}};
    smp_tensor_result made;
    plan_megatron(gpt, 340 << 20, &made, wanted);
    smp_tensor_result_destroy(&made);
}

static int count_kind(const smp_graph *graph, const char *kind)
{
    int n = 0;
    for (int32_t o = 0; o < graph->n_op; o++)
        n += strcmp(graph->op[o].kind->name, kind) == 0;
    return n;
}

/* Positions that the devices do not divide are whole: then it is the pattern of Shoeybi et al.
 * 2019, in each layer two sums of values and two of gradients: attention's and the MLP's. */
static void test_tensor_finds_megatrons_sums(void **state)
{
    (void)state;
    static const char *const wanted[][2] = {
        {"h1.ln_1", "whole"},  {"h1.qkv", "columns/3"},   {"h1.attn", "packed heads"},
        {"h1.proj", "rows"},   {"h1.res_1", "whole"},     {"h1.ln_2", "whole"},
        {"h1.fc", "columns"},  {"h1.gelu", "elements@1"}, {"h1.down", "rows"},
        {"h1.res_2", "whole"}, {"head", "columns"},       {"loss", "classes"},
        {NULL, NULL}};
    smp_tensor_result made;
    smp_graph *part;
    char text[sizeof gpt];
    memcpy(text, gpt, sizeof gpt);
    memcpy(strstr(text, "T: 1024"), "T: 1023", 7);
    plan_megatron(text, 440 << 20, &made, wanted);
    assert_int_equal(smp_graph_parse("model.yaml", text, strlen(text), &part), SMP_OK);
    assert_int_equal(smp_splitting_apply(&made.result.plan->splitting, 0, &part), SMP_OK);
    assert_int_equal(count_kind(part, "all_reduce"), 4 * 4 + 1); /* and of the head's input */
    assert_int_equal(count_kind(part, "all_gather"), 1);         /* of the table's features */
    assert_int_equal(count_kind(part, "reduce_scatter"), 0);
    assert_int_equal(count_kind(part, "all_to_all"), 0);
    smp_graph_destroy(part);
    smp_tensor_result_destroy(&made);
}

/* Products that exchange in pieces, by columns and by rows, of the plan for a GPT of width d. */
static void count_pieces(int d, double link_bytes_per_s, int *columns, int *rows)
{
    setting s;
    smp_tensor_result made;
    char text[sizeof gpt + 16], width[16];
    snprintf(width, sizeof width, "d: %-4d", d);
    memcpy(text, gpt, sizeof gpt);
    memcpy(strstr(text, "d: 1024"), width, strlen(width));
    open_setting(&s, text, DEVICES, 340 << 20, link_bytes_per_s);
    s.request.options.stages = s.request.options.ddp = 1;
    s.request.options.microbatch_size = 1;
    const smp_tensor_request how = {.tensor = DEVICES};
    if (smp_tensor_plan(&s.request, &how, "model.yaml", &made) != SMP_OK)
        fail_msg("%s", smp_last_error());
    const smp_splitting *split = &made.result.plan->splitting;
    *columns = *rows = 0;
    for (int32_t i = 0; i < split->n_entry; i++) {
        *columns += strncmp(split->entry[i].as, "ring columns", 12) == 0;
        *rows += strcmp(split->entry[i].as, "ring rows") == 0;
    }
    smp_tensor_result_destroy(&made);
    smp_graph_destroy(s.graph);
}

/* Two products by columns and two by rows in each layer: in pieces where these hide messages, and
 * not where the calls of pieces take longer than the messages. */
static void test_tensor_cuts_products_where_that_pays(void **state)
{
    int columns, rows;
    (void)state;
    count_pieces(1024, 3e11, &columns, &rows);
    assert_true(columns >= 8);
    assert_int_equal(rows, 8);
    count_pieces(256, 1e13, &columns, &rows);
    assert_int_equal(columns + rows, 0);
}

/* With one stage and one replica nothing but larger groups makes it fit. */
static void test_tensor_auto_takes_what_fits(void **state)
{
    (void)state;
    setting s;
    smp_tensor_result made;
    const smp_tensor_request how = {.tensor = 0};
    int last = 0;
    for (int64_t mb = 4000; mb >= 600; mb = mb * 2 / 3) {
        open_setting(&s, gpt, DEVICES, mb << 20, 3e11);
        s.request.options.stages = 1;
        s.request.options.recompute = SMP_RECOMPUTE_AUTO;
        if (smp_tensor_plan(&s.request, &how, "model.yaml", &made) != SMP_OK)
            fail_msg("%lld MB: %s", (long long)mb, smp_last_error());
        const smp_plan *plan = made.result.plan;
        assert_true(plan->predicted.peak_bytes[0] <= mb << 20);
        assert_int_equal(smp_plan_processes(plan), DEVICES);
        for (int i = 0; i < made.n_tried; i++) /* nothing that was tried is faster */
            if (made.tried[i].fits)
                assert_true(made.tried[i].sample_us * 1.0101 >=
                            smp_plan_sample_us(&made.request, plan));
        last = smp_plan_tensor(plan);
        smp_tensor_result_destroy(&made);
        smp_graph_destroy(s.graph);
    }
    assert_true(last > 1);
}

static void test_tensor_fixed_stays(void **state)
{
    (void)state;
    static const smp_split_entry fixed[] = {{.op = "h*.fc", .as = "rows"},
                                            {.op = "h2.fc", .as = "whole"},
                                            {.op = "*.qkv", .as = "whole"}};
    setting s;
    smp_tensor_result made;
    open_setting(&s, gpt, 2, (int64_t)4 << 30, 3e11);
    const smp_tensor_request how = {.tensor = 2, .fixed = fixed, .n_fixed = 3};
    if (smp_tensor_plan(&s.request, &how, "model.yaml", &made) != SMP_OK)
        fail_msg("%s", smp_last_error());
    assert_string_equal(as_of(made.result.plan, "h0.fc"), "rows");
    assert_string_equal(as_of(made.result.plan, "h2.fc"), "whole");
    assert_string_equal(as_of(made.result.plan, "h3.qkv"), "whole");
    assert_true(made.result.plan->splitting.n_entry > 10);
    smp_tensor_result_destroy(&made);
    const smp_tensor_request seven = {.tensor = 7};
    assert_int_equal(smp_tensor_plan(&s.request, &seven, "model.yaml", &made), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "tensor: got 7, expected a divisor of the 2 devices"));
    smp_graph_destroy(s.graph);
}

/* What is only measured, as plans are, and what the executor lays out are the same bytes, also
 * where repeated calls read inputs that no backward reads, and wait for an exchange. */
static void test_tensor_mixture_reserves_its_peak(void **state)
{
    setting s;
    smp_tensor_result made;
    smp_flow *flow;
    smp_memory_rank *memory;
    smp_layout *layout[1] = {NULL};
    const smp_tensor_request how = {.tensor = 2, .overlap = SMP_TENSOR_OVERLAP_YES};
    smp_text text = {0};
    size_t bytes;
    (void)state;
    assert_int_equal(SMP_OK, smp_file_read(SMP_SOURCE_DIR "/examples/moe-tiny.yaml", 1 << 20,
                                           &text.data, &bytes));
    open_setting(&s, text.data, 2, (int64_t)1 << 32, 6e9);
    for (int d = 0; d < 2; d++) { /* cores: what is split is what computes longest */
        s.device[d].flops_fp32 = 5e10;
        s.device[d].bytes_per_s = 1e10;
    }
    s.request.options.recompute = SMP_RECOMPUTE_ALL;
    assert_int_equal(SMP_OK, smp_tensor_plan(&s.request, &how, "model.yaml", &made));
    const smp_plan *plan = made.result.plan;
    assert_true(plan->splitting.overlap && plan->n_stage == 1);
    int32_t *stage = calloc((size_t)made.request.graph->n_op, sizeof *stage); /* one: all 0 */
    assert_non_null(stage);
    assert_int_equal(SMP_OK, smp_flow_build(made.request.graph, stage, 1, 4, &flow));
    assert_int_equal(SMP_OK, smp_memory_plan_rank(plan, made.request.graph, flow, 0,
                                                  SMP_PLANNED_STATES, layout, &memory));
    assert_int_equal(plan->predicted.peak_bytes[0], memory->arena_bytes);
    smp_memory_destroy(memory);
    smp_layout_destroy(layout[0]);
    smp_flow_destroy(flow);
    smp_tensor_result_destroy(&made);
    smp_graph_destroy(s.graph);
    free(stage);
    free(text.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensor_no_splitting_is_faster),
        cmocka_unit_test(test_tensor_finds_megatrons_pattern),
        cmocka_unit_test(test_tensor_finds_megatrons_sums),
        cmocka_unit_test(test_tensor_cuts_products_where_that_pays),
        cmocka_unit_test(test_tensor_auto_takes_what_fits),
        cmocka_unit_test(test_tensor_fixed_stays),
        cmocka_unit_test(test_tensor_mixture_reserves_its_peak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
