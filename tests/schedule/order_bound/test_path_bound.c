/* Bounds by paths against every partition of small graphs, whatever stages stand beside the
 * longest chain: none takes less under any rule. Of chains the bound for whole ops is all but
 * the least step. */
#include "tests/case_count.h"
#include "tests/partition/problem_fixture.h"

#include "schedule/order_bound/path_bound.h"
#include "tests/chain_model.h"

enum { MAX_OPS = 16, MAX_STAGES = 4, MAX_MICROBATCHES = 8 };

typedef struct setting {
    smp_graph *graph;
    const smp_schedule_kind *kind;
    smp_schedule_shape shape;
    int n_stage;
    smp__op_times op[MAX_OPS];
    double slowdown[MAX_STAGES], message_us[2 * MAX_STAGES];
    smp__chain chain;
    smp_arena *arena;
    int32_t stage[MAX_OPS];
    double least_us;                     /* of all */
    double least_but_us[MAX_STAGES + 1]; /* [1 + the one stage beside the chain]; [0]: none */
} setting;

static void draw_times(setting *s, fixture_random *random)
{
    int p = s->shape.pipeline;
    for (int32_t o = 0; o < s->graph->n_op; o++) {
        const smp_op_cost_override *cost = s->graph->op[o].cost;
        double back_us = s->shape.training ? cost->backward_us : 0.0;
        s->op[o] = (smp__op_times){cost->forward_us, 0.5 * back_us, 0.5 * back_us,
                                   s->shape.training ? fixture_below(random, 10) : 0};
    }
    for (int r = 0; r < p; r++)
        s->slowdown[r] = fixture_chance(random, 80) ? 1.0 : 1.5;
    for (int k = 0; k + 1 < s->n_stage; k++)
        if (smp_schedule_stage_rank(s->kind, &s->shape, k) !=
            smp_schedule_stage_rank(s->kind, &s->shape, k + 1))
            s->message_us[k + 1] = s->message_us[s->n_stage + k] = fixture_below(random, 4);
}

static void open_setting(setting *s, fixture_random *random, bool is_chain)
{
    static const char *const name[] = {"interleaved", "zero-bubble", "simple", "interleaved"};
    static const int chunks[] = {1, 1, 1, 2};
    int rule = fixture_below(random, is_chain ? 4 : 3);
    *s = (setting){.arena = smp_arena_create()};
    s->shape.training = fixture_chance(random, 85);
    s->shape.chunks = s->shape.training ? chunks[rule] : 1;
    s->shape.pipeline = s->shape.chunks == 2 ? 2 : 2 + fixture_below(random, MAX_STAGES - 1);
    s->n_stage = s->shape.pipeline * s->shape.chunks;
    s->shape.microbatches = 1 + fixture_below(random, MAX_MICROBATCHES);
    s->kind = smp_schedule_find(s->shape.training ? name[rule] : "forward");
    fixture_shape graph = {.n_op = is_chain ? 12 : s->n_stage + 1 + fixture_below(random, 4),
                           .skip_percent = is_chain ? 0 : fixture_below(random, 50),
                           .source_percent = is_chain ? 0 : fixture_below(random, 30),
                           .training = s->shape.training,
                           .zero_costs = fixture_chance(random, 30)};
    if (is_chain) {
        chain_op op[MAX_OPS] = {{0}};
        for (int i = 0; i < graph.n_op; i++)
            op[i] = (chain_op){.forward_us = 1 + fixture_below(random, 40),
                               .backward_us = fixture_below(random, 80)};
        s->graph = chain_model(op, graph.n_op);
    } else {
        char *model = fixture_model(random, &graph);
        if (smp_graph_parse("model.yaml", model, strlen(model), &s->graph) != SMP_OK)
            fail_msg("%s", smp_last_error());
        free(model);
    }
    draw_times(s, random);
    double weight[MAX_OPS];
    for (int32_t o = 0; o < s->graph->n_op; o++)
        weight[o] = s->op[o].forward_us + s->op[o].input_us + s->op[o].weight_us;
    assert_int_equal(smp__chain_find(s->graph, weight, s->arena, &s->chain), SMP_OK);
}

static void close_setting(setting *s)
{
    smp_graph_destroy(s->graph);
    smp_arena_destroy(s->arena);
}

