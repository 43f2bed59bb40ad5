/* The splitting that is chosen is the cheapest: against all others on small graphs, priced by the
 * ops that smp_graph_split makes of them; and on a GPT it is Megatron-LM's. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "graph/base/random.h"
#include "graph/base/text.h"
#include "graph/model/op.h"
#include "graph/split/split_choose.h"
#include "graph/split/split_text.h"

enum { MOST_OPS = 8 };

typedef struct pricing {
    const smp_graph *graph;
    int devices;
    int left; /* choices of an op that are not barred, at most */
    uint64_t seed;
} pricing;

/* Of a conversion between what is `elements` when it is whole. */
static double price(double elements, bool gathers, bool splits, bool sums, bool sums_gradient)
{
    return elements * (0.5 + 2 * sums + 1.9 * sums_gradient - (sums && splits) + 0.8 * gathers -
                       0.1 * (gathers && splits));
}

static double price_move(void *context, int32_t tensor, smp_spread from, smp_spread to)
{
    const pricing *p = context;
    return price((double)p->graph->tensor[tensor].elements, from.way == SMP_SPLIT,
                 to.way == SMP_SPLIT, from.way == SMP_PARTS, to.way == SMP_SHARED);
}

static int64_t attr_of(const smp_op *op, const char *name)
{
    return op->attr[smp_op_attr_index(op->kind, name)].i;
}

/* The same of an op of a split graph; 0 of others. */
static double price_made(const smp_graph *g, const smp_op *op)
{
    const char *kind = op->kind->name;
    double in = (double)g->tensor[op->in[0]].elements, out = (double)g->tensor[op->out].elements;
    if (strcmp(kind, "all_reduce") == 0)
        return price(out, false, false, attr_of(op, "value"), attr_of(op, "gradient"));
    if (strcmp(kind, "all_gather") == 0)
        return price(out, true, false, false, attr_of(op, "summands"));
    if (strcmp(kind, "reduce_scatter") == 0)
        return price(in, false, true, attr_of(op, "sum"), false);
    if (strcmp(kind, "all_to_all") == 0)
        return price(in * (double)attr_of(op, "devices"), true, true, false, false);
    return 0;
}

/* Random; all but `left` choices of an op are barred. */
static double price_op(void *context, int32_t o, smp_split_choice choice)
{
    const pricing *p = context;
    smp_split_choice all[SMP_SPLIT_CHOICES];
    int n = smp_split_choices(p->graph, o, p->devices, all), k = 0;
    while (memcmp(&all[k], &choice, sizeof choice) != 0)
        k++;
    uint64_t h = smp_random_mix(p->seed + smp_random_mix((uint64_t)(o * 100 + k)));
    int first = (int)(smp_random_mix(p->seed + (uint64_t)o) % (uint64_t)n);
    if (k != 0 && (k - first + n) % n >= p->left - 1)
        return INFINITY;
    return (double)(h % 1000) * (choice.rule < 0 ? 2 : 1);
}

static double random_below(uint64_t *random, double n)
{
    *random = smp_random_mix(*random + 1);
    return floor((double)(*random >> 11) * 0x1p-53 * n);
}

static smp_graph *random_graph(uint64_t *random, int ops)
{
    static const char *const lines[] = {
        "op: linear, in: %s, features: 12",
        "op: linear, in: %s, features: 12, bias: false",
        "op: layernorm, in: %s",
        "op: gelu, in: %s",
        "op: add, in: [%s, %s]",
        "op: mul, in: [%s, %s]",
        "op: linear, in: %s, features: 12, bias: false, weight: n0.weight"};
    char text[4096], line[256], name[2][16];
    int n = ops - 1, used = 0; /* the loss is one, too */
    used += snprintf(text, sizeof text,
                     "smp: 1\ninputs: {x: {dtype: float32, shape: [4, 12]}, y: {dtype: float32, "
                     "shape: [4, 12]}}\nops:\n  - {op: linear, name: n0, in: x, out: t0, "
                     "features: 12}\n");
    for (int i = 1; i < n; i++) {
        for (int k = 0; k < 2; k++)
            snprintf(name[k], sizeof name[k], "t%d",
                     i - 1 - (int)random_below(random, i < 3 ? i : 3));
        snprintf(line, sizeof line, lines[(int)random_below(random, 7)], name[0], name[1]);
        used += snprintf(text + used, sizeof text - (size_t)used, "  - {%s, name: n%d, out: t%d}\n",
                         line, i, i);
    }
    snprintf(text + used, sizeof text - (size_t)used,
             "  - {op: mse, name: loss, in: [t%d, y], out: loss}\nloss: loss\n", n - 1);
    smp_graph *graph;
    if (smp_graph_parse("model.yaml", text, strlen(text), &graph) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), text);
    return graph;
}

