/* Runs of ops instead of ops. File order is a topological order, so runs of it are convex and their
 * quotient is acyclic; borders between stages lose nothing worth having where a stage holds
 * thousands of runs and runs end at narrow places of the graph. */
#include "partition/problem/coarse.h"

#include <math.h>

enum {
    HUGE_OPS = 2000000,
    RUN_OPS = 16,      /* about, from half to one and a half times */
    STAGE_OPS = 20000, /* per stage, at least */
    STAGE_SHARES = 500
};

static double work_of(const smp_problem *problem, int32_t op)
{
    const smp_op_cost *cost = &problem->costs->op[op];
    return cost->forward_us + cost->backward_us +
           (smp_problem_recomputes_all(problem) ? cost->forward_us : 0.0);
}

/* Is all that is kept together a few ops side by side, labelled by their first? Runs hold them
 * whole. */
static bool is_fine(const smp_problem *problem)
{
    for (int32_t op = 0, n = 0; op < problem->graph->n_op; op++) {
        int32_t label = problem->together[op];
        n = op > 0 && label == problem->together[op - 1] ? n + 1 : 1;
        if (label >= 0 && (n > RUN_OPS / 4 || label != op - n + 1))
            return false;
    }
    return true;
}

bool smp__coarse_is_enough(const smp_problem *problem)
{
    const smp_graph *graph = problem->graph;
    if (graph->n_op < HUGE_OPS || graph->n_op < (int64_t)STAGE_OPS * problem->n_stage ||
        graph->n_group > 0 || (problem->together && !is_fine(problem)))
        return false;
    for (int32_t op = 0; op < graph->n_op; op++) {
        if (smp_problem_pin(problem, op) >= 0)
            return false;
    }
    return !problem->tie_together || !smp_problem_has_ties(problem);
}

/* Change of the bytes alive when the op has run: its outputs come, inputs read last go. */
static double growth(const smp_problem *problem, int32_t op)
{
    const smp_graph *graph = problem->graph;
    const int64_t *begin = graph->consumer_begin;
    const smp_op *it = &graph->op[op];
    double bytes = 0.0;
    for (int32_t t = it->out; t < it->out + it->n_out; t++)
        if (begin[t] < begin[t + 1])
            bytes += (double)smp_costs_tensor_bytes(problem->costs, graph, t);
    for (int32_t slot = 0; slot < it->n_in; slot++) {
        int32_t tensor = it->in[slot];
        const smp_consumer *last = &graph->consumer[begin[tensor + 1] - 1];
        if (last->op == op && last->slot == slot && graph->tensor[tensor].producer >= 0)
            bytes -= (double)smp_costs_tensor_bytes(problem->costs, graph, tensor);
    }
    return bytes;
}

/* Length of the run that begins at an op; *alive: bytes alive before it. */
static int32_t run_length(const smp_problem *problem, int32_t begin, double most_us, double *alive)
{
    int32_t n_op = problem->graph->n_op, best = 0;
    double now = *alive, least = INFINITY, work_us = 0.0;
    for (int32_t n = 1; n <= RUN_OPS + RUN_OPS / 2 && begin + n <= n_op; n++) {
        work_us += work_of(problem, begin + n - 1);
        if (best > 0 && work_us > most_us)
            break;
        now += growth(problem, begin + n - 1);
        if (best == 0 || n <= RUN_OPS / 2 || now < least) {
            best = n;
            least = now;
            *alive = now;
        }
    }
    return best;
}

void smp__coarse_label_runs(const smp_problem *problem, int32_t *label)
{
    int32_t n_op = problem->graph->n_op, run = 0;
    double total_us = 0.0, alive = 0.0;
    for (int32_t op = 0; op < n_op; op++)
        total_us += work_of(problem, op);
    double most_us = total_us / ((double)problem->n_stage * STAGE_SHARES);
    for (int32_t op = 0; op < n_op; run++) {
        int32_t end = op + run_length(problem, op, most_us, &alive);
        for (; op < end || (problem->together && op < n_op && problem->together[op] >= 0 &&
                            problem->together[op] == problem->together[op - 1]);
             op++)
            label[op] = run;
    }
}

double smp__coarse_bound(const smp_problem *problem, const char **name)
{
    double total_us = 0.0, largest_us = 0.0, speed = 0.0, fastest = INFINITY;
    for (int32_t op = 0; op < problem->graph->n_op; op++) {
        double work_us = work_of(problem, op);
        total_us += work_us;
        largest_us = fmax(largest_us, work_us);
    }
    for (int r = 0; r < problem->pipeline; r++) {
        double slowdown = smp_problem_rank_slowdown(problem, r);
        speed += 1.0 / slowdown;
        fastest = fmin(fastest, slowdown);
    }
    bool share = total_us / speed >= largest_us * fastest;
    *name = share ? "fair share" : "largest op";
    return share ? total_us / speed : largest_us * fastest;
}
