/* Every rule of every operator: the graph that is split by it, on 2 and 4 devices, has the loss and
 * the gradients of the whole one; and so have networks whose ops are split at random. */
#include "tests/case_count.h"
#include "tests/graph/split/split_cases.h"
#include "tests/graph/split/split_run.h"

enum { BATCH = SPLIT_BATCH };

static int64_t batch = BATCH;

static smp_graph *parse(const char *inputs, const char *ops, const char *shape, int t, int d, int c)
{
    static char text[8192];
    smp_graph *graph;
    const bool pooled = strstr(ops, "op: mean_pool") != NULL;
    if (!shape)
        snprintf(text, sizeof text,
                 "smp: 1\nlet: {t: %d, d: %d, c: %d}\ninputs: {%s}\nops:\n%sloss: y\n", t, d, c,
                 inputs, ops);
    else
        snprintf(text, sizeof text,
                 "smp: 1\nlet: {t: %d, d: %d, c: %d}\ninputs: {%s, target: {dtype: float32, shape: "
                 "%s}}\n"
                 "ops:\n%s  - {op: mse, name: loss, in: [y, target], out: loss}\nloss: loss\n",
                 t, d, c, inputs, pooled ? "[d]" : shape, ops);
    if (smp_graph_parse("model.yaml", text, strlen(text), &graph) != SMP_OK ||
        smp_graph_set_target(graph, SPLIT_TARGET) != SMP_OK)
        fail_msg("%s\n%s", smp_last_error(), text);
    return graph;
}

/* Largest difference, relative to the largest value, or to `least`. */
static double difference(const float *got, const float *wanted, int64_t n, double least)
{
    double worst = 0, largest = least;
    for (int64_t e = 0; e < n; e++) {
        double error = fabs((double)got[e] - (double)wanted[e]);
        worst = error > worst || error != error ? error : worst;
        largest = fabs((double)wanted[e]) > largest ? fabs((double)wanted[e]) : largest;
    }
    return worst / largest;
}

/* Of a weight of the whole graph: the sum over its uses, and over the devices where they have
 * summands, put together of the parts. */
static void total_gradient(const device *d, int devices, int32_t whole, const smp_graph *from,
                           float *out)
{
    const smp_graph *g = d[0].graph;
    int32_t p = smp_graph_find_param(g, from->param[whole].name);
    assert_true(p >= 0);
    const bool is_split = g->param[p].part.spread.way == SMP_SPLIT;
    memset(out, 0, (size_t)from->param[whole].elements * sizeof *out);
    for (int32_t u = g->param[p].use_begin; u < g->param[p].use_end; u++) {
        bool summands = g->op[g->use[u].op].summands >> g->use[u].slot & 1;
        for (int i = 0; i < devices; i++)
            for (int64_t e = 0; e < g->param[p].elements; e++)
                if (is_split || summands || i == 0)
                    out[whole_index(&g->param[p].shape, d[i].graph->param[p].part, e)] +=
                        d[i].wgrad[u][e];
                else /* of what all have, all have the same */
                    assert_true(d[i].wgrad[u][e] == d[0].wgrad[u][e]);
    }
}

static double worst;            /* of all rules */
static int64_t hits, hits_top5; /* of all runs */

static double compare(const smp_graph *from, const device *whole, const device *d, int devices)
{
    double most = 0, largest = 0;
    for (int32_t u = 0; u < from->n_use; u++)
        for (int64_t e = 0; e < from->param[from->use[u].param].elements; e++)
            largest = fmax(largest, fabs((double)whole->wgrad[u][e]));
    for (int i = 0; i < devices; i++) {
        assert_int_equal(d[i].hits[0], whole->hits[0]);
        assert_int_equal(d[i].hits[1], whole->hits[1]);
        hits += d[i].hits[0];
        hits_top5 += d[i].hits[1];
        double error = difference(d[i].value[d[i].graph->loss], whole->value[from->loss], 1, 0);
        most = fmax(most, error);
    }
    for (int32_t p = 0; p < from->n_param; p++) {
        int64_t n = from->param[p].elements;
        float *wanted = floats(n), *got = floats(n);
        for (int32_t u = from->param[p].use_begin; u < from->param[p].use_end; u++)
            for (int64_t e = 0; e < n; e++)
                wanted[e] += whole->wgrad[u][e];
        total_gradient(d, devices, p, from, got);
        double error = difference(got, wanted, n, 1e-2 * largest);
        most = fmax(most, error);
        free(wanted);
        free(got);
    }
    return most;
}

