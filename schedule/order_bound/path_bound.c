/* A bound on the step by paths through the order of a rule.
 *
 * The order is fixed, so the step is the longest path through a fixed graph of actions: from one
 * action of a rank to its next, and along the stages, forward and back. The length of a path is
 * linear in what the stages weigh: so many forwards of stage 0, so many backwards of it, and so on.
 * Take any paths and any weights of them that add up to 1: no step is below the weighted mean of
 * the paths' lengths, which is linear, too, so an op costs a known time on each stage, and no
 * partition costs less than every op at its cheapest.
 *
 *     step >= sum over ops of min over stages of (mean count of its actions there * its times)
 *
 * Good weights are a game: one side spreads the work over the stages, the other answers with the
 * longest path. The first plays by multiplicative weights (Freund and Schapire 1999: a stage that
 * paths pass often loses work), and the mean of the answers comes as near to the best mean as one
 * likes. Ops are played with in classes of one ratio of forward to backward; what counts in the end
 * is op by op. Where ops are whole, border_bound.c goes on with these paths. */
#include "schedule/order_bound/path_bound.h"

#include <math.h>
#include <string.h>

#include "graph/base/clock.h"
#include "schedule/order_bound/border_bound.h"

#define MOST_ACTIONS 400000
#define LEAST_ROUNDS 40
#define MOST_ROUNDS 4000
#define WORK 3e7 /* actions looked at */

enum { N_CLASS = 32, N_ROW = SMP__PATH_ROWS, UPDATE = 3, N_RATE = 2 };

typedef struct action_node {
    int32_t stage, previous, input; /* nodes, or -1 */
    smp_action_kind kind;
    double message_us; /* that brings the input */
} action_node;

typedef struct path_bound {
    const smp__path_problem *in;
    const smp_schedule_shape *shape;
    int n_stage;
    int *rank_of;      /* [n_stage] */
    int *stage_of;     /* [pipeline * chunks] */
    action_node *node; /* in an order in which paths run */
    int32_t n;
    double *length;    /* [n] */
    int32_t *from;     /* [n] the node before on the longest path */
    double *cost;      /* [N_ROW][n_stage]: of a forward, input, weight action, of the update */
    double *count;     /* [N_ROW][n_stage]: of those on the path, then the mean, on device 0 */
    double message_us; /* on the path */
    smp__path mean[N_RATE];
    smp_arena *arena;
} path_bound;

/* Orders of the ranks, with what is needed to walk through them. */
typedef struct orders {
    smp_program *program; /* [pipeline] */
    int64_t *next;        /* [pipeline] */
    int32_t *made[3];     /* [n_stage * microbatches] node + 1 of F, B or I, W */
} orders;

static int row_of(smp_action_kind kind)
{
    return kind == SMP_ACTION_F          ? 0
           : kind == SMP_ACTION_W        ? 2
           : kind == SMP_ACTION_OPTIMIZE ? UPDATE
                                         : 1;
}

/* The stage after (1) or before (-1) that it waits for; n_stage, -1: none. */
static int neighbour(const path_bound *b, int stage, int step)
{
    if (stage == b->in->beside)
        return step < 0 ? -1 : b->n_stage;
    return stage + step == b->in->beside ? stage + 2 * step : stage + step;
}

/* Node of what the action needs besides the one before it; -1: nothing; -2: it is still to come. */
static int32_t input_of(const path_bound *b, const orders *o, const smp_action *a, int stage)
{
    int64_t m = b->shape->microbatches;
    int row = row_of(a->kind), needed = stage, made = row;
    if (row < 2)
        needed = neighbour(b, stage, row == 0 ? -1 : 1);
    if (needed < 0)
        return -1;
    if (row == 2 || needed == b->n_stage) { /* what this stage made itself */
        needed = stage;
        made = row - 1;
    }
    int32_t node = o->made[made][needed * m + a->microbatch];
    return node > 0 ? node - 1 : -2;
}

