/* The partitioner "metis": multilevel recursive bisection by METIS (Karypis and Kumar, "A fast and
 * high quality multilevel scheme for partitioning irregular graphs", SIAM J. Sci. Comput. 1998)
 * with two balance constraints, compute and memory, and bytes as edge weights; then a pipeline is
 * made of it.
 *
 * METIS knows no direction, so its parts depend on each other in cycles. Each half is put first or
 * last by where its units stand in topological order; units are then pushed towards the later (or
 * pulled towards the earlier) part until all tensors flow forward, or only guide the choice among
 * ready units. Each of the three gives an order, whose optimal split has no empty stage.
 *
 * Only two parts are asked for at a time: with more, METIS prints to standard output where weights
 * leave a part empty. Large graphs are first cut into runs of units, which is fine for a seed. */
#include "partition/partitioner_registry.h"
#include "partition/tune.h"

#include <metis.h>
#include <string.h>

enum {
    CONSTRAINTS = 2,      /* compute, memory */
    MAX_RUNS = 1024,      /* per measure: at most twice as many vertices */
    WEIGHT_SUM = 1 << 24, /* of each constraint and of all edges: far below 32 bits */
    SIDES = 2
};

/* The undirected graph of vertices (units or runs of units), and a subset that is to be cut. */
typedef struct bisector {
    const smp_problem *problem;
    const smp__units *units;
    int32_t n;          /* vertices */
    int32_t *vertex_of; /* [units->n] */
    double *place;      /* [n] mean unit index */
    idx_t *weight;      /* [n * CONSTRAINTS] */
    int64_t *begin;     /* [n + 1] */
    int32_t *neighbour;
    idx_t *edge_weight;
    double *speed_before; /* [n_stage + 1] sum of 1 / slowdown */
    int32_t *part;        /* [n] result */
    int32_t *local;       /* [n] index in the subset, or -1 */
    int32_t *list;        /* [n] vertices, permuted so that subsets are runs */
    int32_t *swap;        /* [n] */
    idx_t *xadj, *adjncy, *vwgt, *adjwgt, *side;
} bisector;

/* Runs of consecutive units, each with at most 1 / MAX_RUNS of the compute and of the units. */
static void number_vertices(bisector *b)
{
    const smp__units *units = b->units;
    double total = 0.0, run_us = 0.0;
    int32_t run = 0, vertex = -1;
    for (int32_t u = 0; u < units->n; u++)
        total += units->compute_us[u];
    for (int32_t u = 0; u < units->n; u++) {
        bool full = (int64_t)(run + 1) * MAX_RUNS > units->n ||
                    (run_us + units->compute_us[u]) * MAX_RUNS > total;
        if (vertex < 0 || full || units->n <= 2 * MAX_RUNS) {
            vertex++;
            run = 0;
            run_us = 0.0;
        }
        b->vertex_of[u] = vertex;
        run++;
        run_us += units->compute_us[u];
    }
    b->n = vertex + 1;
}

static idx_t scaled(double value, double sum)
{
    return sum > 0.0 ? (idx_t)(value / sum * WEIGHT_SUM) : 0;
}

static smp_status weigh_vertices(bisector *b, smp_arena *scratch)
{
    const smp_problem *problem = b->problem;
    const smp__units *units = b->units;
    double *compute = SMP_ARENA_NEW(scratch, double, (size_t)b->n);
    double *memory = SMP_ARENA_NEW(scratch, double, (size_t)b->n);
    int32_t *count = SMP_ARENA_NEW(scratch, int32_t, (size_t)b->n);
    b->weight = SMP_ARENA_NEW(scratch, idx_t, (size_t)b->n * CONSTRAINTS);
    b->place = SMP_ARENA_NEW(scratch, double, (size_t)b->n);
    if (!compute || !memory || !count || !b->weight || !b->place)
        return SMP_ERR_NO_MEMORY;
    double live = 0.0, compute_sum = 0.0, memory_sum = 0.0;
    for (int s = 0; s < problem->n_stage; s++)
        live += problem->live[s] / problem->n_stage;
    for (int32_t u = 0; u < units->n; u++) {
        int32_t v = b->vertex_of[u];
        double bytes = problem->state_factor * (double)units->weight_bytes[u] +
                       live * (double)units->stash_bytes[u];
        compute[v] += units->compute_us[u];
        memory[v] += bytes;
        compute_sum += units->compute_us[u];
        memory_sum += bytes;
        b->place[v] += u;
        count[v]++;
    }
    for (int32_t v = 0; v < b->n; v++) {
        b->weight[v * CONSTRAINTS] = scaled(compute[v], compute_sum);
        b->weight[v * CONSTRAINTS + 1] = scaled(memory[v], memory_sum);
        b->place[v] /= count[v];
    }
    return SMP_OK;
}