/* False: the choices do not go together. */
static bool run_split(const smp_graph *graph, const smp_split_choice *choice, int devices,
                      double *error)
{
    device whole, d[MOST_DEVICES];
    smp_graph *part[MOST_DEVICES];
    pthread_t thread[MOST_DEVICES];
    exchange between = {.size = devices};
    for (int i = 0; i < devices; i++)
        if (smp_graph_split(graph, devices, i, choice, &part[i]) != SMP_OK) {
            assert_int_equal(i, 0);
            return false;
        }
    pthread_barrier_init(&between.barrier, NULL, (unsigned)devices);
    device_open(&whole, graph, batch, NULL, 0);
    device_fill(&whole);
    device_run(&whole);
    assert_int_equal(whole.status, SMP_OK);
    for (int i = 0; i < devices; i++) {
        assert_true(part[i]->fingerprint == part[0]->fingerprint);
        device_open(&d[i], part[i], batch, &between, i);
        device_fill(&d[i]);
    }
    for (int i = 0; i < devices; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, device_run, &d[i]), 0);
    for (int i = 0; i < devices; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(d[i].status, SMP_OK);
    }
    *error = compare(graph, &whole, d, devices);
    for (int i = 0; i < devices; i++) {
        device_close(&d[i]);
        smp_graph_destroy(part[i]);
    }
    device_close(&whole);
    pthread_barrier_destroy(&between.barrier);
    return true;
}

static smp_split_choice *all_whole(const smp_graph *graph)
{
    smp_split_choice *choice = calloc((size_t)graph->n_op, sizeof *choice);
    assert_non_null(choice);
    for (int32_t o = 0; o < graph->n_op; o++)
        choice[o] = (smp_split_choice){-1, 0, 1};
    return choice;
}

static bool chooses(uint8_t cell)
{
    return cell == SMP_CELL_ANY || cell == SMP_CELL_LAST;
}

/* How many choices the kind has rules for: rules * dimensions * blocks, dense. */
static smp_split_choice nth_choice(const smp_graph *graph, int32_t o, int n)
{
    const smp_op *op = &graph->op[o];
    int n_dim = graph->tensor[op->out].shape.n_dim;
    int count = 0;
    for (int r = 0; op->kind->split && op->kind->split[r].name; r++) {
        const smp_split_rule *rule = &op->kind->split[r];
        bool any = rule->in[0] == SMP_CELL_ANY;
        bool blocks = chooses(rule->in[0]) || chooses(rule->out);
        for (int dim = 0; dim < (any ? n_dim : 1); dim++)
            for (int b = 1; b <= (blocks ? SMP_SPLIT_BLOCKS : 1); b++)
                if (count++ == n)
                    return (smp_split_choice){(int8_t)r, (int8_t)dim, (int8_t)b};
    }
    return (smp_split_choice){-1, 0, 1};
}

/* What reads parts of sums needs ops before it that make them. */
static void make_parts(const smp_graph *graph, int32_t o, smp_split_choice *choice)
{
    const smp_split_choice rows = {1, 0, 1};
    if (smp_split_in(graph, o, choice[o], 0).way != SMP_PARTS)
        return;
    for (int32_t i = 0; i < graph->op[o].n_in; i++) {
        int32_t maker = graph->tensor[graph->op[o].in[i]].producer;
        if (maker >= 0)
            choice[maker] = rows;
    }
}

/* Are there kernels of what the op becomes? Some are the CPU's alone. */
static bool runs_here(const smp_op *op, smp_split_choice choice)
{
    const char *kind = choice.rule < 0 ? NULL : op->kind->split[choice.rule].kind;
    return !kind || smp_op_kind_runs(smp_op_kind_find(kind), SPLIT_TARGET.backend);
}

