/* The table of a plan's stages. Linear in stages. */
#include "tools/show/stage_table.h"

#include <stdio.h>

#include "schedule/rules/offload.h"
#include "schedule/memory/kept_states.h"
#include "tools/show/plan_figures.h"
#include "tools/show/text_table.h"

/* First and last op of a stage in graph order, their names cut where they are long. */
static void put_ops(smp__table *t, const smp_plan_stage *stage)
{
    const char *first = stage->op[0], *last = stage->op[stage->n_op - 1];
    if (stage->n_op == 1)
        smp__table_put(t, "<%.24s", first);
    else
        smp__table_put(t, "<%.24s .. %.24s", first, last);
}

/* How many ops a mask names: some of n, all, none. */
static void put_count(smp__table *t, int32_t n, int32_t n_op)
{
    if (n > 0 && n < n_op)
        smp__table_put(t, "<%d of %d", (int)n, (int)n_op);
    else
        smp__table_put(t, "<%s", n > 0 ? "yes" : "-");
}

/* `recompute`, `offload`: the table has that column. */
static void put_stage(smp__table *t, const smp_plan *plan, const smp_partition *partition, int s,
                      bool recompute, bool offload)
{
    const smp_plan_stage *stage = &plan->stage[s];
    const smp_stage_load *load = &partition->load[s];
    double bottleneck = plan->predicted.bottleneck_us;
    smp__table_put(t, "%d", s);
    smp__table_put(t, "%d", stage->rank);
    smp__table_put(t, "%d", (int)stage->n_op);
    put_ops(t, stage);
    smp__table_put_us(t, load->forward_us);
    smp__table_put_us(t, load->backward_us);
    smp__table_put_us(t, load->transfer_us);
    smp__table_put(t, "%.1f %%", bottleneck > 0 ? 100 * load->load_us / bottleneck : 0.0);
    smp__table_put_bytes(t, load->in_bytes);
    smp__table_put_bytes(t, load->out_bytes);
    smp__table_put_bytes(t, load->weight_bytes);
    smp__table_put_bytes(t, load->stash_bytes);
    smp__table_put_bytes(t, plan->predicted.peak_bytes[stage->rank]);
    if (offload)
        smp__table_put_bytes(t, stage->offload_bytes);
    if (recompute)
        put_count(t, smp_plan_stage_recomputes(stage), stage->n_op);
}

static const char *plural(int64_t n, const char *more)
{
    return n == 1 ? "" : more;
}

const char *smp_show_offloaded_states(const smp_plan *plan)
{
    const smp_sharding sharding = plan->sharding;
    if (smp_weights_in_host(sharding, plan->target, plan->training))
        return "the optimizer's states, with weights in fp32 that are read in 16 bits alone";
    return sharding.offload_states ? "the optimizer's states" : "";
}

/* What lies in host memory, and how much that is. */
static void put_host(const smp_plan *plan, smp_text *text)
{
    int64_t most = 0;
    char bytes[32];
    if (!plan->predicted.host_bytes)
        return;
    for (int r = 0; r < plan->pipeline; r++)
        most = plan->predicted.host_bytes[r] > most ? plan->predicted.host_bytes[r] : most;
    smp_text_append(text, "in host memory: ");
    if (plan->travels)
        smp_text_append(text, "stashes between forward and backward, loading horizon %d",
                        plan->loading_horizon);
    smp_text_append(text, "%s%s; at most %s of a rank\n",
                    plan->travels && plan->sharding.offload_states ? ", " : "",
                    smp_show_offloaded_states(plan), smp_format_bytes(bytes, sizeof bytes, most));
}

/* "global batch 512 samples; 124.4 M parameters; ..." */
static void put_figures(const smp_plan *plan, const smp_graph *graph, smp_text *text)
{
    smp_plan_figures f;
    char parameters[32], tokens[32], flops[32];
    smp_plan_figures_get(plan, graph, &f);
    smp_text_append(text, "global batch %lld sample%s; %s parameters", (long long)f.global_batch,
                    plural(f.global_batch, "s"),
                    smp_format_count(parameters, sizeof parameters, (double)f.parameters));
    if (f.tokens > 0)
        smp_text_append(text, "; %s tokens/s",
                        smp_format_count(tokens, sizeof tokens, f.tokens_per_s));
    if (f.device_flops_per_s > 0.0)
        smp_text_append(text, "; %s per device",
                        smp_format_flops(flops, sizeof flops, f.device_flops_per_s));
    if (f.mfu > 0.0)
        smp_text_append(text, ", MFU %.1f %%", 100.0 * f.mfu);
    smp_text_append(text, "\n");
}

