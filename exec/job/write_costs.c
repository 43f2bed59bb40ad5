/* The profile of a run: what exec/step/cost_samples.h has kept on every rank, merged by all,
 * written by rank 0.
 *
 * An operator's time is the middle mean over steps of its rank, over replicas the median: a
 * profile describes a device, not the slowest of them. Now this operator is late in a step, now
 * another, and what an action usually takes is 2 to 4 % more than what all of its operators usually
 * take: each has its share of that. Times are those of device 0 of the plan's
 * cluster: a device that the cluster calls slower has its times shortened by that. Rates are of all
 * ranks together. O(replicas * operators + samples). */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "exec/job/setup.h"
#include "exec/state/device_wait.h"
#include "exec/job/choose_device.h"
#include "exec/record/step_record.h"
#include "exec/step/cost_samples.h"
#include "exec/step/stepping.h"
#include "profile/estimate.h"
#include "profile/measure.h"

enum { PARTS = SMP__COST_PARTS, RANGE = PARTS, COLUMNS, MESSAGE_NUMBERS = 3 };
/* A row ends with bytes and time of the optimizer, and time and range of all actions. */
enum { OPTIMIZER_BYTES, OPTIMIZER_US, ACTION_US, ACTION_RANGE_US, ROW_END };

/* A message of this size took so long. */
typedef struct sample {
    int64_t bytes;
    double us;
} sample;

/* What the ranks add up. MPI may read and write it after a failure, until the process ends. */
typedef struct merged {
    int64_t n_row;  /* of a replica: [n_op][COLUMNS], then ROW_END more */
    double *row;    /* [ddp][n_row] */
    double *number; /* [n_transfer][SMP__COST_SAMPLES][MESSAGE_NUMBERS] of one replica */
    sample *sample;
    size_t n_sample, capacity;
    int *node_of; /* [world_size] */
} merged;

/* Samples that count: [*begin, *end). */
static void valid_samples(const smp__cost_samples *c, int *begin, int *end)
{
    int cold = (int)smp__cold_steps(c->n_step);
    const bool all = c->n_step < SMP__COST_SAMPLES + cold; /* cold ones are not overwritten yet */
    *begin = all ? cold : 0;
    *end = c->n_step < SMP__COST_SAMPLES ? (int)c->n_step : SMP__COST_SAMPLES;
}

/* *range_us: between the quartiles; may be NULL. */
static double middle_of(const smp__cost_samples *c, const double *us, double *range_us)
{
    double copy[SMP__COST_SAMPLES];
    int begin, end;
    valid_samples(c, &begin, &end);
    memcpy(copy, us + begin, (size_t)(end - begin) * sizeof(*copy));
    if (range_us)
        *range_us = smp__quartile_range(copy, end - begin);
    return smp__middle_mean(copy, end - begin);
}

/* What an action of a chunk takes, of one part: the middle mean of the sums over its operators. */
static double action_of(const smp *s, int chunk, int part, double *range_us)
{
    const smp__cost_samples *c = s->stepping->cost_samples;
    double sum_us[SMP__COST_SAMPLES] = {0};
    for (int32_t i = 0; i < s->work->chunk[chunk].layout->n_call; i++)
        for (int k = 0; k < SMP__COST_SAMPLES; k++)
            sum_us[k] += c->us[(c->first[chunk] + PARTS * i + part) * SMP__COST_SAMPLES + k];
    return middle_of(c, sum_us, range_us);
}

/* One part of all operators of a chunk. `end`: of the row. */
static void fill_part(const smp *s, int chunk, int part, double slower, double *row, double *end)
{
    const smp__cost_samples *c = s->stepping->cost_samples;
    const smp_layout *layout = s->work->chunk[chunk].layout;
    double sum_us = 0.0, range_us;
    const double action_us = action_of(s, chunk, part, &range_us);
    end[ACTION_US] += action_us;
    end[ACTION_RANGE_US] += range_us;
    for (int32_t i = 0; i < layout->n_call; i++)
        sum_us +=
            middle_of(c, &c->us[(c->first[chunk] + PARTS * i + part) * SMP__COST_SAMPLES], NULL);
    const double factor = sum_us > 0.0 ? action_us / sum_us / slower : 1.0;
    for (int32_t i = 0; i < layout->n_call; i++) {
        double *op = &row[(int64_t)COLUMNS * layout->call[i].op];
        const int64_t series = c->first[chunk] + PARTS * i + part;
        op[part] = factor * middle_of(c, &c->us[series * SMP__COST_SAMPLES], &range_us);
        op[RANGE] += range_us / slower;
    }
}