/* Adds bytes to the edge from the vertex whose list is being made; at[] knows where it stands. */
static void add_edge(const bisector *b, int32_t from, int32_t to, double bytes, int64_t *at,
                     double *edge_bytes, int64_t *n)
{
    if (to == from)
        return;
    if (at[to] < b->begin[from]) {
        at[to] = *n;
        if (b->neighbour)
            b->neighbour[*n] = to;
        (*n)++;
    }
    if (edge_bytes)
        edge_bytes[at[to]] += bytes;
}

/* Neighbours of each vertex, each once, by the tensors between their units. Called twice: without
 * arrays to count, then to fill. */
static int64_t list_edges(bisector *b, const int64_t *unit_begin, int64_t *at, double *edge_bytes)
{
    const smp__units *units = b->units;
    int64_t n = 0;
    for (int32_t v = 0; v < b->n; v++)
        at[v] = -1;
    for (int32_t v = 0; v < b->n; v++) {
        b->begin[v] = n;
        for (int64_t u = unit_begin[v]; u < unit_begin[v + 1]; u++) {
            for (int64_t o = units->out_begin[u]; o < units->out_begin[u + 1]; o++) {
                int32_t net = units->out_net[o];
                for (int64_t c = units->net_begin[net]; c < units->net_begin[net + 1]; c++)
                    add_edge(b, v, b->vertex_of[units->net_consumer[c]],
                             (double)units->net_bytes[net], at, edge_bytes, &n);
            }
            for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
                int32_t net = units->in_net[e];
                add_edge(b, v, b->vertex_of[units->net_unit[net]], (double)units->net_bytes[net],
                         at, edge_bytes, &n);
            }
        }
    }
    b->begin[b->n] = n;
    return n;
}

static smp_status connect_vertices(bisector *b, smp_arena *scratch)
{
    int64_t *unit_begin = SMP_ARENA_NEW(scratch, int64_t, (size_t)b->n + 1);
    int64_t *at = SMP_ARENA_NEW(scratch, int64_t, (size_t)b->n);
    b->begin = SMP_ARENA_NEW(scratch, int64_t, (size_t)b->n + 1);
    if (!unit_begin || !at || !b->begin)
        return SMP_ERR_NO_MEMORY;
    for (int32_t u = 0; u < b->units->n; u++) /* vertices are runs: consecutive units */
        unit_begin[b->vertex_of[u] + 1] = u + 1;
    int64_t n = list_edges(b, unit_begin, at, NULL);
    if (n > INT32_MAX)
        return smp_fail(SMP_ERR_FAILED, "METIS: %lld edges are too many", (long long)n);
    double *edge_bytes = SMP_ARENA_NEW(scratch, double, (size_t)n);
    b->neighbour = SMP_ARENA_NEW(scratch, int32_t, (size_t)n);
    b->edge_weight = SMP_ARENA_NEW(scratch, idx_t, (size_t)n);
    if (!edge_bytes || !b->neighbour || !b->edge_weight)
        return SMP_ERR_NO_MEMORY;
    list_edges(b, unit_begin, at, edge_bytes);
    double sum = 0.0;
    for (int64_t e = 0; e < n; e++)
        sum += edge_bytes[e];
    for (int64_t e = 0; e < n; e++)
        b->edge_weight[e] = scaled(edge_bytes[e], sum) + 1;
    return SMP_OK;
}

