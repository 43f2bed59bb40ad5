/* Lagrangian relaxation (Held and Karp 1971). In every pipeline that fits, rank r is busy for
 * load_r <= T and reserves bytes_r <= M_r. So for all weights w_r >= 0 that sum up to 1 and prices
 * l_r >= 0
 *
 *     T >= sum_r w_r load_r + sum_r l_r (bytes_r - M_r),
 *
 * and loads and bytes are sums over ops, each of which adds at least what its cheapest stage asks
 * for. Ops on a path of the graph have rising stages, so with each op on one path a shortest path
 * through (op, stage) gives the least of a path's sum, which lets several of its ops change stages
 * only in order. Where one path has all ops, as in chains with skips, it goes through every stage,
 * for none is empty. An edge of the path that leads to another rank is a tensor that leaves the one
 * and arrives at the other: it is charged to both over the link between just these two, and to no
 * other edge, for a path leaves an op once. A value that the backward pass reads is kept at the
 * price of bytes, or made again at the weight of time, whichever is less.
 *
 * Every choice of w and l gives a bound, a concave function of them. Loads and bytes of the
 * cheapest assignment are its slope, with which bundle.h looks for the best. What is relaxed:
 * stages are convex and not empty, ops of different paths are ordered, what is made again needs its
 * inputs. */
#include "partition/prove/priced.h"

#include <math.h>

#include "partition/problem/message.h"
#include "partition/problem/unit_graph.h"
#include "partition/numeric/bundle.h"

enum {
    MAX_LINK_STAGES = 64, /* more: transfers are left out, each pair of stages would be looked at */
    MIN_STEPS = 10,       /* fewer lead nowhere */
    MAX_STEPS = 200
};
#define CLOSED 1e-4 /* of the target: less is not looked for */

typedef struct pricing {
    const smp_problem *problem;
    const smp__least_memory *least;
    const smp__units *units;
    int p, k; /* ranks, stages */
    int32_t n;
    int32_t *sent;       /* [n] what an op hands on to the next of its path */
    int32_t *line;       /* [n] ops, path after path, */
    bool *begins;        /* [n] the op there is the first of its path */
    int32_t *stage;      /* [n_op] the cheapest */
    int *came;           /* [n * k] stage of the op before on the path */
    double *row[2];      /* [k] least up to an op */
    double *slowdown;    /* [p] */
    double *bytes_price; /* [k] of a byte for ever, of one per live and per late micro-batch: */
    double *live_price, *late_price;
    bool links;              /* transfers count */
    bool whole;              /* one path has all ops: no stage is passed over */
    uint8_t *link;           /* [k * k] 1 << smp__link of what is cheapest, of replicas any */
    double *load, *filled;   /* [p] of the cheapest assignment: time, parts of the memory */
    double *weight, *memory; /* [p] of time; in microseconds per memory of the rank */
} pricing;

static double work_us(const pricing *x, int32_t op)
{
    const smp_op_cost *cost = &x->problem->costs->op[op];
    return cost->forward_us + cost->backward_us +
           (smp_problem_recomputes_all(x->problem) ? cost->forward_us : 0.0);
}

/* The price of a value on a stage: kept or recomputed. *recompute_us: time on device 0, 0 where it
 * is kept. */
static double value_price(const pricing *x, const smp__kept *kept, int s, double *recompute_us)
{
    int r = x->problem->stage_rank[s];
    double keep = x->live_price[s] * (double)kept->bytes;
    double late = kept->for_weight ? x->late_price[s] * (double)kept->bytes : 0.0;
    *recompute_us = 0.0;
    if (!x->least->recompute_us || keep <= 0.0)
        return keep + late;
    double us = kept->share * x->least->recompute_us[kept->maker];
    double again = x->weight[r] * x->slowdown[r] * us;
    if (again >= keep)
        return keep + late;
    *recompute_us = us;
    return again + late;
}

/* An op's values and state on a stage, and its work. */
static double op_price(const pricing *x, int32_t op, double us, int s)
{
    int r = x->problem->stage_rank[s];
    double sum = x->weight[r] * x->slowdown[r] * us, recompute_us;
    if (!(x->memory[r] > 0.0))
        return sum;
    sum += x->bytes_price[s] * (double)x->least->state_bytes[op];
    if (!x->least->kept_begin)
        return sum;
    sum += x->late_price[s] * (double)x->least->late_bytes[op];
    for (int64_t i = x->least->kept_begin[op]; i < x->least->kept_begin[op + 1]; i++)
        sum += value_price(x, &x->least->kept[i], s, &recompute_us);
    return sum;
}

