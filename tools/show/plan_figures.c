/* Figures of a plan; see the header. */
#include "tools/show/plan_figures.h"

#include <stdio.h>
#include <string.h>

#include "graph/model/op.h"
#include "profile/costs.h"

static int64_t count_parameters(const smp_graph *graph)
{
    int64_t n = 0;
    for (int32_t i = 0; i < graph->n_param; i++)
        n += graph->param[i].running ? 0 : graph->param[i].elements;
    return n;
}

/* Elements of the longest model input that numbers rows of a table. */
static int64_t count_tokens(const smp_graph *graph)
{
    int64_t most = 0;
    for (int32_t t = 0; t < graph->n_input; t++)
        for (int64_t c = graph->consumer_begin[t]; c < graph->consumer_begin[t + 1]; c++)
            if (strcmp(graph->op[graph->consumer[c].op].kind->name, "embedding") == 0 &&
                graph->tensor[t].elements > most)
                most = graph->tensor[t].elements;
    return most;
}

/* Mean of the devices' rates of matrix products. */
static double rate_of(const smp_plan *plan)
{
    const smp_cluster *cluster = plan->cluster;
    double sum = 0.0;
    if (!cluster)
        return 0.0;
    if (cluster->of)
        cluster = cluster->of;
    const int n = smp_cluster_devices(cluster);
    for (int d = 0; d < n; d++)
        sum += smp_device_matrix_flops(&cluster->device[d], plan->target.precision);
    return sum / n;
}

void smp_plan_figures_get(const smp_plan *plan, const smp_graph *graph, smp_plan_figures *out)
{
    const smp_graph *whole = graph->whole ? graph->whole : graph;
    const double samples_per_s = plan->predicted.samples_per_s, rate = rate_of(plan);
    *out = (smp_plan_figures){.parameters = count_parameters(whole),
                              .global_batch = plan->microbatch_size * smp_plan_microbatches(plan),
                              .tokens = count_tokens(whole)};
    out->tokens_per_s = (double)out->tokens * samples_per_s;
    out->device_flops_per_s =
        smp_model_flops(whole, plan->microbatch_size) * samples_per_s / smp_plan_processes(plan);
    out->mfu = rate > 0.0 ? out->device_flops_per_s / rate : 0.0;
}

bool smp_plan_training_time(const smp_plan_figures *figures, double tokens, int devices,
                            double *days, double *device_hours)
{
    const double hours =
        figures->tokens_per_s > 0.0 ? tokens / figures->tokens_per_s / 3600.0 : 0.0;
    *days = hours / 24.0;
    *device_hours = hours * devices;
    return figures->tokens_per_s > 0.0;
}

char *smp_format_tensor(char *buffer, size_t size, const smp_plan *plan)
{
    const int most = smp_plan_tensor(plan);
    int least = most;
    for (int r = 0; r < plan->pipeline; r++)
        least = smp_plan_rank_tensor(plan, r) < least ? smp_plan_rank_tensor(plan, r) : least;
    if (least < most)
        snprintf(buffer, size, "%d to %d", least, most);
    else
        snprintf(buffer, size, "%d", most);
    return buffer;
}

char *smp_format_count(char *buffer, size_t size, double count)
{
    static const char *const letter[] = {"", " k", " M", " B", " T"};
    size_t i = 0;
    for (; count >= 999.95 && i + 1 < sizeof letter / sizeof letter[0]; i++)
        count /= 1000.0;
    snprintf(buffer, size, "%.*f%s", i == 0 && count == (double)(int64_t)count ? 0 : 1, count,
             letter[i]);
    return buffer;
}

char *smp_format_flops(char *buffer, size_t size, double flops_per_s)
{
    const bool many = flops_per_s >= 1e12;
    snprintf(buffer, size, "%.1f %cFLOP/s", flops_per_s / (many ? 1e12 : 1e9), many ? 'T' : 'G');
    return buffer;
}