/* What a splitting costs; INFINITY if it does not go together. */
static double price_split(const smp_graph *graph, pricing *p, const smp_split_choice *choice)
{
    smp_graph *part;
    double us = 0;
    for (int32_t o = 0; o < graph->n_op; o++)
        us += price_op(p, o, choice[o]);
    if (us == INFINITY)
        return INFINITY;
    if (smp_graph_split(graph, p->devices, 0, choice, &part) != SMP_OK)
        return INFINITY;
    for (int32_t o = 0; o < part->n_op; o++)
        us += price_made(part, &part->op[o]);
    smp_graph_destroy(part);
    return us;
}

/* Of all splittings: how many there are, and how many had to be made into graphs. */
typedef struct census {
    double all;
    int64_t made;
} census;

/* The cheapest of the splittings that begin with choice[0 .. o), whose ops take `us`, or `best`.
 * If ops alone take as long as `best`, none of them is cheaper, since no message takes less than
 * nothing. */
static double best_of_all(const smp_graph *graph, pricing *p, smp_split_choice *choice, int32_t o,
                          double us, double best, census *count)
{
    smp_split_choice all[SMP_SPLIT_CHOICES];
    if (us >= best)
        return best;
    if (o == graph->n_op) {
        count->made++;
        return fmin(best, price_split(graph, p, choice));
    }
    int n = smp_split_choices(graph, o, p->devices, all);
    for (int k = 0; k < n; k++) {
        choice[o] = all[k];
        best = best_of_all(graph, p, choice, o + 1, us + price_op(p, o, all[k]), best, count);
    }
    return best;
}

static double number_of_all(const smp_graph *graph, pricing *p)
{
    smp_split_choice all[SMP_SPLIT_CHOICES];
    double number = 1;
    for (int32_t o = 0; o < graph->n_op; o++) {
        int n = smp_split_choices(graph, o, p->devices, all), left = 0;
        for (int k = 0; k < n; k++)
            left += price_op(p, o, all[k]) < INFINITY;
        number *= left;
    }
    return number;
}

/* How many of the ops of the choice are split. */
static int check_against_all(const smp_graph *graph, pricing *p, int number, census *count)
{
    smp_split_choice choice[MOST_OPS] = {0}, tried[MOST_OPS] = {0};
    const smp_split_costs costs = {p, price_op, price_move};
    double us;
    bool exact;
    int split = 0;
    assert_int_equal(smp_split_choose(graph, p->devices, &costs, NULL, choice, &us, &exact),
                     SMP_OK);
    assert_true(exact);
    double own = price_split(graph, p, choice);
    double best = best_of_all(graph, p, tried, 0, 0, INFINITY, count);
    if (fabs(us - own) > 1e-6 * us || fabs(us - best) > 1e-6 * us)
        fail_msg("graph %d: chosen %g, which is %g, the best is %g", number, us, own, best);
    for (int32_t o = 0; o < graph->n_op; o++)
        split += choice[o].rule >= 0;
    count->all += number_of_all(graph, p);
    return split;
}

/* Graphs of 4 to 8 ops, with few choices of each op, so that it is not always the same that is
 * best; then some with all. */
static void test_against_all(void **state)
{
    (void)state;
    static const int graphs[] = {40, 20}, left[] = {4, SMP_SPLIT_CHOICES};
    uint64_t random = 3;
    for (int k = 0; k < 2; k++) {
        census count = {0};
        int split = 0;
        for (int i = 0; i < graphs[k]; i++) {
            smp_graph *graph = random_graph(&random, 4 + i % (MOST_OPS - 3));
            pricing p = {graph, i % 2 ? 2 : 4, left[k], (uint64_t)i};
            split += check_against_all(graph, &p, i, &count);
            smp_graph_destroy(graph);
        }
        printf("%d graphs, at most %d choices of an op: %.3g splittings, %lld of them made\n",
               graphs[k], left[k], count.all, (long long)count.made);
        assert_true(split > 20);
    }
}