static smp_status make_bisector(bisector *b, smp_arena *scratch)
{
    b->vertex_of = SMP_ARENA_NEW(scratch, int32_t, (size_t)b->units->n);
    if (!b->vertex_of)
        return SMP_ERR_NO_MEMORY;
    number_vertices(b);
    SMP_TRY(weigh_vertices(b, scratch));
    SMP_TRY(connect_vertices(b, scratch));
    size_t n = (size_t)b->n, n_edge = (size_t)b->begin[b->n];
    b->speed_before = SMP_ARENA_NEW(scratch, double, (size_t)b->problem->n_stage + 1);
    b->part = SMP_ARENA_NEW(scratch, int32_t, n);
    b->local = SMP_ARENA_NEW(scratch, int32_t, n);
    b->list = SMP_ARENA_NEW(scratch, int32_t, n);
    b->swap = SMP_ARENA_NEW(scratch, int32_t, n);
    b->xadj = SMP_ARENA_NEW(scratch, idx_t, n + 1);
    b->vwgt = SMP_ARENA_NEW(scratch, idx_t, n * CONSTRAINTS);
    b->side = SMP_ARENA_NEW(scratch, idx_t, n);
    b->adjncy = SMP_ARENA_NEW(scratch, idx_t, n_edge + 1);
    b->adjwgt = SMP_ARENA_NEW(scratch, idx_t, n_edge + 1);
    if (!b->speed_before || !b->part || !b->local || !b->list || !b->swap || !b->xadj || !b->vwgt ||
        !b->side || !b->adjncy || !b->adjwgt)
        return SMP_ERR_NO_MEMORY;
    for (int s = 0; s < b->problem->n_stage; s++)
        b->speed_before[s + 1] =
            b->speed_before[s] +
            1.0 / smp_device_slowdown(b->problem->cluster,
                                      b->problem->device[b->problem->stage_rank[s]]);
    for (int32_t v = 0; v < b->n; v++) {
        b->list[v] = v;
        b->local[v] = -1;
    }
    return SMP_OK;
}

/* Cuts the subgraph on list[0..n-1] into sides 0 and 1, side 0 with `share` of the weight. */
static smp_status bisect(bisector *b, const int32_t *list, int32_t n, double share)
{
    idx_t n_vertex = n, n_constraint = CONSTRAINTS, n_part = SIDES, cut = 0;
    real_t target[SIDES * CONSTRAINTS] = {(real_t)share, (real_t)share, (real_t)(1.0 - share),
                                          (real_t)(1.0 - share)};
    idx_t options[METIS_NOPTIONS];
    METIS_SetDefaultOptions(options);
    options[METIS_OPTION_SEED] = (idx_t)(b->problem->seed & 0x7fffffff);
    options[METIS_OPTION_NUMBERING] = 0;
    idx_t n_edge = 0;
    for (int32_t i = 0; i < n; i++)
        b->local[list[i]] = i;
    for (int32_t i = 0; i < n; i++) {
        int32_t v = list[i];
        for (int c = 0; c < CONSTRAINTS; c++)
            b->vwgt[i * CONSTRAINTS + c] = b->weight[v * CONSTRAINTS + c];
        b->xadj[i] = n_edge;
        for (int64_t e = b->begin[v]; e < b->begin[v + 1]; e++) {
            if (b->local[b->neighbour[e]] < 0)
                continue;
            b->adjncy[n_edge] = b->local[b->neighbour[e]];
            b->adjwgt[n_edge++] = b->edge_weight[e];
        }
    }
    b->xadj[n] = n_edge;
    for (int32_t i = 0; i < n; i++)
        b->local[list[i]] = -1;
    int code = METIS_PartGraphRecursive(&n_vertex, &n_constraint, b->xadj, b->adjncy, b->vwgt, NULL,
                                        b->adjwgt, &n_part, target, NULL, options, &cut, b->side);
    if (code == METIS_ERROR_MEMORY)
        return smp_fail(SMP_ERR_NO_MEMORY, "METIS ran out of memory");
    if (code != METIS_OK)
        return smp_fail(SMP_ERR_FAILED, "METIS failed with code %d", code);
    return SMP_OK;
}

/* Which side comes first: the one whose vertices stand earlier on the mean. -1: a side is empty. */
static int first_side(const bisector *b, const int32_t *list, int32_t n)
{
    double sum[2] = {0.0, 0.0};
    int32_t count[2] = {0, 0};
    for (int32_t i = 0; i < n; i++) {
        sum[b->side[i]] += b->place[list[i]];
        count[b->side[i]]++;
    }
    if (count[0] == 0 || count[1] == 0)
        return -1;
    return sum[0] / count[0] <= sum[1] / count[1] ? 0 : 1;
}