/* How long its input is on the way at least. */
static double message_to(const path_bound *b, const smp_action *a, int stage)
{
    int row = row_of(a->kind);
    if (!b->in->message_us || row == 2)
        return 0.0;
    int step = row == 0 ? -1 : 1;
    if (neighbour(b, stage, step) != stage + step || stage + step < 0 || stage + step == b->n_stage)
        return 0.0;
    return b->in->message_us[row * b->n_stage + stage];
}

/* All actions in an order in which each comes after what it needs. */
static void line_up(path_bound *b, orders *o)
{
    int p = b->shape->pipeline;
    int64_t m = b->shape->microbatches;
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p; r++) {
            int32_t previous = -1;
            for (; o->next[r] < o->program[r].n; o->next[r]++, moved = true) {
                const smp_action *a = &o->program[r].action[o->next[r]];
                int stage = b->stage_of[r * b->shape->chunks + a->chunk];
                int32_t input = input_of(b, o, a, stage);
                if (input == -2)
                    break;
                if (o->next[r] > 0) {
                    const smp_action *last = a - 1;
                    int at = b->stage_of[r * b->shape->chunks + last->chunk];
                    previous = o->made[row_of(last->kind)][at * m + last->microbatch] - 1;
                }
                o->made[row_of(a->kind)][stage * m + a->microbatch] = b->n + 1;
                b->node[b->n++] =
                    (action_node){stage, previous, input, a->kind, message_to(b, a, stage)};
            }
        }
    }
}

static smp_status place_stages(path_bound *b)
{
    int *placed = SMP_ARENA_NEW(b->arena, int, (size_t)b->shape->pipeline);
    if (!placed)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < b->n_stage; s++) {
        int rank = smp_schedule_stage_rank(b->in->kind, b->shape, s);
        b->rank_of[s] = rank;
        b->stage_of[rank * b->shape->chunks + placed[rank]++] = s;
    }
    return SMP_OK;
}

/* b->n: 0 if the order is too long. */
static smp_status open_paths(path_bound *b, orders *o)
{
    int p = b->shape->pipeline;
    size_t n_stage = (size_t)b->n_stage, m = (size_t)b->shape->microbatches, n = 0;
    o->program = SMP_ARENA_NEW(b->arena, smp_program, (size_t)p);
    o->next = SMP_ARENA_NEW(b->arena, int64_t, (size_t)p);
    b->stage_of = SMP_ARENA_NEW(b->arena, int, n_stage);
    b->rank_of = SMP_ARENA_NEW(b->arena, int, n_stage);
    b->cost = SMP_ARENA_NEW(b->arena, double, N_ROW *n_stage);
    b->count = SMP_ARENA_NEW(b->arena, double, N_ROW *n_stage);
    if (!o->program || !o->next || !b->stage_of || !b->rank_of || !b->cost || !b->count)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k < N_RATE; k++) {
        b->mean[k].count = SMP_ARENA_NEW(b->arena, double, N_ROW *n_stage);
        if (!b->mean[k].count)
            return SMP_ERR_NO_MEMORY;
    }
    if (3 * n_stage * m > MOST_ACTIONS)
        return SMP_OK;
    SMP_TRY(place_stages(b));
    for (int r = 0; r < p; r++) {
        SMP_TRY(b->in->kind->order(b->shape, r, &o->program[r]));
        n += (size_t)o->program[r].n;
    }
    n += (size_t)p;
    b->node = SMP_ARENA_NEW(b->arena, action_node, n);
    b->length = SMP_ARENA_NEW(b->arena, double, n);
    b->from = SMP_ARENA_NEW(b->arena, int32_t, n);
    for (int k = 0; k < 3; k++)
        o->made[k] = SMP_ARENA_NEW(b->arena, int32_t, n_stage * m);
    if (!b->node || !b->length || !b->from || !o->made[0] || !o->made[1] || !o->made[2])
        return SMP_ERR_NO_MEMORY;
    line_up(b, o);
    for (int r = 0; r < p && b->shape->training; r++) {
        const smp_action *last = &o->program[r].action[o->program[r].n - 1];
        int stage = b->stage_of[r * b->shape->chunks + last->chunk];
        int32_t previous = o->made[row_of(last->kind)][stage * (int64_t)m + last->microbatch] - 1;
        b->node[b->n++] = (action_node){stage, previous, -1, SMP_ACTION_OPTIMIZE, 0.0};
    }
    return SMP_OK;
}