static int run_case(const op_case *c, uint64_t *seen)
{
    static uint64_t random = 1;
    int runs = 0;
    for (int devices = 2; devices <= MOST_DEVICES; devices *= 2) {
        random = smp_random_mix(random + 1);
        smp_graph *graph = parse(c->inputs, c->ops, c->shape, 4 + 4 * (int)(random % 2),
                                 48 + 48 * (int)(random >> 8 & 1), 8 + 8 * (int)(random >> 9 & 1));
        smp_split_choice *choice = all_whole(graph);
        int32_t o = smp_graph_find_op(graph, "op");
        for (int n = 0; (choice[o] = nth_choice(graph, o, n)).rule >= 0; n++) {
            double error;
            if (!smp_split_allows(graph, o, choice[o], devices) ||
                ((*seen >> choice[o].rule & 1) && !is_turn((size_t)n, (size_t)devices / 2, 2)))
                continue;
            for (int32_t other = 0; other < o; other++)
                choice[other] = (smp_split_choice){-1, 0, 1};
            make_parts(graph, o, choice);
            *seen |= (uint64_t)!runs_here(&graph->op[o], choice[o]) << choice[o].rule;
            if (!runs_here(&graph->op[o], choice[o]))
                continue;
            if (!run_split(graph, choice, devices, &error)) {
                assert_non_null(strstr(smp_last_error(), "read as parts")); /* of a model input */
                continue;
            }
            if (!(error <= SPLIT_ERROR))
                fail_msg("%s, rule %s, dimension %d, %d blocks, %d devices: error %g\n%s",
                         graph->op[o].kind->name, graph->op[o].kind->split[choice[o].rule].name,
                         choice[o].dim, choice[o].blocks, devices, error, c->ops);
            worst = error > worst ? error : worst;
            *seen |= (uint64_t)1 << choice[o].rule;
            runs++;
        }
        free(choice);
        smp_graph_destroy(graph);
    }
    return runs;
}

/* The op, or what it becomes. */
static bool runs_on_target(const smp_split_rule *rule)
{
    return !rule->kind || smp_op_kind_runs(smp_op_kind_find(rule->kind), SPLIT_TARGET.backend);
}

static void test_every_rule(void **state)
{
    (void)state;
    enum { N = sizeof CASES / sizeof CASES[0] };
    int runs = 0;
    for (const smp_op_kind *const *kind = smp_op_kinds(); *kind; kind++) {
        uint64_t seen = 0;
        char key[64];
        if (!(*kind)->split)
            continue;
        for (int i = 0; i < N; i++) {
            const char *op = strstr(CASES[i].ops, "name: op");
            while (op > CASES[i].ops && op[-1] != '{')
                op--;
            snprintf(key, sizeof key, "op: %s,", (*kind)->name);
            if (strncmp(op, key, strlen(key)) == 0)
                runs += run_case(&CASES[i], &seen);
        }
        for (int r = 0; (*kind)->split[r].name; r++)
            if (!(seen >> r & 1) && runs_on_target(&(*kind)->split[r]))
                fail_msg("%s: rule '%s' was not run", (*kind)->name, (*kind)->split[r].name);
    }
    printf("%d runs, largest error %.2g\n", runs, worst);
}

static smp_graph *read_example(const char *name)
{
    char path[4096];
    smp_graph *graph;
    snprintf(path, sizeof path, "%s/examples/%s.yaml", SMP_SOURCE_DIR, name);
    assert_int_equal(smp_graph_read(path, &graph), SMP_OK);
    assert_int_equal(smp_graph_set_target(graph, SPLIT_TARGET), SMP_OK);
    return graph;
}