/* What the output of an op is charged between two stages; of several classes the cheapest. */
static double charge_of(const pricing *x, const double charge_us[SMP__N_LINK], int from, int to)
{
    uint8_t link = x->link[from * x->k + to];
    if (link & 1 << SMP__LINK_SAME)
        return 0.0;
    double us = INFINITY;
    for (int l = SMP__LINK_INTRA; l < SMP__N_LINK; l++)
        if (link & 1 << l)
            us = fmin(us, charge_us[l]);
    return us;
}

static void fill_charges(const pricing *x, int32_t op, double charge_us[SMP__N_LINK])
{
    for (int l = 0; l < SMP__N_LINK; l++)
        charge_us[l] = smp__charge_us(x->problem, (smp__link)l, x->sent[op]);
}

/* Least way from the stages of the op before to each stage, any transfer counted. */
static void step_links(const pricing *x, int32_t before, const double *old, double *row, int *came)
{
    double charge_us[SMP__N_LINK];
    const int *rank = x->problem->stage_rank;
    fill_charges(x, before, charge_us);
    for (int s = 0; s < x->k; s++) {
        row[s] = INFINITY;
        for (int q = x->whole && s > 0 ? s - 1 : 0; q <= s; q++) {
            double us = old[q];
            if (q < s && us < row[s])
                us += (x->weight[rank[q]] + x->weight[rank[s]]) * charge_of(x, charge_us, q, s);
            if (us < row[s]) {
                row[s] = us;
                came[s] = q;
            }
        }
    }
}

static void step_free(const pricing *x, const double *old, double *row, int *came)
{
    int least = 0;
    for (int s = 0; s < x->k; s++) {
        least = old[s] < old[least] ? s : least;
        if (x->whole && s > 0)
            least = old[s] < old[s - 1] ? s : s - 1;
        row[s] = old[least];
        came[s] = least;
    }
}

/* The cheapest stages of line[begin..end), and what they add up to. */
static double solve_path(pricing *x, int32_t begin, int32_t end)
{
    double *row = x->row[0], *old = x->row[1];
    for (int32_t i = begin; i < end; i++) {
        int32_t op = x->line[i], unit = x->units->unit_of_op[op];
        double us = work_us(x, op);
        int *came = &x->came[(int64_t)i * x->k];
        double *swap = old;
        old = row;
        row = swap;
        if (i == begin)
            for (int s = 0; s < x->k; s++)
                row[s] = 0.0;
        else if (x->links)
            step_links(x, x->line[i - 1], old, row, came);
        else
            step_free(x, old, row, came);
        for (int s = 0; s < x->k; s++)
            if (s < x->units->lo[unit] || s > x->units->hi[unit] ||
                (x->whole && i == begin && s > 0))
                row[s] = INFINITY;
            else if (row[s] < INFINITY)
                row[s] += op_price(x, op, us, s);
    }
    int at = x->k - 1;
    for (int s = at; !x->whole && s-- > 0;)
        at = row[s] < row[at] ? s : at;
    double sum = row[at];
    for (int32_t i = end; i-- > begin; at = x->came[(int64_t)i * x->k + at])
        x->stage[x->line[i]] = at;
    return sum;
}

/* Time and bytes that one op adds to its rank. */
static void add_op(pricing *x, int32_t op)
{
    int s = x->stage[op], r = x->problem->stage_rank[s];
    double us = work_us(x, op), bytes = (double)x->least->state_bytes[op], recompute_us;
    const int64_t *begin = x->least->kept_begin;
    if (begin)
        bytes += (double)x->least->late[s] * (double)x->least->late_bytes[op];
    for (int64_t i = begin ? begin[op] : 0; begin && i < begin[op + 1]; i++) {
        const smp__kept *kept = &x->least->kept[i];
        value_price(x, kept, s, &recompute_us);
        us += recompute_us;
        int times = (kept->for_weight ? x->least->late[s] : 0) +
                    (recompute_us > 0.0 ? 0 : x->least->live[s]);
        bytes += (double)times * (double)kept->bytes;
    }
    x->load[r] += x->slowdown[r] * us;
    x->filled[r] += bytes / (double)x->least->limit[r];
}