/* All stages of a rank are updated at once. */
static double action_us(const path_bound *b, const action_node *node)
{
    const double *row = &b->cost[row_of(node->kind) * b->n_stage];
    double us = row[node->stage];
    if (node->kind == SMP_ACTION_B)
        us += b->cost[2 * b->n_stage + node->stage];
    for (int s = 0; node->kind == SMP_ACTION_OPTIMIZE && s < b->n_stage; s++)
        us += s != node->stage && b->rank_of[s] == b->rank_of[node->stage] ? row[s] : 0.0;
    return us;
}

static void count_action(path_bound *b, const action_node *node)
{
    double *row = &b->count[row_of(node->kind) * b->n_stage];
    row[node->stage] += 1.0;
    if (node->kind == SMP_ACTION_B)
        b->count[2 * b->n_stage + node->stage] += 1.0;
    for (int s = 0; node->kind == SMP_ACTION_OPTIMIZE && s < b->n_stage; s++)
        row[s] += s != node->stage && b->rank_of[s] == b->rank_of[node->stage] ? 1.0 : 0.0;
}

/* Counts of the actions on the longest path under b->cost. */
static void find_path(path_bound *b)
{
    int32_t last = 0;
    for (int32_t i = 0; i < b->n; i++) {
        const action_node *node = &b->node[i];
        double us = action_us(b, node);
        double before_us = node->previous >= 0 ? b->length[node->previous] : 0.0;
        double input_us = node->input >= 0 ? b->length[node->input] + node->message_us : -1.0;
        bool waits = input_us > before_us || node->previous < 0;
        b->from[i] = waits ? node->input : node->previous;
        b->length[i] = us + fmax(before_us, input_us);
        last = b->length[i] > b->length[last] ? i : last;
    }
    for (int k = 0; k < N_ROW * b->n_stage; k++)
        b->count[k] = 0.0;
    b->message_us = 0.0;
    for (int32_t i = last; i >= 0; i = b->from[i]) {
        const action_node *node = &b->node[i];
        if (b->from[i] >= 0 && b->from[i] == node->input)
            b->message_us += node->message_us;
        count_action(b, node);
    }
    for (int k = 0; k < 3 * b->n_stage; k++)
        b->count[k] *= b->in->slowdown[b->rank_of[k % b->n_stage]];
}

void smp__path_price(const smp__path_problem *problem, const double *count, double *op_us)
{
    int n_stage = problem->shape->pipeline * problem->shape->chunks;
    for (int32_t o = 0; o < problem->n_op; o++) {
        op_us[o] = INFINITY;
        for (int s = 0; s < n_stage; s++)
            if (s != problem->beside)
                op_us[o] = fmin(op_us[o], smp__path_us(count, n_stage, &problem->op[o], s));
    }
}

static int make_classes(const smp__path_problem *in, smp__op_times *class)
{
    smp__op_times all[N_CLASS] = {{0}};
    int n = 0;
    for (int32_t o = 0; o < in->n_op; o++) {
        const smp__op_times *op = &in->op[o];
        double us = op->forward_us + op->input_us + op->weight_us;
        int c = us > 0.0 ? (int)(op->forward_us / us * (N_CLASS - 1) + 0.5) : 0;
        all[c].forward_us += op->forward_us;
        all[c].input_us += op->input_us;
        all[c].weight_us += op->weight_us;
        all[c].update_us += op->update_us;
    }
    for (int c = 0; c < N_CLASS; c++)
        if (all[c].forward_us + all[c].input_us + all[c].weight_us + all[c].update_us > 0.0)
            class[n++] = all[c];
    return n;
}