/* Shares stages begin..end-1 out over list[0..n-1], which it permutes. Depth log2(n_stage). */
static smp_status cut_into(bisector *b, int32_t *list, int32_t n, int begin, int end)
{
    if (end - begin == 1 || n < 2) {
        for (int32_t i = 0; i < n; i++)
            b->part[list[i]] = begin;
        return SMP_OK;
    }
    int n_side = (end - begin) / 2; /* stages of METIS's side 0 */
    double share = (b->speed_before[begin + n_side] - b->speed_before[begin]) /
                   (b->speed_before[end] - b->speed_before[begin]);
    SMP_TRY(bisect(b, list, n, share));
    int first = first_side(b, list, n);
    int middle = first == 1 ? end - n_side : begin + n_side;
    int32_t n_first = 0, n_second = 0;
    for (int32_t i = 0; i < n; i++) {
        bool in_first = first < 0 ? i < n / 2 : b->side[i] == first;
        if (in_first)
            list[n_first++] = list[i];
        else
            b->swap[n_second++] = list[i];
    }
    memcpy(list + n_first, b->swap, (size_t)n_second * sizeof *list);
    SMP_TRY(cut_into(b, list, n_first, begin, middle));
    return cut_into(b, list + n_first, n_second, middle, end);
}

/* Parts of units in pipeline order, not yet a legal pipeline. */
static smp_status seed_parts(const smp_problem *problem, const smp__units *units, int32_t *part)
{
    smp_arena *scratch = smp_arena_create();
    bisector b = {.problem = problem, .units = units};
    smp_status status = scratch ? make_bisector(&b, scratch) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = cut_into(&b, b.list, b.n, 0, problem->n_stage);
    for (int32_t u = 0; u < units->n && status == SMP_OK; u++)
        part[u] = b.part[b.vertex_of[u]];
    smp_arena_destroy(scratch);
    return status;
}

/* Every unit moves to the latest part that it reads from. */
static void push(const smp__units *units, int32_t *part)
{
    for (int32_t u = 0; u < units->n; u++) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = part[units->net_unit[units->in_net[e]]];
            part[u] = from > part[u] ? from : part[u];
        }
    }
}

/* Every unit moves to the earliest part that reads from it. */
static void pull(const smp__units *units, int32_t *part)
{
    for (int32_t u = units->n - 1; u >= 0; u--) {
        for (int64_t e = units->in_begin[u]; e < units->in_begin[u + 1]; e++) {
            int32_t from = units->net_unit[units->in_net[e]];
            part[from] = part[u] < part[from] ? part[u] : part[from];
        }
    }
}

static smp_status try_parts(smp__tuner *tuner)
{
    const smp__units *units = tuner->units;
    smp_status status = SMP_ERR_NO_MEMORY;
    smp_arena *scratch = smp_arena_create();
    if (!scratch)
        return status;
    int32_t *part = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    int32_t *moved = SMP_ARENA_NEW(scratch, int32_t, (size_t)units->n);
    double *key = SMP_ARENA_NEW(scratch, double, (size_t)units->n);
    if (!part || !moved || !key)
        goto done;
    status = seed_parts(tuner->problem, units, part);
    for (int32_t u = 0; u < units->n; u++)
        key[u] = part[u];
    if (status == SMP_OK)
        status = smp__order_by_key(units, key, tuner->order);
    if (status == SMP_OK)
        status = smp__tuner_try(tuner, tuner->order);
    for (int pass = 0; pass < 2 && status == SMP_OK; pass++) {
        memcpy(moved, part, (size_t)units->n * sizeof *moved);
        if (pass == 0)
            push(units, moved);
        else
            pull(units, moved);
        status = smp__order_make(units, SMP__ORDER_FILE, 0, tuner->order);
        if (status == SMP_OK)
            status = smp__order_by_stage(units, tuner->problem->n_stage, moved, tuner->order);
        if (status == SMP_OK)
            status = smp__tuner_try(tuner, tuner->order);
    }
done:
    smp_arena_destroy(scratch);
    return status;
}

static smp_status solve(const smp_problem *problem, const smp_partition *start, smp_partition **out)
{
    (void)start;
    smp__tuner tuner;
    SMP_TRY(smp__tuner_init(&tuner, problem));
    smp_status status = try_parts(&tuner);
    if (status == SMP_OK)
        status = smp__tuner_improve(&tuner);
    if (status == SMP_OK)
        status = smp__tuner_finish(&tuner, "metis", out);
    smp__tuner_free(&tuner);
    return status;
}

const smp_partitioner smp__partitioner_metis = {
    .name = "metis",
    .summary = "METIS bisection by compute, memory and bytes, made a pipeline; then local search",
    .solve = solve,
};