static smp_graph *read_example(const char *name)
{
    char path[4096];
    smp_graph *graph;
    snprintf(path, sizeof path, "%s/examples/%s.yaml", SMP_SOURCE_DIR, name);
    assert_int_equal(smp_graph_read(path, &graph), SMP_OK);
    return graph;
}

/* Every choice is read as it is written; others are refused with what there is. */
static void test_text(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-tiny", "llama-tiny", "resnet-small", "moe-tiny"};
    static const char *const wrong[][2] = {
        {"column", "split 'column', expected whole, columns, rows, positions@DIMENSION"},
        {"positions", "expected whole, columns"},
        {"columns@1", "expected whole, columns"},
        {"columns/3x", "expected whole, columns"},
        {"columns/2", "its sizes, or what is frozen, do not allow that on 2 devices"},
        {"positions@5", "its sizes, or what is frozen, do not allow that on 2 devices"},
        {"", "expected whole, columns"}};
    int read = 0;
    for (int i = 0; i < 4; i++) {
        smp_graph *graph = read_example(names[i]);
        for (int32_t o = 0; o < graph->n_op; o++) {
            smp_split_choice all[SMP_SPLIT_CHOICES], back;
            int n = smp_split_choices(graph, o, 2, all);
            for (int k = 0; k < n; k++, read++) {
                smp_text text = {0};
                smp_split_format(graph, o, all[k], &text);
                assert_int_equal(smp_split_parse(graph, o, 2, text.data, &back), SMP_OK);
                assert_memory_equal(&back, &all[k], sizeof back);
                smp_text_free(&text);
            }
        }
        smp_graph_destroy(graph);
    }
    assert_true(read > 500);
    smp_graph *graph = read_example("gpt-tiny");
    int32_t o = smp_graph_find_op(graph, "h0.mlp.fc");
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        smp_split_choice choice;
        assert_int_equal(smp_split_parse(graph, o, 2, wrong[i][0], &choice), SMP_ERR_INPUT);
        if (!strstr(smp_last_error(), wrong[i][1]))
            fail_msg("'%s': %s", wrong[i][0], smp_last_error());
    }
    smp_graph_destroy(graph);
}

/* Products at a rate, everything else by the bytes it touches, messages around a ring. */
typedef struct machine {
    const smp_graph *graph;
    int devices;
    double flops_per_us, bytes_per_us, link_per_us;
    bool splits_weights; /* they would not fit otherwise */
    int64_t *n_move;     /* NULL, or counts what was asked for */
    bool avoids_rings;   /* at any price */
} machine;

#define AVOIDED_US 1e12

static bool is_ring(const smp_op *op, smp_split_choice choice)
{
    return choice.rule >= 0 && op->n_param > 0 && op->kind->split[choice.rule].kind;
}

/* What travels around a ring in a rule's op. Of packed queries, keys and values: these, and with
 * their gradients home. Of a product: what a gather before it or a scatter behind it would bring,
 * both ways; nothing is hidden, and pieces take longer than the whole. */
static double machine_ring(const machine *m, int32_t o, smp_split_choice choice)
{
    const smp_op *op = &m->graph->op[o];
    const char *kind = choice.rule < 0 ? NULL : op->kind->split[choice.rule].kind;
    const bool product = kind && strcmp(kind, "ring_linear") == 0;
    const bool gathers = product && smp_split_out(m->graph, o, choice).dim != 0;
    const double bytes = (double)smp_tensor_bytes(m->graph, gathers ? op->in[0] : op->out, 4);
    if (product)
        return 2.2 * bytes * (m->devices - 1) / m->devices / m->link_per_us;
    if (!kind || strcmp(kind, "ring_attention") != 0)
        return 0;
    return 2 * bytes / m->devices * (m->devices - 1 + 2 * (m->devices - 1) + 1) / m->link_per_us;
}