static void set_cost(path_bound *b, int stage, const smp__op_times *load)
{
    double slowdown = b->in->slowdown[b->rank_of[stage]];
    b->cost[stage] = slowdown * load->forward_us;
    b->cost[b->n_stage + stage] = slowdown * load->input_us;
    b->cost[2 * b->n_stage + stage] = slowdown * load->weight_us;
    b->cost[UPDATE * b->n_stage + stage] = load->update_us;
}

/* What one action of each stage costs when share[class][stage] of the classes lie there. */
static void spread(path_bound *b, int n_class, const smp__op_times *class, const double *share)
{
    for (int s = 0; s < b->n_stage; s++) {
        smp__op_times sum = {0};
        for (int c = 0; c < n_class; c++) {
            sum.forward_us += share[c * b->n_stage + s] * class[c].forward_us;
            sum.input_us += share[c * b->n_stage + s] * class[c].input_us;
            sum.weight_us += share[c * b->n_stage + s] * class[c].weight_us;
            sum.update_us += share[c * b->n_stage + s] * class[c].update_us;
        }
        set_cost(b, s, &sum);
    }
}

/* A class moves away from stages where it is dearer than in the mean. */
static void move_away(const path_bound *b, const smp__op_times *class, double rate, double *share)
{
    double mean_us = 0.0, sum = 0.0;
    for (int s = 0; s < b->n_stage; s++)
        mean_us += share[s] * smp__path_us(b->count, b->n_stage, class, s);
    for (int s = 0; s < b->n_stage && mean_us > 0.0; s++) {
        share[s] *= exp(-rate * (smp__path_us(b->count, b->n_stage, class, s) / mean_us - 1.0));
        sum += share[s];
    }
    for (int s = 0; s < b->n_stage && sum > 0.0; s++)
        share[s] /= sum;
}

/* The mean of the later answers. */
static smp_status play(path_bound *b, double rate, smp__path *mean)
{
    smp__op_times class[N_CLASS];
    int n_class = make_classes(b->in, class);
    double work = b->in->beside < 0 ? WORK : WORK / b->n_stage; /* one of many */
    int rounds = (int)fmin(MOST_ROUNDS, fmax(LEAST_ROUNDS, work / b->n)), averaged = 0;
    double *share = SMP_ARENA_NEW(b->arena, double, (size_t)n_class *(size_t)b->n_stage);
    if (!share)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k < n_class * b->n_stage; k++)
        share[k] = k % b->n_stage == b->in->beside ? 0.0 : 1.0 / b->n_stage;
    for (int t = 0; t < rounds && !smp_work_past(b->in->deadline_s); t++) {
        spread(b, n_class, class, share);
        find_path(b);
        smp_work_count(SMP_WORK_PROOF, (double)b->n);
        for (int c = 0; c < n_class; c++)
            move_away(b, &class[c], rate / sqrt(t + 1.0), &share[c * b->n_stage]);
        if (t < rounds / 2)
            continue;
        averaged++; /* the first replaces what was there */
        for (int k = 0; k < N_ROW * b->n_stage; k++)
            mean->count[k] += (b->count[k] - mean->count[k]) / averaged;
        mean->message_us += (b->message_us - mean->message_us) / averaged;
    }
    return SMP_OK;
}

static smp_status play_all(path_bound *b, double *fixed_us, double *op_us)
{
    static const double rates[N_RATE] = {0.01,
                                         0.06}; /* of the first move: near even shares, and far */
    double best_us = -1.0;
    double *trial_us = SMP_ARENA_NEW(b->arena, double, (size_t)b->in->n_op);
    if (!trial_us)
        return SMP_ERR_NO_MEMORY;
    for (int k = 0; k < N_RATE; k++) {
        SMP_TRY(play(b, rates[k], &b->mean[k]));
        smp__path_price(b->in, b->mean[k].count, trial_us);
        double us = b->mean[k].message_us;
        for (int32_t o = 0; o < b->in->n_op; o++)
            us += trial_us[o];
        if (us <= best_us)
            continue;
        best_us = us;
        *fixed_us = b->mean[k].message_us;
        memcpy(op_us, trial_us, (size_t)b->in->n_op * sizeof *op_us);
    }
    return SMP_OK;
}