/* For all ops whose names end so; the rule by its name. */
static void choose(const smp_graph *graph, smp_split_choice *choice, const char *end,
                   const char *rule, int dim, int blocks)
{
    int chosen = 0;
    for (int32_t o = 0; o < graph->n_op; o++) {
        const smp_op *op = &graph->op[o];
        size_t length = strlen(op->name);
        if (length < strlen(end) || strcmp(op->name + length - strlen(end), end) != 0)
            continue;
        int r = 0;
        while (strcmp(op->kind->split[r].name, rule) != 0)
            r++;
        choice[o] = (smp_split_choice){(int8_t)r, (int8_t)dim, (int8_t)blocks};
        assert_true(smp_split_allows(graph, o, choice[o], 2));
        chosen++;
    }
    assert_true(chosen > 0);
}

static int count_kind(const smp_graph *graph, const char *kind)
{
    int n = 0;
    for (int32_t o = 0; o < graph->n_op; o++)
        n += strcmp(graph->op[o].kind->name, kind) == 0;
    return n;
}

static void check_collectives(const smp_graph *graph, const smp_split_choice *choice, int reduce,
                              int gather, int scatter)
{
    static size_t calls;
    smp_graph *part;
    double error;
    calls++;
    assert_int_equal(smp_graph_split(graph, 2, 1, choice, &part), SMP_OK);
    assert_int_equal(count_kind(part, "all_reduce"), reduce);
    assert_int_equal(count_kind(part, "all_gather"), gather);
    assert_int_equal(count_kind(part, "reduce_scatter"), scatter);
    assert_int_equal(count_kind(part, "all_to_all"), 0);
    smp_graph_destroy(part);
    for (int devices = 2; devices <= MOST_DEVICES; devices *= 2) {
        if (!SPLIT_PATTERNS || (MOST_DEVICES > 2 && !is_turn(calls, (size_t)devices / 2, 2)))
            continue;
        assert_true(run_split(graph, choice, devices, &error));
        assert_true(error <= SPLIT_NETWORK_ERROR);
    }
}

/* Megatron-LM's pattern: in each of four layers two products by columns and two by rows, a sum of
 * values behind and a sum of gradients before; with the vocabulary split one of each more; then
 * with the positions split between the layers, where these become scatters and gathers. */
static void test_megatron(void **state)
{
    (void)state;
    smp_graph *graph = read_example("gpt-tiny");
    smp_split_choice *choice = all_whole(graph);
    choose(graph, choice, ".attn.qkv", "columns", 0, 3);
    choose(graph, choice, ".attn", "packed heads", 0, 1);
    choose(graph, choice, ".attn.proj", "rows", 0, 1);
    choose(graph, choice, ".mlp.fc", "columns", 0, 1);
    choose(graph, choice, ".mlp.gelu", "elements", 1, 1);
    choose(graph, choice, ".mlp.proj", "rows", 0, 1);
    check_collectives(graph, choice, 16, 0, 0);
    choose(graph, choice, "wte", "rows", 0, 1);
    choose(graph, choice, "lm_head", "columns", 0, 1);
    choose(graph, choice, "loss", "classes", 0, 1);
    check_collectives(graph, choice, 18, 0, 0);
    choose(graph, choice, ".ln_1", "positions", 0, 1);
    choose(graph, choice, ".ln_2", "positions", 0, 1);
    choose(graph, choice, ".res_1", "elements", 0, 1);
    choose(graph, choice, ".res_2", "elements", 0, 1);
    choose(graph, choice, "wpe", "positions", 0, 1);
    choose(graph, choice, "ln_f", "positions", 0, 1);
    check_collectives(graph, choice, 0, 9, 9);
    assert_true(!SPLIT_PATTERNS || (hits > 0 && hits_top5 > hits));
    free(choice);
    smp_graph_destroy(graph);
}

static double attention_flops(const smp_graph *graph, const smp_split_choice *choice, int devices)
{
    smp_graph *part;
    smp_op_work work;
    assert_int_equal(smp_graph_split(graph, devices, 0, choice, &part), SMP_OK);
    smp_op_work_get(part, &part->op[smp_graph_find_op(part, "h1.attn")], BATCH, &work);
    smp_graph_destroy(part);
    return work.forward_flops;
}

/* All by positions: nothing but keys and values travels between the first layer and the last. The
 * device that has most to do has half of a causal model's work less in a zigzag, 1 / devices of
 * all. */