/* When each action of the order ends: a plain fixed point. */
typedef struct run {
    const setting *s;
    bool beside[MAX_STAGES];
    smp__op_times load[MAX_STAGES];
    double end_us[3][MAX_STAGES][MAX_MICROBATCHES]; /* F, B or I, W; < 0: not yet */
} run;

/* When what the action needs is there; < 0: it is not yet. Stages go round those beside. */
static double ready_us(const run *r, int row, int stage, int mb)
{
    int n_stage = r->s->n_stage, step = row == 0 ? -1 : 1, from = stage + step;
    if (row == 2)
        return r->end_us[1][stage][mb];
    while (from >= 0 && from < n_stage && r->beside[from])
        from += step;
    if (r->beside[stage] || from < 0 || from >= n_stage)
        return row == 0 ? 0.0 : r->end_us[0][stage][mb];
    double us = r->end_us[row][from][mb];
    bool skips = from != stage + step;
    return us < 0.0 || skips ? us : us + r->s->message_us[row * n_stage + stage];
}

static double simulate(run *r)
{
    const setting *s = r->s;
    int p = s->shape.pipeline;
    smp_program program[MAX_STAGES] = {{0}};
    int64_t next[MAX_STAGES] = {0};
    double now_us[MAX_STAGES] = {0.0}, step_us = 0.0;
    for (int k = 0; k < p; k++)
        assert_int_equal(s->kind->order(&s->shape, k, &program[k]), SMP_OK);
    for (int row = 0; row < 3; row++)
        for (int k = 0; k < s->n_stage; k++)
            for (int mb = 0; mb < s->shape.microbatches; mb++)
                r->end_us[row][k][mb] = -1.0;
    for (bool moved = true; moved;) {
        moved = false;
        for (int rank = 0; rank < p; rank++) {
            if (next[rank] == program[rank].n)
                continue;
            const smp_action *a = &program[rank].action[next[rank]];
            int row = a->kind == SMP_ACTION_F ? 0 : a->kind == SMP_ACTION_W ? 2 : 1;
            int stage = a->chunk * p + rank;
            const smp__op_times *load = &r->load[stage];
            double at_us = ready_us(r, row, stage, a->microbatch);
            if (at_us < 0.0)
                continue;
            double us = row == 0 ? load->forward_us : row == 2 ? load->weight_us : load->input_us;
            us += a->kind == SMP_ACTION_B ? load->weight_us : 0.0;
            now_us[rank] = fmax(now_us[rank], at_us) + s->slowdown[rank] * us;
            r->end_us[row][stage][a->microbatch] = now_us[rank];
            next[rank]++;
            moved = true;
        }
    }
    for (int rank = 0; rank < p; rank++) {
        assert_int_equal(next[rank], program[rank].n);
        for (int stage = rank; stage < s->n_stage; stage += p)
            now_us[rank] += r->load[stage].update_us;
        step_us = fmax(step_us, now_us[rank]);
        smp_program_free(&program[rank]);
    }
    return step_us;
}

static void judge(setting *s)
{
    run r = {.s = s};
    bool used[MAX_STAGES] = {false};
    int n_beside = 0, beside = -1;
    for (int k = 0; k < s->n_stage; k++)
        r.beside[k] = true;
    for (int32_t o = 0; o < s->graph->n_op; o++) {
        int32_t stage = s->stage[o];
        smp__op_times *load = &r.load[stage];
        *load = (smp__op_times){
            load->forward_us + s->op[o].forward_us, load->input_us + s->op[o].input_us,
            load->weight_us + s->op[o].weight_us, load->update_us + s->op[o].update_us};
        used[stage] = true;
        r.beside[stage] &= !s->chain.on[o];
    }
    for (int k = 0; k < s->n_stage; k++) {
        if (!used[k])
            return;
        n_beside += r.beside[k];
        beside = r.beside[k] ? k : beside;
    }
    double us = simulate(&r);
    s->least_us = fmin(s->least_us, us);
    if (n_beside <= 1)
        s->least_but_us[1 + beside] = fmin(s->least_but_us[1 + beside], us);
}

static void place_all(setting *s, int32_t op)
{
    int32_t least = 0;
    if (op == s->graph->n_op) {
        judge(s);
        return;
    }
    for (int32_t k = 0; k < s->graph->op[op].n_in; k++) {
        int32_t from = s->stage[s->graph->tensor[s->graph->op[op].in[k]].producer];
        least = from > least ? from : least;
    }
    for (s->stage[op] = least; s->stage[op] < s->n_stage; s->stage[op]++)
        place_all(s, op + 1);
}