/* The longest path where the stages weigh that much on the fastest device. */
static void find_longest(void *context, const smp__op_times *load, smp__path *path)
{
    path_bound *b = context;
    for (int s = 0; s < b->n_stage; s++)
        set_cost(b, s, &load[s]);
    find_path(b);
    memcpy(path->count, b->count, N_ROW * (size_t)b->n_stage * sizeof *path->count);
    path->message_us = b->message_us;
}

/* Forwards of an order that stand before the backward of each micro-batch. False: not in turn. */
static bool count_ahead(const smp_program *program, int32_t *ahead)
{
    int32_t forwards = 0, backwards = 0;
    for (int64_t i = 0; i < program->n; i++) {
        const smp_action *a = &program->action[i];
        if (row_of(a->kind) == 0 && a->microbatch != forwards++)
            return false;
        if (row_of(a->kind) != 1)
            continue;
        if (a->microbatch != backwards)
            return false;
        ahead[backwards++] = forwards;
    }
    return true;
}

/* Whether each stage runs ahead of the next one: no backward stands before a forward that it stands
 * after there. */
static smp_status check_ahead(const path_bound *b, const orders *o, bool *runs_ahead)
{
    size_t m = (size_t)b->shape->microbatches;
    int32_t *before = SMP_ARENA_NEW(b->arena, int32_t, m),
            *ahead = SMP_ARENA_NEW(b->arena, int32_t, m);
    if (!before || !ahead)
        return SMP_ERR_NO_MEMORY;
    *runs_ahead = b->shape->chunks == 1;
    for (int s = 0; s < b->n_stage && *runs_ahead; s++) {
        *runs_ahead = count_ahead(&o->program[b->rank_of[s]], ahead);
        for (size_t mb = 0; s > 0 && mb < m; mb++)
            *runs_ahead &= before[mb] >= ahead[mb];
        memcpy(before, ahead, m * sizeof *before);
    }
    return SMP_OK;
}

static smp_status bound_whole(path_bound *b, const orders *o, smp__whole_ops *whole)
{
    const smp__border_problem problem = {
        .in = b->in, .n_mean = N_RATE, .mean = b->mean, .longest = find_longest, .context = b};
    bool runs_ahead;
    SMP_TRY(check_ahead(b, o, &runs_ahead));
    if (!runs_ahead && whole->chain->length < b->in->n_op)
        return SMP_OK;
    return smp__border_bound(&problem, b->arena, whole);
}

smp_status smp__path_bound(const smp__path_problem *problem, double *fixed_us, double *op_us,
                           smp__whole_ops *whole)
{
    orders o = {0};
    path_bound b = {.in = problem,
                    .shape = problem->shape,
                    .n_stage = problem->shape->pipeline * problem->shape->chunks,
                    .arena = smp_arena_create()};
    smp_status status = b.arena ? open_paths(&b, &o) : SMP_ERR_NO_MEMORY;
    *fixed_us = 0.0;
    for (int32_t i = 0; i < problem->n_op; i++)
        op_us[i] = 0.0;
    if (status == SMP_OK && b.n > 0)
        status = play_all(&b, fixed_us, op_us);
    if (status == SMP_OK && b.n > 0 && whole && whole->bound_us < whole->most_us &&
        !smp_work_past(problem->deadline_s))
        status = bound_whole(&b, &o, whole);
    for (int r = 0; o.program && r < problem->shape->pipeline; r++)
        smp_program_free(&o.program[r]);
    smp_arena_destroy(b.arena);
    return status;
}