static double machine_op(void *context, int32_t o, smp_split_choice choice)
{
    const machine *m = context;
    smp_op_work work;
    smp_op_work_get(m->graph, &m->graph->op[o], 4, &work);
    double flops = work.forward_flops + work.backward_input_flops + work.backward_weight_flops;
    double bytes = work.forward_bytes + work.backward_input_bytes + work.backward_weight_bytes;
    double us =
        fmax(flops / m->flops_per_us, bytes / m->bytes_per_us) / (choice.rule < 0 ? 1 : m->devices);
    const smp_op *op = &m->graph->op[o];
    us += machine_ring(m, o, choice) + (m->avoids_rings && is_ring(op, choice) ? AVOIDED_US : 0);
    for (int32_t p = 0; p < op->n_param; p++) {
        const smp_param *param = &m->graph->param[op->param[p]];
        const uint8_t way = smp_split_param(m->graph, o, choice, p, NULL).way;
        if (way == SMP_SHARED) /* once in a step of eight micro-batches */
            us += (double)param->elements / m->link_per_us;
        if (way != SMP_SPLIT && m->splits_weights && param->shape.n_dim > 1)
            return INFINITY;
    }
    return us;
}

static double machine_move(void *context, int32_t tensor, smp_spread from, smp_spread to)
{
    const machine *m = context;
    const double bytes = (double)smp_tensor_bytes(m->graph, tensor, 4);
    if (m->n_move)
        ++*m->n_move;
    const double ring = bytes * (m->devices - 1) / m->devices / m->link_per_us;
    double rounds = 2 * (from.way == SMP_PARTS) + 2 * (to.way == SMP_SHARED);
    if (from.way == SMP_SPLIT)
        rounds = to.way == SMP_SPLIT ? 2.0 / m->devices : to.way == SMP_SHARED ? 2 : 1;
    else if (to.way == SMP_SPLIT)
        rounds = from.way == SMP_PARTS ? 2 : 1;
    return rounds * ring + bytes / m->bytes_per_us;
}

/* Tensors of one size cost the same. */
static const void *machine_like(void *context, int32_t tensor)
{
    const machine *m = context;
    return (const void *)(intptr_t)smp_tensor_bytes(m->graph, tensor, 4);
}

/* What is taken over from equal layers is what they would come to. */
static void check_unlike(const machine *m, smp_split_choice *choice, double us)
{
    const smp_split_costs costs = {(void *)m, machine_op, machine_move, NULL, AVOIDED_US / 2};
    double all_us;
    bool exact;
    assert_int_equal(smp_split_choose(m->graph, m->devices, &costs, NULL, choice, &all_us, &exact),
                     SMP_OK);
    assert_true(us <= all_us * (1.0 + 1e-9) && (!exact || us >= all_us * (1.0 - 1e-9)));
}

static const char *rule_at(const smp_graph *graph, const smp_split_choice *choice, const char *name)
{
    int32_t o = smp_graph_find_op(graph, name);
    assert_true(o >= 0);
    return choice[o].rule < 0 ? "whole" : graph->op[o].kind->split[choice[o].rule].name;
}

static void check_pattern(const char *model, bool splits_weights, const char *const (*wanted)[2])
{
    smp_graph *graph = read_example(model), *part;
    smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
    machine m = {graph, 8, 150e6, 1.5e6, 0.25e6, splits_weights, NULL, false};
    const smp_split_costs costs = {&m, machine_op, machine_move, machine_like};
    double us;
    bool exact;
    smp_split_choice *other = calloc((size_t)graph->n_op, sizeof *other);
    assert_int_equal(smp_split_choose(graph, m.devices, &costs, NULL, choice, &us, &exact), SMP_OK);
    assert_true(exact || graph->n_op > 1000); /* all splittings of the smaller one are compared */
    check_unlike(&m, other, us);
    free(other);
    for (; (*wanted)[0]; wanted++)
        assert_string_equal(rule_at(graph, choice, (*wanted)[0]), (*wanted)[1]);
    assert_int_equal(smp_graph_split(graph, m.devices, 0, choice, &part), SMP_OK);
    smp_graph_destroy(part);
    free(choice);
    smp_graph_destroy(graph);
}