static void test_long_sequences(void **state)
{
    (void)state;
    static const char *const rows[] = {".norm_1", ".q",    ".k",  ".v",    ".o",
                                       ".norm_2", ".gate", ".up", ".down", "norm"};
    static const char *const elements[] = {".res_1", ".silu", ".gated", ".res_2"};
    if (!smp_op_kind_runs(smp_op_kind_find("ring_attention"), SPLIT_TARGET.backend))
        skip();
    smp_graph *graph = read_example("llama-tiny");
    smp_split_choice *choice = all_whole(graph);
    double flops[3];
    for (int blocks = 1; blocks <= 2; blocks++) {
        choose(graph, choice, "wte", "rows", 0, 1);
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            choose(graph, choice, rows[i], "positions", 0, blocks);
        for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
            choose(graph, choice, elements[i], "elements", 0, blocks);
        choose(graph, choice, "_rope", blocks == 2 ? "zigzag" : "positions", 0, 1);
        choose(graph, choice, ".attn", blocks == 2 ? "zigzag ring" : "ring", 0, 1);
        choose(graph, choice, "lm_head", "columns", 0, 1);
        choose(graph, choice, "loss", "classes", 0, 1);
        check_collectives(graph, choice, 0, 1, 1);
        flops[blocks] = attention_flops(graph, choice, 4);
    }
    choose(graph, choice, ".attn", "queries", 0, 1);
    assert_true(attention_flops(graph, choice, 4) == flops[1]); /* of the last, too */
    smp_split_choice *whole = all_whole(graph);
    flops[0] = attention_flops(graph, whole, 4); /* one block of queries: the upper half, too */
    assert_true(flops[1] == flops[0] / 4);
    assert_true(flops[2] < 0.6 * flops[1]);
    free(whole);
    free(choice);
    smp_graph_destroy(graph);
}

/* Of keys and values a device has its own and those of another: two parts of the whole, and no
 * probabilities. */
static void test_memory_of_the_ring(void **state)
{
    (void)state;
    enum { DEVICES = 32, T = 4096, D = 64, ROWS = 64 };
    static const char text[] =
        "smp: 1\ninputs: {x: {dtype: float32, shape: [4096, 64]}, "
        "target: {dtype: float32, shape: [4096, 64]}}\nops:\n"
        "  - {op: linear, name: pre, in: x, out: h, features: 192}\n"
        "  - {op: attention, name: op, in: h, out: y, heads: 4, causal: true}\n"
        "  - {op: mse, name: loss, in: [y, target], out: loss}\nloss: loss\n";
    smp_graph *graph, *part;
    smp_op_needs needs;
    assert_int_equal(smp_graph_parse("m.yaml", text, strlen(text), &graph), SMP_OK);
    smp_split_choice *choice = all_whole(graph);
    choose(graph, choice, "op", "packed ring", 0, 1);
    assert_int_equal(smp_graph_split(graph, DEVICES, 3, choice, &part), SMP_OK);
    smp_op_needs_get(part, &part->op[smp_graph_find_op(part, "op")], 1, &needs);
    const int64_t keys_values = 2 * T / DEVICES * D, scores = ROWS * (T / DEVICES);
    assert_int_equal(needs.workspace_bytes, /* with their gradients, P, dP and D */
                     4 * (4 * keys_values + 2 * scores + 4 * (T / DEVICES)));
    assert_int_equal(needs.aux_bytes, 4 * 2 * 4 * (T / DEVICES));
    free(choice);
    smp_graph_destroy(part);
    smp_graph_destroy(graph);
}

/* Blocks so large that the group is looked at between pieces of them; of several samples, and of
 * one, which lie in the whole as they do alone. */