/* What this rank knows, in the row of its replica. */
static void fill_own(const smp *s, double *row)
{
    const smp__cost_samples *c = s->stepping->cost_samples;
    double slower = 1.0;
    if (s->comm->tensor_rank > 0) /* all devices of a group do the same: the first one counts */
        return;
    if (s->plan->cluster)
        slower =
            smp_device_slowdown(s->plan->cluster, s->target->precision,
                                smp_plan_device(s->plan, s->comm->replica, s->comm->pipeline_rank));
    double *end = &row[(int64_t)COLUMNS * s->graph->n_op];
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        for (int part = 0; part < PARTS; part++)
            fill_part(s, chunk, part, slower, row, end);
    for (int32_t i = 0; s->graph->training && i < s->memory->n_param; i++)
        end[OPTIMIZER_BYTES] += 4.0 * (double)s->graph->param[s->memory->param[i].param].elements;
    end[OPTIMIZER_US] = middle_of(c, c->optimizer_us, NULL);
}

static smp_status share_rows(smp *s, merged *m)
{
    fill_own(s, &m->row[s->comm->replica * m->n_row]);
    for (int replica = 0; replica < s->comm->ddp_size; replica++)
        SMP_TRY(smp__comm_sum(s->comm, &m->row[replica * m->n_row], (int)m->n_row));
    return SMP_OK;
}

/* A message tells what its link takes only if its receiver had nothing left to do but wait when it
 * was sent, and the two have one clock. */
static smp_status add_samples(const smp *s, merged *m, int replica)
{
    int begin, end;
    valid_samples(s->stepping->cost_samples, &begin, &end);
    for (int32_t i = 0; i < s->work->flow->n_transfer; i++) {
        const smp_transfer *t = &s->work->flow->transfer[i];
        const int from =
            smp_plan_first_process(s->plan, replica, s->work->stage_rank[t->from_stage]);
        const int to = smp_plan_first_process(s->plan, replica, s->work->stage_rank[t->to_stage]);
        if (m->node_of[from] != m->node_of[to])
            continue;
        for (int k = begin; k < end; k++) {
            const double *at = &m->number[((int64_t)i * SMP__COST_SAMPLES + k) * MESSAGE_NUMBERS];
            const double sent_s = at[0], awaited_s = at[1], arrived_s = at[2];
            if (sent_s <= 0.0 || awaited_s > sent_s || arrived_s <= sent_s)
                continue;
            SMP_TRY(
                smp_array_reserve(&m->sample, &m->capacity, sizeof(*m->sample), m->n_sample + 1));
            m->sample[m->n_sample++] = (sample){t->bytes, 1e6 * (arrived_s - sent_s)};
        }
    }
    return SMP_OK;
}

static smp_status share_messages(smp *s, merged *m)
{
    const int64_t n = (int64_t)s->work->flow->n_transfer * SMP__COST_SAMPLES;
    SMP_TRY(smp__comm_nodes(s->comm, &m->node_of));
    for (int replica = 0; replica < s->comm->ddp_size; replica++) {
        smp_status status = SMP_OK;
        for (int64_t i = 0; i < n; i++) {
            const smp__message_sample *own = &s->stepping->cost_samples->message[i];
            const bool here = replica == s->comm->replica && s->comm->tensor_rank == 0;
            m->number[i * MESSAGE_NUMBERS] = here ? own->sent_s : 0.0;
            m->number[i * MESSAGE_NUMBERS + 1] = here ? own->awaited_s : 0.0;
            m->number[i * MESSAGE_NUMBERS + 2] = here ? own->arrived_s : 0.0;
        }
        SMP_TRY(smp__comm_sum(s->comm, m->number, (int)(n * MESSAGE_NUMBERS)));
        if (s->comm->world_rank == 0)
            status = add_samples(s, m, replica);
        SMP_TRY(smp__comm_agree(s->comm, status));
    }
    return SMP_OK;
}

/* With more ranks than cores a message's time is that of its receiver to get a core. A device with
 * a queue of its own is not where the host is. */
static smp_status find_times_messages(smp *s, bool *out)
{
    int no = s->comm->crowded || !s->device->host_memory || s->comm->pipeline_size == 1;
    SMP_TRY(smp__comm_max(s->comm, &no));
    *out = no == 0;
    return SMP_OK;
}