/* "costs: estimated from ..., +-9 %: a step of 2.70 to 3.24 s" */
static void put_costs(const smp_predicted *predicted, smp_text *text)
{
    char least[32], most[32];
    if (!predicted->costs)
        return;
    smp_text_append(text, "costs: %s", predicted->costs);
    if (predicted->error > 0.0)
        smp_text_append(
            text, ", +-%.0f %%: a step of %s to %s", 100.0 * predicted->error,
            smp_format_us(least, sizeof least, predicted->step_us / (1.0 + predicted->error)),
            smp_format_us(most, sizeof most, predicted->step_us * (1.0 + predicted->error)));
    smp_text_append(text, "\n");
}

/* Where some replicas have a block of gradients less than others. */
static void put_shares(const smp_plan *plan, smp_text *text)
{
    const int blocks = smp_plan_blocks(plan), more = blocks % plan->ddp;
    const int share = smp_gradient_share(blocks, plan->ddp);
    if (more > 0)
        smp_text_append(text, "gradient blocks: %d on %d replica%s, %d and one of padding on %d\n",
                        share, more, plural(more, "s"), share - 1, plan->ddp - more);
}

static void put_summary(const smp_plan *plan, const smp_graph *graph, int n_recompute,
                        smp_text *text)
{
    const smp_predicted *predicted = &plan->predicted;
    const int devices = smp_plan_processes(plan);
    char step[32], waits[32], bottleneck[32], bound[32], tensor[32], groups[64] = "";
    smp_format_tensor(tensor, sizeof tensor, plan);
    if (smp_plan_tensor(plan) > 1)
        snprintf(groups, sizeof groups, " x tensor %s", tensor);
    smp_text_append(text, "(times, received, sent and stash are per micro-batch%s)\n\n",
                    n_recompute > 0 ? "; stages that recompute run so many ops, or all, once more"
                                    : "");
    smp_text_append(text,
                    "%s: %d ops on %d device%s = %d pipeline rank%s x %d replica%s%s, %d chunk%s; "
                    "%s, %d micro-batch%s of %lld sample%s\n",
                    graph->name, (int)graph->n_op, devices, plural(devices, "s"), plan->pipeline,
                    plural(plan->pipeline, "s"), plan->ddp, plural(plan->ddp, "s"), groups,
                    plan->chunks, plural(plan->chunks, "s"), plan->schedule, plan->microbatches,
                    plural(plan->microbatches, "es"), (long long)plan->microbatch_size,
                    plural(plan->microbatch_size, "s"));
    put_shares(plan, text);
    put_costs(predicted, text);
    put_figures(plan, graph, text);
    if (groups[0])
        smp_text_append(
            text,
            "%s devices compute every op together (other bits than any other number): ops, "
            "times, bytes and memory are of one of them\n",
            tensor);
    if (plan->sharding.shard > 1)
        smp_text_append(text, "every %d replicas hold one copy of %s\n", plan->sharding.shard,
                        plan->sharding.what == SMP_SHARD_OPTIMIZER ? "the optimizer's states"
                        : plan->sharding.what == SMP_SHARD_GRADIENTS
                            ? "gradients and the optimizer's states"
                            : "weights, gradients and the optimizer's states");
    put_host(plan, text);
    if (plan->target.backend != SMP_BACKEND_CPU)
        smp_text_append(text, "on %s in %s\n", smp_backend_name(plan->target.backend),
                        smp_precision_name(plan->target.precision));
    if (predicted->communicator_bytes > 0)
        smp_text_append(
            text, "NCCL may take %s of each device besides its rank's peak (never measured)\n",
            smp_format_bytes(step, sizeof step, predicted->communicator_bytes));
    smp_text_append(text, "predicted: step %s",
                    smp_format_us(step, sizeof step, predicted->step_us + predicted->waits_us));
    if (predicted->waits_us > 0.0)
        smp_text_append(text, " (%s of it waits for times that scatter)",
                        smp_format_us(waits, sizeof waits, predicted->waits_us));
    smp_text_append(text, ", %.1f samples/s, bubble %.1f %%\n", predicted->samples_per_s,
                    100 * predicted->bubble);
    if (predicted->step_lower_bound_us > 0.0)
        smp_text_append(text, "step: proven lower bound %s, gap %.1f %%\n",
                        smp_format_us(bound, sizeof bound, predicted->step_lower_bound_us),
                        100 * predicted->step_gap);
    smp_text_append(text, "bottleneck: %s per micro-batch, proven lower bound %s, gap %.1f %%\n",
                    smp_format_us(bottleneck, sizeof bottleneck, predicted->bottleneck_us),
                    smp_format_us(bound, sizeof bound, predicted->lower_bound_us),
                    100 * predicted->gap);
}