static void add_transfer(pricing *x, int32_t from, int32_t to)
{
    double charge_us[SMP__N_LINK];
    const int *rank = x->problem->stage_rank;
    if (!x->links || x->stage[from] == x->stage[to])
        return;
    fill_charges(x, from, charge_us);
    double us = charge_of(x, charge_us, x->stage[from], x->stage[to]);
    x->load[rank[x->stage[from]]] += us;
    x->load[rank[x->stage[to]]] += us;
}

/* The bound by the prices of now; load and filled of what is cheapest by them. */
static double price_all(pricing *x)
{
    double sum = 0.0;
    for (int s = 0; s < x->k; s++) {
        int r = x->problem->stage_rank[s];
        x->bytes_price[s] = x->memory[r] / (double)x->least->limit[r];
        x->live_price[s] = x->bytes_price[s] * x->least->live[s];
        x->late_price[s] = x->bytes_price[s] * x->least->late[s];
    }
    for (int r = 0; r < x->p; r++) {
        sum -= x->memory[r];
        x->load[r] = x->filled[r] = 0.0;
    }
    for (int32_t i = 0, end; i < x->n; i = end) {
        for (end = i + 1; end < x->n && !x->begins[end];)
            end++;
        sum += solve_path(x, i, end);
        for (int32_t j = i; j < end; j++) {
            add_op(x, x->line[j]);
            if (j > i)
                add_transfer(x, x->line[j - 1], x->line[j]);
        }
    }
    return sum;
}

/* The best bound of so many choices of weights and prices; prices count in parts of the target, so
 * that they are alike weights. */
static smp_status climb(pricing *x, smp_arena *arena, double target_us, double steps,
                        double *bound_us)
{
    smp__bundle *bundle;
    double *slope = SMP_ARENA_NEW(arena, double, 2 * (size_t)x->p);
    bool goes_on = true;
    if (!slope)
        return SMP_ERR_NO_MEMORY;
    for (int r = 0; r < x->p; r++)
        slope[r] = x->weight[r];
    SMP_TRY(smp__bundle_create(arena, 2 * x->p, x->p, slope, &bundle));
    for (int i = 0; i < steps && goes_on; i++) {
        const double *point = smp__bundle_point(bundle);
        for (int r = 0; r < x->p; r++) {
            x->weight[r] = point[r];
            x->memory[r] = target_us * point[x->p + r];
        }
        double us = price_all(x);
        for (int r = 0; r < x->p; r++) {
            slope[r] = x->load[r];
            slope[x->p + r] = target_us * (x->filled[r] - 1.0);
        }
        goes_on = smp__bundle_tell(bundle, us, slope, CLOSED * target_us) &&
                  smp__bundle_best(bundle) < target_us;
    }
    *bound_us = smp__bundle_best(bundle);
    return SMP_OK;
}

/* Each op on one path: from ops with the longest way after them on, along the longest that is
 * free. */
static smp_status cover(pricing *x, smp_arena *arena)
{
    const smp_graph *graph = x->problem->graph;
    double *behind_us = SMP_ARENA_NEW(arena, double, (size_t)x->n);
    bool *taken = SMP_ARENA_NEW(arena, bool, (size_t)x->n);
    int32_t n = 0;
    if (!behind_us || !taken)
        return SMP_ERR_NO_MEMORY;
    for (int32_t op = x->n; op-- > 0;) {
        const smp_op *it = &graph->op[op];
        for (int64_t c = graph->consumer_begin[it->out];
             c < graph->consumer_begin[it->out + it->n_out]; c++)
            behind_us[op] = fmax(behind_us[op], behind_us[graph->consumer[c].op]);
        behind_us[op] += work_us(x, op);
    }
    for (int32_t first = 0; first < x->n; first++)
        for (int32_t op = first, next = first; next >= 0 && !taken[op]; op = next) {
            const smp_op *it = &graph->op[op];
            x->begins[n] = op == first;
            x->whole = n == 0 || (x->whole && op != first);
            x->line[n++] = op;
            taken[op] = true;
            next = -1;
            for (int64_t c = graph->consumer_begin[it->out];
                 c < graph->consumer_begin[it->out + it->n_out]; c++) {
                int32_t by = graph->consumer[c].op;
                if (taken[by] || (next >= 0 && behind_us[by] <= behind_us[next]))
                    continue;
                next = by;
                x->sent[op] = graph->op[by].in[graph->consumer[c].slot];
            }
            if (next < 0)
                break;
        }
    return SMP_OK;
}