static void test_large_products_in_pieces(void **state)
{
    (void)state;
    static const char *const rules[] = {"ring columns", "zigzag ring columns", "ring rows",
                                        "zigzag ring rows"};
    static const char ops[] = "  - {op: linear, name: pre, in: x, out: h, features: d}\n"
                              "  - {op: linear, name: op, in: h, out: y, features: 4 * d}\n";
    if (!smp_op_kind_runs(smp_op_kind_find("ring_linear"), SPLIT_TARGET.backend))
        skip();
    smp_graph *graph = parse("x: {dtype: float32, shape: [t, d]}", ops, "[t, 4 * d]", 512, 192, 1);
    for (size_t i = 0; i < 2 * sizeof rules / sizeof rules[0]; i++) {
        if (!is_long() && (i + i / 2) % 2 != 0) /* columns and rows in each batch are left */
            continue;
        smp_split_choice *choice = all_whole(graph);
        double error;
        batch = i % 2 ? 1 : BATCH;
        choose(graph, choice, "op", rules[i / 2], 0, 1);
        for (int devices = 2; devices <= MOST_DEVICES; devices *= 2) {
            assert_true(run_split(graph, choice, devices, &error));
            assert_true(error <= SPLIT_ERROR);
        }
        free(choice);
    }
    batch = BATCH;
    smp_graph_destroy(graph);
}

/* What cannot be is refused, with the reason. */
static void test_refused(void **state)
{
    (void)state;
    smp_graph *graph = read_example("gpt-tiny"), *part;
    smp_split_choice *choice = all_whole(graph);
    choose(graph, choice, "lm_head", "columns", 0, 1);
    assert_int_equal(smp_graph_split(graph, 2, 0, choice, &part), SMP_ERR_INPUT);
    assert_non_null(
        strstr(smp_last_error(), "another part of the weight 'wte.weight' than op 'wte'"));
    choose(graph, choice, "wte", "rows", 0, 1);
    assert_int_equal(smp_graph_split(graph, 3, 0, choice, &part), SMP_ERR_INPUT);
    assert_non_null(strstr(smp_last_error(), "op 'wte' (embedding): it cannot be split so over 3"));
    free(choice);
    smp_graph_destroy(graph);
}

/* Not a sum of parts, nor what another op says of a weight. */
static bool suits(const smp_graph *graph, int32_t o, smp_split_choice choice)
{
    const smp_op *op = &graph->op[o];
    if (smp_split_in(graph, o, choice, 0).way == SMP_PARTS)
        return false;
    for (int32_t p = 0; p < op->n_param; p++) {
        const smp_param *param = &graph->param[op->param[p]];
        if (param->use_end - param->use_begin > 1)
            return false;
    }
    return true;
}

static void test_random_networks(void **state)
{
    (void)state;
    if (!SPLIT_NETWORKS)
        skip();
    static const char *const names[] = {"gpt-tiny", "llama-tiny", "t5-small", "resnet-small",
                                        "moe-tiny"};
    uint64_t random = 11;
    for (int i = 0; i < 15; i += is_long() ? 1 : 2) { /* every network either way */
        smp_graph *graph = read_example(names[i % 5]);
        smp_split_choice *choice = all_whole(graph);
        const int devices = i / 5 % 2 ? 4 : 2;
        int chosen = 0;
        double error;
        for (int32_t o = 0; o < graph->n_op; o++) {
            random = smp_random_mix(random + 1);
            smp_split_choice one = nth_choice(graph, o, (int)(random % 6));
            if (one.rule >= 0 && runs_here(&graph->op[o], one) &&
                smp_split_allows(graph, o, one, devices) && suits(graph, o, one)) {
                choice[o] = one;
                chosen++;
            }
        }
        assert_true(chosen > 5);
        assert_true(run_split(graph, choice, devices, &error));
        printf("%s, %d of %d ops on %d devices: %.2g\n", names[i % 5], chosen, graph->n_op, devices,
               error);
        assert_true(error <= SPLIT_NETWORK_ERROR);
        free(choice);
        smp_graph_destroy(graph);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_rule),
        cmocka_unit_test(test_megatron),
        cmocka_unit_test(test_long_sequences),
        cmocka_unit_test(test_memory_of_the_ring),
        cmocka_unit_test(test_large_products_in_pieces),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_random_networks),
    };
    if (!SPLIT_RUNS_HERE)
        return 77; /* skipped */
    return cmocka_run_group_tests(tests, SPLIT_SETUP, SPLIT_TEARDOWN);
}