/* Korthikanti et al. 2022: columns, heads, rows, columns, rows; what lies between by positions.
 * Where every device has room for all weights, positions alone take less time. */
static void test_finds_megatron(void **state)
{
    (void)state;
    static const char *const gpt[][2] = {{"h3.ln_1", "positions"},
                                         {"h3.attn.qkv", "columns"},
                                         {"h3.attn", "packed heads"},
                                         {"h3.attn.proj", "rows"},
                                         {"h3.res_1", "elements"},
                                         {"h3.ln_2", "positions"},
                                         {"h3.mlp.fc", "columns"},
                                         {"h3.mlp.gelu", "elements"},
                                         {"h3.mlp.proj", "rows"},
                                         {"h3.res_2", "elements"},
                                         {NULL, NULL}};
    static const char *const llama[][2] = {{"h3.norm_1", "positions"}, {"h3.q", "columns"},
                                           {"h3.k", "columns"},        {"h3.v", "columns"},
                                           {"h3.q_rope", "heads"},     {"h3.attn", "heads"},
                                           {"h3.o", "rows"},           {"h3.gate", "columns"},
                                           {"h3.up", "columns"},       {"h3.gated", "elements"},
                                           {"h3.down", "rows"},        {"lm_head", "columns"},
                                           {"loss", "classes"},        {NULL, NULL}};
    static const char *const copies[][2] = {{"h3.attn.qkv", "columns"},
                                            {"h3.attn.proj", "positions"},
                                            {"h3.mlp.fc", "positions"},
                                            {"h3.mlp.proj", "positions"},
                                            {NULL, NULL}};
    check_pattern("gpt-175b", true, gpt);
    check_pattern("llama3-70b", true, llama);
    check_pattern("gpt-175b", false, copies);
}

/* What is kept away by a price that no time comes near does not make times equal that differ. */
static void test_avoided_prices(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt-tiny", "llama-tiny", "gpt2-774m", "llama3-8b"};
    for (int i = 0; i < 4; i++) {
        smp_graph *graph = read_example(names[i]);
        smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
        machine m = {graph, 8, 150e6, 1.5e6, 0.25e6, true, NULL, true};
        const smp_split_costs costs = {&m, machine_op, machine_move, machine_like, AVOIDED_US / 2};
        double us;
        bool exact;
        assert_int_equal(smp_split_choose(graph, m.devices, &costs, NULL, choice, &us, &exact),
                         SMP_OK);
        for (int32_t o = 0; o < graph->n_op; o++)
            assert_false(is_ring(&graph->op[o], choice[o]));
        check_unlike(&m, choice, us);
        free(choice);
        smp_graph_destroy(graph);
    }
}

/* Conversions priced for the choice of a GPT of so many layers. */
static int64_t count_moves(const char *layers, double rate)
{
    char path[4096];
    smp_graph *graph;
    const char *text[] = {layers};
    int64_t n = 0;
    double us;
    bool exact;
    snprintf(path, sizeof path, "%s/examples/gpt-175b.yaml", SMP_SOURCE_DIR);
    assert_int_equal(smp_graph_read_with(path, (smp_settings){1, text}, &graph), SMP_OK);
    smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
    machine m = {graph, 8, 150e6 * rate, 1.5e6 * rate, 0.25e6 * rate, true, &n, false};
    const smp_split_costs costs = {&m, machine_op, machine_move, machine_like};
    assert_int_equal(smp_split_choose(graph, m.devices, &costs, NULL, choice, &us, &exact), SMP_OK);
    free(choice);
    smp_graph_destroy(graph);
    return n;
}

/* Equal layers are followed once, however their times are rounded. */
static void test_layers_are_followed_once(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        const double rate = 1.0 + i / 7.0;
        const int64_t few = count_moves("layers=16", rate);
        const int64_t many = count_moves("layers=512", rate);
        assert_true(few > 1000);
        if (many > few)
            fail_msg("rate %g: %lld conversions of 16 layers, %lld of 512", rate, (long long)few,
                     (long long)many);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_all),    cmocka_unit_test(test_finds_megatron),
        cmocka_unit_test(test_avoided_prices), cmocka_unit_test(test_layers_are_followed_once),
        cmocka_unit_test(test_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