smp_status smp_stage_table(const smp_plan *plan, const smp_partition *partition,
                           const smp_graph *graph, smp_text *text)
{
    enum { COLUMNS = 13 }; /* that are always there */
    const char *heads[COLUMNS + 2] = {"stage",     "rank",     "ops",       "<first .. last",
                                      "forward",   "backward", "transfer",  "load",
                                      "received",  "sent",     "weights",   "stash",
                                      "rank peak", "offload",  "<recompute"};
    smp__table t;
    const bool offload = plan->travels != NULL;
    int n_recompute = 0;
    for (int s = 0; s < plan->n_stage; s++)
        n_recompute += smp_plan_stage_recomputes(&plan->stage[s]) > 0;
    if (!offload)
        heads[COLUMNS] = heads[COLUMNS + 1];
    SMP_TRY(smp__table_open(&t, COLUMNS + offload + (n_recompute > 0), plan->n_stage, heads));
    for (int s = 0; s < plan->n_stage; s++)
        put_stage(&t, plan, partition, s, n_recompute > 0, offload);
    SMP_TRY(smp__table_print(&t, text));
    put_summary(plan, graph, n_recompute, text);
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

smp_status smp_put_training(const smp_plan *plan, const smp_graph *graph, double tokens,
                            double price, smp_text *text)
{
    smp_plan_figures f;
    double days, hours;
    char count[32], cost[32];
    const int devices = smp_plan_processes(plan);
    smp_plan_figures_get(plan, graph, &f);
    if (!smp_plan_training_time(&f, tokens, devices, &days, &hours))
        return smp_fail(SMP_ERR_INPUT, "--tokens: no embedding of model '%s' reads any",
                        graph->name);
    smp_text_append(text, "%s tokens: %.1f days on %d device%s, ",
                    smp_format_count(count, sizeof count, tokens), days, devices,
                    plural(devices, "s"));
    smp_text_append(text, "%s device hours", smp_format_count(count, sizeof count, hours));
    if (price > 0.0)
        smp_text_append(text, ", which cost %s",
                        smp_format_count(cost, sizeof cost, price * hours));
    smp_text_append(text, "\n");
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}

smp_status smp_put_keeping(const smp_plan *plan, const smp_graph *graph, int64_t keep_every,
                           smp_text *text)
{
    const double step_us = plan->predicted.step_us + plan->predicted.waits_us;
    smp_kept_states k;
    char added[32], part[32], state[32], host[32], limit[32], every[32] = "step";
    SMP_TRY(smp_kept_states_get(plan, graph, keep_every, &k));
    smp_format_bytes(state, sizeof state, k.state_bytes);
    if (k.several_nodes) {
        smp_text_append(text,
                        "keeping a state of %s in the memory of several hosts: its cost is not "
                        "predicted\n",
                        state);
        return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
    }
    smp_format_bytes(host, sizeof host, k.host_bytes);
    smp_format_bytes(limit, sizeof limit, k.host_limit);
    if (k.host_limit > 0 && k.host_bytes > k.host_limit)
        return smp_fail(SMP_ERR_NO_FIT,
                        "--keep-every: a host needs %s, with three states of %s, and has %s "
                        "(host_memory)",
                        host, state, limit);
    if (keep_every > 1)
        snprintf(every, sizeof every, "%lld steps", (long long)keep_every);
    smp_text_append(text,
                    "keeping the state of every %s: %s more a step in the mean (%.1f %%), ranks "
                    "write at most %s; 3 x %s in the host's memory, %s with the ranks%s%s\n",
                    every, smp_format_us(added, sizeof added, k.step_us),
                    step_us > 0.0 ? 100.0 * k.step_us / step_us : 0.0,
                    smp_format_bytes(part, sizeof part, k.part_bytes), state, host,
                    k.host_limit > 0 ? " of " : "", k.host_limit > 0 ? limit : "");
    return text->failed ? smp_fail_memory(text->capacity) : SMP_OK;
}