static void find_links(pricing *x)
{
    const smp_problem *problem = x->problem;
    for (int s = 0; x->links && s < x->k * x->k; s++)
        for (int d = 0; d < smp_problem_replicas(problem); d++)
            x->link[s] |=
                (uint8_t)(1 << smp__link_between(problem, d, problem->stage_rank[s / x->k],
                                                 problem->stage_rank[s % x->k]));
}

static smp_status open_pricing(pricing *x, smp_arena *arena)
{
    size_t n = (size_t)x->n, p = (size_t)x->p, k = (size_t)x->k;
    x->links = !x->problem->cluster->overlap && x->p > 1 && x->k <= MAX_LINK_STAGES;
    x->sent = SMP_ARENA_NEW(arena, int32_t, n);
    x->line = SMP_ARENA_NEW(arena, int32_t, n);
    x->begins = SMP_ARENA_NEW(arena, bool, n);
    x->stage = SMP_ARENA_NEW(arena, int32_t, n);
    x->came = SMP_ARENA_NEW(arena, int, n *k);
    x->slowdown = SMP_ARENA_NEW(arena, double, p);
    x->weight = SMP_ARENA_NEW(arena, double, p);
    x->memory = SMP_ARENA_NEW(arena, double, p);
    x->load = SMP_ARENA_NEW(arena, double, p);
    x->filled = SMP_ARENA_NEW(arena, double, p);
    x->bytes_price = SMP_ARENA_NEW(arena, double, k);
    x->live_price = SMP_ARENA_NEW(arena, double, k);
    x->late_price = SMP_ARENA_NEW(arena, double, k);
    x->link = SMP_ARENA_NEW(arena, uint8_t, x->links ? k * k : 1);
    for (int i = 0; i < 2; i++) {
        x->row[i] = SMP_ARENA_NEW(arena, double, k);
        if (!x->row[i])
            return SMP_ERR_NO_MEMORY;
    }
    if (!x->sent || !x->line || !x->begins || !x->stage || !x->came || !x->slowdown || !x->weight ||
        !x->memory || !x->load || !x->filled || !x->bytes_price || !x->live_price ||
        !x->late_price || !x->link)
        return SMP_ERR_NO_MEMORY;
    double speed = 0.0;
    for (int r = 0; r < x->p; r++) {
        x->slowdown[r] = smp_problem_rank_slowdown(x->problem, r);
        speed += 1.0 / x->slowdown[r];
    }
    for (int r = 0; r < x->p; r++)
        x->weight[r] = 1.0 / (x->slowdown[r] * speed);
    find_links(x);
    return cover(x, arena);
}

smp_status smp__bound_by_prices(const smp_problem *problem, const smp__least_memory *memory,
                                double target_us, double work, double *bound_us)
{
    smp__units *units = NULL;
    smp__obstacle obstacle;
    smp_problem loose = *problem;
    loose.tie_together = false;
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? smp__units_try(&loose, &units, &obstacle) : SMP_ERR_NO_MEMORY;
    pricing x = {.problem = problem,
                 .least = memory,
                 .units = units,
                 .p = problem->pipeline,
                 .k = problem->n_stage,
                 .n = problem->graph->n_op};
    *bound_us = 0.0;
    if (status == SMP_OK && obstacle.kind == SMP__OBSTACLE_NONE) {
        status = open_pricing(&x, arena);
        double each = (double)x.n * x.k * (x.links && !x.whole ? 0.5 * x.k : 1.0);
        if (memory->kept_begin)
            each += (double)memory->kept_begin[x.n] * x.k;
        if (status == SMP_OK && work >= MIN_STEPS * each)
            status = climb(&x, arena, target_us, fmin(MAX_STEPS, work / each), bound_us);
        *bound_us *= 1.0 - 1e-9;
    }
    smp__units_destroy(units);
    smp_arena_destroy(arena);
    return status;
}