static smp__path_problem problem_of(const setting *s, int beside)
{
    return (smp__path_problem){.kind = s->kind,
                               .shape = &s->shape,
                               .slowdown = s->slowdown,
                               .n_op = s->graph->n_op,
                               .op = s->op,
                               .message_us = s->message_us,
                               .beside = beside};
}

/* Ops may be shared out. */
static void check_shared(const setting *s, int beside, int seed)
{
    smp__path_problem problem = problem_of(s, beside);
    double us, op_us[MAX_OPS], beside_us = 0.0, least_us = s->least_but_us[1 + beside];
    assert_int_equal(smp__path_bound(&problem, &us, op_us, NULL), SMP_OK);
    for (int32_t o = 0; o < s->graph->n_op; o++)
        us += op_us[o];
    if (beside >= 0)
        assert_int_equal(smp__chain_most_beside(&s->chain, op_us, s->arena, &beside_us), SMP_OK);
    if (us - beside_us > least_us * (1.0 + 1e-9))
        fail_msg("seed %d, stage %d beside: a bound of %.12g us, but a step takes %.12g us", seed,
                 beside, us - beside_us, least_us);
}

/* Ops are whole; a plan may be at the least step, a little above it, or much. Returns the
 * largest bound. most_marks: 0, or how many ops are looked at one by one. */
static double check_whole(const setting *s, int32_t most_marks, int seed)
{
    static const double above[] = {1.0, 1.02, 1.4};
    smp__path_problem problem = problem_of(s, -1);
    double us, op_us[MAX_OPS], most_us = 0.0;
    for (size_t i = 0; i < sizeof above / sizeof *above; i++) {
        int32_t stage[MAX_OPS];
        smp__whole_ops whole = {.chain = &s->chain,
                                .most_marks = most_marks,
                                .most_us = above[i] * s->least_us,
                                .stage = stage,
                                .stage_us = INFINITY};
        assert_int_equal(smp__path_bound(&problem, &us, op_us, &whole), SMP_OK);
        if (whole.bound_us > s->least_us * (1.0 + 1e-9))
            fail_msg("seed %d: a bound of %.12g us, but a step takes %.12g us", seed,
                     whole.bound_us, s->least_us);
        most_us = fmax(most_us, whole.bound_us);
    }
    return most_us;
}

static void open_least(setting *s)
{
    s->least_us = INFINITY;
    for (int k = 0; k <= s->n_stage; k++)
        s->least_but_us[k] = INFINITY;
    place_all(s, 0);
}

static void test_path_bound_of_graphs(void **state)
{
    (void)state;
    const int seeds = few_or_many(40, 120);
    int n = 0, n_beside = 0;
    for (int seed = 0; seed < seeds; seed++) {
        fixture_random random = {(uint64_t)seed << 32};
        setting s;
        open_setting(&s, &random, false);
        open_least(&s);
        for (int k = -1; k < s.n_stage; k++)
            if (isfinite(s.least_but_us[1 + k]))
                check_shared(&s, k, seed);
        if (isfinite(s.least_us))
            check_whole(&s, seed % 3, seed);
        n += isfinite(s.least_us);
        n_beside += s.least_us < s.least_but_us[0];
        close_setting(&s);
    }
    print_message("%d graphs; %d are fastest with stages beside the chain\n", n, n_beside);
    assert_true(n > seeds * 3 / 4 && n_beside > seeds / 6);
}

static void test_path_bound_of_chains(void **state)
{
    (void)state;
    const int n = few_or_many(20, 60);
    int close = 0;
    for (int seed = 0; seed < n; seed++) {
        fixture_random random = {(uint64_t)seed << 40};
        setting s;
        open_setting(&s, &random, true);
        open_least(&s);
        check_whole(&s, 1 + seed % 6, seed);
        close += check_whole(&s, 0, seed) > 0.995 * s.least_us;
        close_setting(&s);
    }
    print_message("%d of %d bounds within 0.5 %% of the least step\n", close, n);
    assert_true(close > n * 9 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_path_bound_of_graphs),
        cmocka_unit_test(test_path_bound_of_chains),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