static smp_status merge(smp *s, merged *m)
{
    bool times_messages;
    const int64_t n = (int64_t)s->work->flow->n_transfer * SMP__COST_SAMPLES * MESSAGE_NUMBERS;
    m->n_row = (int64_t)COLUMNS * s->graph->n_op + ROW_END;
    smp_status status = SMP_OK;
    if (n > INT_MAX || m->n_row > INT_MAX)
        status = smp_fail(SMP_ERR_FAILED, "costs of %d operators and %d transfers: too many",
                          s->graph->n_op, s->work->flow->n_transfer);
    if (status == SMP_OK) {
        m->row = calloc((size_t)(s->comm->ddp_size * m->n_row), sizeof(*m->row));
        m->number = calloc((size_t)n + 1, sizeof(*m->number));
        if (!m->row || !m->number)
            status = smp_fail_memory((size_t)n * sizeof(*m->number));
    }
    SMP_TRY(smp__comm_agree(s->comm, status));
    SMP_TRY(share_rows(s, m));
    SMP_TRY(find_times_messages(s, &times_messages));
    return times_messages ? share_messages(s, m) : SMP_OK;
}

static int by_size(const void *left, const void *right)
{
    const sample *a = left, *b = right;
    return a->bytes != b->bytes ? (a->bytes > b->bytes) - (a->bytes < b->bytes)
                                : (a->us > b->us) - (a->us < b->us);
}

/* The median of every size, made to rise. Of a single size nothing is known but its rate. */
static smp_status make_link(merged *m, smp_arena *arena, smp_link_spec *link)
{
    int n = 0;
    int64_t *bytes = SMP_ARENA_NEW(arena, int64_t, m->n_sample);
    double *us = SMP_ARENA_NEW(arena, double, m->n_sample);
    if (!bytes || !us)
        return SMP_ERR_NO_MEMORY;
    qsort(m->sample, m->n_sample, sizeof(*m->sample), by_size);
    for (size_t i = 0, end; i < m->n_sample; i = end) {
        for (end = i + 1; end < m->n_sample && m->sample[end].bytes == m->sample[i].bytes;)
            end++;
        const double median = 0.5 * (m->sample[(i + end - 1) / 2].us + m->sample[(i + end) / 2].us);
        bytes[n] = m->sample[i].bytes;
        us[n] = smp__to_ns(fmax(median, n > 0 ? us[n - 1] : 1e-3));
        n++;
    }
    const double rise_us = us[n - 1] - us[0];
    *link = (smp_link_spec){
        .latency_us = us[0],
        .bytes_per_s =
            fmax(1.0, nearbyint(1e6 * (double)bytes[n - 1] / (rise_us > 0 ? rise_us : us[n - 1]))),
        .n_point = n,
        .point_bytes = bytes,
        .point_us = us};
    return SMP_OK;
}

/* Returns how the op's times scatter. */
static double set_cost(const smp *s, const merged *m, int32_t op, double *scratch,
                       smp_op_cost *cost)
{
    double us[COLUMNS], all_us;
    for (int column = 0; column < COLUMNS; column++) {
        for (int replica = 0; replica < s->comm->ddp_size; replica++)
            scratch[replica] = m->row[replica * m->n_row + (int64_t)COLUMNS * op + column];
        us[column] = smp__to_ns(smp__median(scratch, s->comm->ddp_size));
    }
    cost->forward_us = us[SMP_OP_FORWARD];
    cost->backward_input_us = us[SMP_OP_BACKWARD_INPUT];
    cost->backward_weight_us = us[SMP_OP_BACKWARD_WEIGHT];
    cost->backward_us = smp__to_ns(cost->backward_input_us + cost->backward_weight_us);
    all_us = cost->forward_us + cost->backward_us;
    return all_us > 0 ? smp__to_ns(us[RANGE] / all_us) : 0;
}

