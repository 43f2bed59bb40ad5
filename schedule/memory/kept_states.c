/* The cost of states that are kept in memory; see the header. */
#include "schedule/memory/kept_states.h"

#include <math.h>

#include "profile/costs.h"

/* A state that counts, one that is complete, one that is written (exec/checkpoint/kept_folder.h).
 */
enum { PLACES = 3 };

/* Bytes of a state that a core hashes and writes in a second. Not measured: they are read once, and
 * written to lines that are read first; hashes take what a core reads in that time once more. */
static double write_rate(const smp_cluster *cluster)
{
    return cluster->keep_bytes_per_s > 0.0 ? cluster->keep_bytes_per_s : SMP_CORE_BYTES_PER_S / 4.0;
}

static int64_t state_bytes(const smp_graph *graph)
{
    const smp_graph *whole = smp_graph_whole(graph);
    int64_t elements = 0;
    for (int32_t i = 0; i < whole->n_param; i++)
        elements += whole->param[i].elements;
    return elements * (1 + smp_planned_states(graph->training)) * (int64_t)sizeof(float);
}

/* The largest part of a rank, and the device time of its optimizer. */
static int64_t largest_part(const smp_plan *plan, int64_t state, double *optimizer_us)
{
    int64_t all = 0, most = 0;
    for (int s = 0; s < plan->n_stage; s++)
        all += plan->stage[s].weight_bytes;
    for (int r = 0; r < plan->pipeline; r++) {
        int64_t own = 0;
        for (int s = 0; s < plan->n_stage; s++)
            if (plan->stage[s].rank == r)
                own += plan->stage[s].weight_bytes;
        most = own > most ? own : most;
    }
    *optimizer_us =
        plan->optimizer_bytes_per_s > 0.0 ? 1e6 * (double)most / plan->optimizer_bytes_per_s : 0.0;
    if (all == 0)
        return 0;
    const double share = (double)most / (double)all / plan->ddp / smp_plan_tensor(plan);
    return (int64_t)ceil((double)state * share);
}

/* What the ranks of a node have in its memory: on the CPU all they have, else what they offload. */
static int64_t bytes_of_ranks(const smp_plan *plan, int ranks)
{
    const bool cpu = plan->target.backend == SMP_BACKEND_CPU;
    int64_t most = 0;
    for (int r = 0; r < plan->pipeline; r++) {
        const int64_t offloaded = plan->predicted.host_bytes ? plan->predicted.host_bytes[r] : 0;
        const int64_t own = offloaded + (cpu ? plan->predicted.peak_bytes[r] : 0);
        most = own > most ? own : most;
    }
    return most * ranks;
}

static double copy_us(const smp_plan *plan, int64_t part)
{
    const double link = plan->cluster->host.bytes_per_s;
    if (plan->target.backend != SMP_BACKEND_CPU)
        return 1e6 * (double)part / (link > 0.0 ? link : SMP_CORE_BYTES_PER_S);
    return smp_plan_tensor(plan) > 1 ? 3e6 * (double)part / SMP_CORE_BYTES_PER_S : 0.0;
}

smp_status smp_kept_states_get(const smp_plan *plan, const smp_graph *graph, int64_t keep_every,
                               smp_kept_states *out)
{
    const smp_cluster *cluster = plan->cluster;
    double optimizer_us;
    if (!cluster || !graph->training)
        return smp_fail(SMP_ERR_INPUT, "--keep-every: %s",
                        cluster ? "the plan is for inference, nothing to keep"
                                : "the plan has no `cluster:`, so nothing is known of its host");
    const int processes = smp_plan_processes(plan);
    const int places = cluster->devices_per_node * (cluster->of ? cluster->group : 1);
    const int ranks = processes < places ? processes : places;
    const int cores = cluster->cores_per_node;
    const bool spare = plan->target.backend != SMP_BACKEND_CPU || cores > ranks;
    *out = (smp_kept_states){.state_bytes = state_bytes(graph),
                             .host_limit = cluster->host_memory_bytes};
    out->several_nodes = processes > places;
    if (out->several_nodes)
        return SMP_OK;
    out->kept_bytes = PLACES * out->state_bytes;
    out->part_bytes = largest_part(plan, out->state_bytes, &optimizer_us);
    out->write_us = 1e6 * (double)out->part_bytes / write_rate(cluster);
    out->copy_us = copy_us(plan, out->part_bytes);
    out->host_bytes = out->kept_bytes + bytes_of_ranks(plan, ranks);
    const double beside_us = fmax(plan->predicted.step_us - optimizer_us, 0.0);
    const double in_turn_us = cores > 0 && cores < ranks
                                  ? 1e6 * (double)out->state_bytes / write_rate(cluster) / cores *
                                        ((double)ranks / processes)
                                  : 0.0;
    const double late_us =
        spare ? fmax(out->write_us - beside_us, 0.0) : fmax(out->write_us, in_turn_us);
    out->step_us = (out->copy_us + late_us) / (double)keep_every;
    return SMP_OK;
}
