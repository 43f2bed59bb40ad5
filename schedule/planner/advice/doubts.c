/* What is odd about a plan, and the hint that goes with it. */
#include "schedule/planner/advice/doubts.h"

#include "schedule/planner/advice/hints.h"

#define MUCH_BUBBLE 0.3
#define LITTLE_MEMORY 0.5
#define NO_WORK 0.01 /* of what the slowest rank has */

/* Ends the line that says what is odd. */
static smp_status put_hint(const smp_search_request *request, const smp_planner_result *result,
                           smp_hint_kind kind, smp_text *text)
{
    smp_hint hint[SMP_HINTS_MAX];
    int n = 0;
    SMP_TRY(smp_planner_hints(request, result, 1u << kind, hint, &n));
    if (n > 0)
        smp_text_append(text, ": %s: %.1f %% less time per sample", hint[0].text,
                        100.0 * hint[0].gain);
    smp_text_append(text, "\n");
    return SMP_OK;
}

/* Ranks that take turns on cores wait whatever the plan is. */
static bool take_turns(const smp_cluster *cluster)
{
    const smp_cluster *all = cluster->of ? cluster->of : cluster;
    return all->cores_per_node > 0 && all->devices_per_node > all->cores_per_node;
}

static smp_status put_bubble(const smp_search_request *request, const smp_planner_result *result,
                             smp_text *text)
{
    const smp_plan *plan = result->plan;
    if (plan->pipeline > 1 && plan->microbatches < plan->pipeline)
        smp_text_append(
            text, "%d micro-batch%s keep%s %d pipeline ranks waiting: the bubble is %.0f %%",
            plan->microbatches, plan->microbatches > 1 ? "es" : "",
            plan->microbatches > 1 ? "" : "s", plan->pipeline, 100.0 * plan->predicted.bubble);
    else if (plan->predicted.bubble > MUCH_BUBBLE && !take_turns(request->cluster))
        smp_text_append(text, "ranks wait for %.0f %% of a step (bubble)",
                        100.0 * plan->predicted.bubble);
    else
        return SMP_OK;
    return put_hint(request, result, SMP_HINT_MICROBATCHES, text);
}

static smp_status put_recompute(const smp_search_request *request, const smp_planner_result *result,
                                smp_text *text)
{
    const double peak = (double)result->plan->predicted.peak_bytes[result->tight_rank];
    const double limit = peak + (double)result->room_bytes;
    if (request->options.recompute != SMP_RECOMPUTE_ALL || !request->graph->training ||
        peak >= LITTLE_MEMORY * limit)
        return SMP_OK;
    smp_text_append(text, "everything is recomputed, with %.0f %% of the memory in use",
                    100.0 * peak / limit);
    return put_hint(request, result, SMP_HINT_RECOMPUTE, text);
}

static void put_idle(const smp_planner_result *result, smp_text *text)
{
    const smp_partition *partition = result->search.best->partition;
    for (int r = 0; r < result->plan->pipeline; r++)
        if (partition->rank_us[r] < NO_WORK * partition->bottleneck_us)
            smp_text_append(text, "rank %d has next to nothing to compute\n", r);
}

smp_status smp_planner_doubts(const smp_search_request *request, const smp_planner_result *result,
                              smp_text *text)
{
    SMP_TRY(put_bubble(request, result, text));
    SMP_TRY(put_recompute(request, result, text));
    put_idle(result, text);
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}
