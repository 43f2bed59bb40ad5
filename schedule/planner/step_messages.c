/* What the bounds on the step may charge ranks for messages that occupy them (overlap: false), whatever the
 * partition. The charges of the bottleneck (message.h) are the prover's own; here is what makes them no
 * more than the flow's messages take of each rank.
 *
 * Forward a reader's stage receives a tensor once, and the stage that makes it sends it at least once.
 * Back, every stage with a reader that adds to the gradient sends one message for it, and the stage that makes
 * the tensor receives one: a relay only adds more of them. It may go between other ranks than the
 * tensor went, so every message counts by the fastest link for it; and with several stages on a rank it
 * may need no message between two of them, so there only the gradients of tensors with one reader count.
 *
 * In the order of a rule, with one stage per rank, of the messages of a micro-batch those count that stand
 * between the first backward and the last. A send stands behind its action. A receive may stand as early as
 * the action that it waits for: let w be the forwards of a rank before its first backward. The stage before,
 * s, runs no more than its w forwards before the first backward of the stage behind it, s + 1, whose gradient
 * its own first backward needs: so no receive of later forwards can stand before that. And before s has its
 * first backward, s + 1 runs no more backwards than stand in its order before the forward that s runs
 * first behind it. */
#include <math.h>

#include "partition/problem/flow.h"
#include "schedule/planner/step_bound.h"

/* Where a message takes least, of the links among the ranks of all replicas. */
typedef struct links {
    const smp_link_spec *link[2];
    int n;
} links;

static links find_links(const smp_cluster *cluster, const smp__mapping *mapping)
{
    links found = {0};
    for (int i = 0; i < mapping->ddp * mapping->pipeline; i++) {
        const int *device = &mapping->device[i - i % mapping->pipeline];
        for (int r = 0; r < i % mapping->pipeline && found.n < 2; r++) {
            const smp_link_spec *link = smp_cluster_link(cluster, device[r], mapping->device[i]);
            if (found.n == 0 || found.link[0] != link)
                found.link[found.n++] = link;
        }
    }
    return found;
}

static double least_us(const links *links, int64_t bytes)
{
    double us = INFINITY;
    for (int i = 0; i < links->n; i++)
        us = fmin(us, smp_link_us(links->link[i], bytes));
    return us;
}

/* Whether a gradient goes back from every stage that reads the output of an op. */
static bool returns(const smp_flow *flow, const smp_graph *graph, bool one_stage, int32_t op)
{
    int32_t out = graph->op[op].out;
    int64_t begin = graph->consumer_begin[out], end = graph->consumer_begin[out + 1];
    bool all = true;
    for (int64_t c = begin; all && c < end; c++)
        all = smp_flow_contributes(graph, flow->backward, graph->consumer[c].op,
                                   graph->consumer[c].slot) &&
              (one_stage || graph->consumer[c].op == graph->consumer[begin].op);
    return all;
}

smp_status smp__charge_surely(const smp__configs *configs, const smp__config *config,
                              smp_arena *arena, smp__sure_charges *out)
{
    const smp_graph *graph = configs->request->graph;
    links links = find_links(configs->request->cluster, config->mapping);
    smp_flow *flow = NULL;
    int32_t *stage = SMP_ARENA_NEW(arena, int32_t, (size_t)graph->n_op);
    int64_t batch = configs->costs->microbatch_size;
    *out = (smp__sure_charges){.way_ns = SMP_ARENA_NEW(arena, int64_t, (size_t)graph->n_op),
                               .all = true,
                               .some = links.n > 0 && !configs->request->cluster->overlap};
    if (!stage || !out->way_ns)
        return SMP_ERR_NO_MEMORY;
    if (!out->some)
        return SMP_OK;
    SMP_TRY(smp_flow_build(graph, stage, 1, batch, &flow));
    for (int32_t o = 0; o < graph->n_op; o++) {
        double us = least_us(&links, smp_tensor_bytes(graph, graph->op[o].out, batch));
        bool back = returns(flow, graph, config->chunks == 1, o);
        if (!back && graph->training && graph->tensor[graph->op[o].out].needs_grad)
            us *= 0.5; /* the problem counts it twice */
        out->way_ns[o] = (int64_t)fmin(1e3 * us, 1e15);
        out->all &= back;
    }
    smp_flow_destroy(flow);
    return SMP_OK;
}

/* One rank's order: what of each kind stands where. */
typedef struct rank_order {
    int warmup;   /* forwards before the first backward */
    int *waiting; /* [m + 1] backwards before a forward; of all m: at the end */
    bool rising;  /* each kind goes through the micro-batches in turn */
} rank_order;

static smp_status read_order(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                             int rank, smp_arena *arena, rank_order *out)
{
    smp_program program = {0};
    int forwards = 0, backwards = 0;
    *out = (rank_order){.rising = true,
                        .waiting = SMP_ARENA_NEW(arena, int, (size_t)shape->microbatches + 1)};
    if (!out->waiting)
        return SMP_ERR_NO_MEMORY;
    smp_status status = kind->order(shape, rank, &program);
    for (int64_t i = 0; status == SMP_OK && i < program.n; i++) {
        const smp_action *a = &program.action[i];
        if (a->kind == SMP_ACTION_F) {
            out->rising &= a->microbatch == forwards;
            out->waiting[forwards++] = backwards;
            out->warmup += backwards == 0;
        } else if (a->kind == SMP_ACTION_B || a->kind == SMP_ACTION_I) {
            out->rising &= a->microbatch == backwards++;
        }
    }
    out->waiting[forwards] = backwards;
    smp_program_free(&program);
    return status;
}

smp_status smp__sure_messages(const smp__config *config, const smp_schedule_shape *shape,
                              smp_arena *arena, double *times)
{
    int p = shape->pipeline, m = shape->microbatches, forwards = m, backwards = m - 1;
    rank_order before = {0}, order = {.rising = true};
    *times = 0.0;
    if (!shape->training || shape->chunks > 1)
        return SMP_OK;
    for (int s = 0; s < p && order.rising; s++, before = order) {
        int rank = smp_schedule_stage_rank(config->schedule, shape, s);
        SMP_TRY(read_order(config->schedule, shape, rank, arena, &order));
        forwards = m - order.warmup < forwards ? m - order.warmup : forwards;
        int early = s > 0 ? order.waiting[before.warmup] - 1 : 0;
        if (early > 0 && m - 1 - early < backwards)
            backwards = m - 1 - early;
    }
    if (order.rising)
        *times = 0.5 * (forwards + backwards);
    return SMP_OK;
}