static smp_status set_ops(const smp *s, const merged *m, smp_profile *profile)
{
    const size_t n = (size_t)s->graph->n_op;
    smp_op_cost *cost = SMP_ARENA_NEW(profile->arena, smp_op_cost, n);
    const char **name = SMP_ARENA_NEW(profile->arena, const char *, n);
    double *scratch = SMP_ARENA_NEW(profile->arena, double, (size_t)s->comm->ddp_size);
    double all[ROW_END] = {0};
    double *spread = SMP_ARENA_NEW(profile->arena, double, n);
    if (!cost || !name || !scratch || !spread)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(smp__estimate_bytes(s->graph, s->work->batch, cost));
    for (int32_t i = 0; i < s->graph->n_op; i++) {
        name[i] = s->graph->op[i].name;
        spread[i] = set_cost(s, m, i, scratch, &cost[i]);
    }
    for (int replica = 0; replica < s->comm->ddp_size; replica++) {
        const double *end = &m->row[(replica + 1) * m->n_row - ROW_END];
        for (int i = 0; i < ROW_END; i++)
            all[i] += end[i];
    }
    profile->n_op = s->graph->n_op;
    profile->name = name;
    profile->op = cost;
    profile->spread = spread;
    const bool far =
        s->plan->sharding.offload_states && !s->device->host_memory; /* no rate of the device */
    profile->optimizer_bytes_per_s = !far && all[OPTIMIZER_BYTES] > 0.0 && all[OPTIMIZER_US] > 0.0
                                         ? nearbyint(1e6 * all[OPTIMIZER_BYTES] / all[OPTIMIZER_US])
                                         : 0.0;
    if (all[ACTION_US] > 0.0)
        profile->scatter = smp__scatter(all[ACTION_RANGE_US], all[ACTION_US]);
    return SMP_OK;
}

/* A GPU's libraries: what they take was measured, or is the plan's, which, like the memory, says it
 * of its own kind of device. */
static void set_memory(const smp *s, smp_profile *profile)
{
    const bool planned = s->plan->target.backend == s->device->backend;
    if (s->device->host_memory)
        return;
    if (planned && s->plan->cluster)
        profile->memory_bytes = s->plan->cluster->device[0].memory_bytes;
    profile->library_bytes = s->setup->found->library_bytes;
    if (planned && profile->library_bytes == 0)
        profile->library_bytes = s->plan->library_bytes;
}

/* By rank 0. A core switch, launches, and the link where no message could be timed: what the plan
 * was made with if that was measured. */
static smp_status write_profile(smp *s, merged *m, const char *path)
{
    char device[SMP_DEVICE_NAME_BYTES];
    smp_profile profile = {.model = s->graph->name,
                           .fingerprint = s->graph->fingerprint,
                           .device = device,
                           .dtype = smp_precision_name(s->target->precision),
                           .microbatch_size = s->work->batch,
                           .bf16_states = s->target->bf16_states,
                           .arena = smp_arena_create()};
    smp_link_spec *link = &profile.link[SMP_LINK_INTRA_NODE];
    smp_status status = profile.arena ? set_ops(s, m, &profile) : SMP_ERR_NO_MEMORY;
    smp_device_profile_name(s->device, s->device_context, device);
    if (status == SMP_OK && s->device->products)
        status = smp_gemms_choices(s->device->products(s->device_context), device, profile.arena,
                                   &profile.products);
    set_memory(s, &profile);
    if (s->plan->cluster && s->plan->cluster->cores_per_node > 0 &&
        s->plan->cluster->core_switch_us != SMP_DEFAULT_CORE_SWITCH_US)
        profile.core_switch_us = s->plan->cluster->core_switch_us;
    if (s->plan->cluster)
        profile.launch = s->plan->cluster->launch;
    if (status == SMP_OK && m->n_sample > 0)
        status = make_link(m, profile.arena, link);
    else if (s->plan->cluster && s->plan->cluster->intra_node.n_point > 0)
        *link = s->plan->cluster->intra_node;
    if (s->plan->cluster && s->plan->cluster->host.n_point > 0)
        profile.link[SMP_LINK_HOST] = s->plan->cluster->host;
    if (status == SMP_OK)
        status = smp_profile_write(&profile, path);
    smp_arena_destroy(profile.arena);
    return status;
}

static smp_status check_call(const smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_costs_write: a NULL argument");
    if (!s->stepping->cost_samples)
        return smp_fail(SMP_ERR_INPUT, "smp_costs_write needs options.record_costs");
    SMP_TRY(smp__job_usable(s));
    if (s->stepping->cost_samples->n_step == 0)
        return smp_fail(SMP_ERR_INPUT, "%s: no step was taken, so no cost was measured", path);
    return SMP_OK;
}

smp_status smp_costs_write(smp *s, const char *path)
{
    merged m = {0};
    SMP_TRY(check_call(s, path));
    smp_status status = smp__comm_agree(s->comm, smp__cost_samples_close(s));
    if (status == SMP_OK)
        status = merge(s, &m);
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm,
                                 s->comm->world_rank == 0 ? write_profile(s, &m, path) : SMP_OK);
    if (!s->comm->failed) {
        free(m.row);
        free(m.number);
    }
    free(m.sample);
    free(m.node_of);
    return status;
}
