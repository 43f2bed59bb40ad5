/* Options, start and end of a job, and what a program may ask of it. */
#include "smp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/job/choose_device.h"
#include "exec/job/job.h"
#include "exec/job/on_signal.h"
#include "exec/job/setup.h"
#include "exec/optimizer/lr_schedule.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/save/checkpoint_save.h"
#include "exec/state/progress.h"
#include "exec/step/stepping.h"
#include "graph/ops/custom_op.h"
#include "schedule/verify/verify.h"

enum { MAX_PLAN_BYTES = 1 << 30 };

static smp_status copy_string(smp *s, const char **text)
{
    if (!*text)
        return SMP_OK;
    *text = smp_arena_strdup(s->setup->strings, *text);
    return *text ? SMP_OK : SMP_ERR_NO_MEMORY;
}

static smp_status copy_options(smp *s, const smp_options *options)
{
    s->options = SMP_ARENA_NEW(s->setup->strings, smp_options, 1);
    if (!s->options)
        return SMP_ERR_NO_MEMORY;
    *s->options = *options;
    smp_options *o = s->options;
    const char **text[] = {&o->plan,
                           &o->model,
                           &o->optimizer.name,
                           &o->optimizer.lr_schedule,
                           &o->optimizer.loss_scale,
                           &o->runtime.device,
                           &o->runtime.precision,
                           &o->runtime.offload_to,
                           &o->runtime.keep_in,
                           &o->runtime.rows};
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++)
        SMP_TRY(copy_string(s, text[i]));
    return SMP_OK;
}

/* What only the start reads stays the caller's. */
static void forget_start(smp_options *o)
{
    o->planning = (smp_plan_options){0};
    o->optimizer.weights_like = NULL;
    o->optimizer.n_weights_like = 0;
    o->runtime.plugins = NULL;
    o->runtime.n_plugins = 0;
}

static bool in_range(float value, float min, float max)
{
    return value >= min && value <= max; /* false for NaN */
}

static smp_status check_device(const smp_runtime_options *o)
{
    smp_backend backend;
    smp_precision precision;
    if (o->precision)
        SMP_TRY(smp_precision_read((smp_where){0}, "precision", o->precision, &precision));
    if (!o->device || strcmp(o->device, "auto") == 0 || smp_device_find(o->device))
        return SMP_OK;
    SMP_TRY(smp_device_backend(o->device, &backend));
    return smp_fail(SMP_ERR_INPUT, "device '%s': this library was built without it", o->device);
}

static smp_status find_optimizer(smp *s)
{
    const char *name = s->options->optimizer.name;
    s->optimizer = name ? smp_optimizer_find(name) : smp_optimizers()[0];
    return s->optimizer ? SMP_OK : smp_optimizer_unknown(name);
}

/* The most that each number may be; the least is 0. */
#define MOST(field, option, most, ...) .field = most,
static const smp_update_settings most = {
    .lr = 1e6f, .weight_decay = 1e3f, SMP_UPDATE_SETTINGS(MOST, SMP_NO_SETTING)};

static smp_status check_number(const char *option, float value, float limit, const char *shown)
{
    char words[40];
    if (in_range(value, 0.0f, limit))
        return SMP_OK;
    snprintf(words, sizeof words, "%s", option);
    for (char *at = words; (at = strchr(at, '-'));)
        *at = ' ';
    return smp_fail(SMP_ERR_INPUT, "%s %g: expected 0 to %s", words, (double)value, shown);
}

static smp_status check_updates(const smp_optimizer_options *o)
{
    if (!in_range(o->lr, 0.0f, most.lr) || !in_range(o->min_lr, 0.0f, most.lr))
        return smp_fail(SMP_ERR_INPUT, "learning rate %g to %g: expected numbers from 0 to 1e6",
                        (double)o->lr, (double)o->min_lr);
    if (!in_range(o->beta1, 0.0f, most.beta1) || !in_range(o->beta2, 0.0f, most.beta2) ||
        !in_range(o->momentum, 0.0f, most.momentum))
        return smp_fail(SMP_ERR_INPUT, "beta1 %g, beta2 %g, momentum %g: expected 0 up to 1",
                        (double)o->beta1, (double)o->beta2, (double)o->momentum);
    if (!in_range(o->epsilon, 0.0f, most.epsilon) ||
        !in_range(o->weight_decay, 0.0f, most.weight_decay) || !in_range(o->clip_norm, 0.0f, 1e30f))
        return smp_fail(SMP_ERR_INPUT, "epsilon %g, weight decay %g, clip norm %g: out of range",
                        (double)o->epsilon, (double)o->weight_decay, (double)o->clip_norm);
    if (o->warmup_steps < 0 || o->decay_steps < 0)
        return smp_fail(SMP_ERR_INPUT, "warm-up %lld, decay %lld steps: expected 0 or more",
                        (long long)o->warmup_steps, (long long)o->decay_steps);
    if (o->decay_steps > 0 && o->decay_steps <= o->warmup_steps)
        return smp_fail(SMP_ERR_INPUT,
                        "decay until step %lld (--decay-steps) after a warm-up of %lld (--warmup): "
                        "the decay counts the warm-up, too, expected more than %lld, or 0 for a "
                        "constant rate",
                        (long long)o->decay_steps, (long long)o->warmup_steps,
                        (long long)o->warmup_steps);
#define CHECK(field, option, limit, ...) SMP_TRY(check_number(option, o->field, limit, #limit));
    SMP_UPDATE_SETTINGS(CHECK, SMP_NO_SETTING)
    smp_loss_scaling scaling; /* of what precision is found later */
    SMP_TRY(smp_lr_schedule_check(o));
    return smp_loss_scaling_read(o, SMP_PRECISION_FP16, &scaling);
}

static smp_status check_options(smp *s)
{
    const smp_options *o = s->options;
    if (!o->plan == !o->model)
        return smp_fail(SMP_ERR_INPUT, "set exactly one of options.plan and options.model");
    SMP_TRY(find_optimizer(s));
    SMP_TRY(smp_optimizer_check(s->optimizer, &o->optimizer));
    SMP_TRY(check_device(&o->runtime));
    SMP_TRY(check_updates(&o->optimizer));
    if (o->runtime.keep_checkpoints < 1)
        return smp_fail(SMP_ERR_INPUT, "checkpoints to keep: got %d, expected 1 or more",
                        o->runtime.keep_checkpoints);
    if (o->runtime.max_skipped < 0)
        return smp_fail(SMP_ERR_INPUT, "max_skipped %d: expected 0 or more",
                        o->runtime.max_skipped);
    if (o->runtime.own_bytes < 0 || o->runtime.own_bytes > SMP_OWN_STATE_BYTES ||
        (o->runtime.own_bytes > 0 && !o->runtime.own_state))
        return smp_fail(SMP_ERR_INPUT, "own_bytes %lld: expected 0 to %d, and own_state",
                        (long long)o->runtime.own_bytes, (int)SMP_OWN_STATE_BYTES);
    return SMP_OK;
}

/* Rank 0 reads or makes the plan; everybody gets its text, so all ranks hold the same plan. */
static smp_status share_plan(smp *s, smp__plan_maker *make_plan)
{
    smp_text text = {0};
    smp_status status = SMP_OK;
    const char *name = s->options->plan ? s->options->plan : s->options->model;
    if (s->comm->world_rank == 0 && s->options->plan) {
        /* the file as it is, so that messages have its lines */
        status = smp_file_read(s->options->plan, MAX_PLAN_BYTES, &text.data, &text.length);
    } else if (s->comm->world_rank == 0) {
        smp_plan *plan = NULL;
        status = make_plan(s->options, s->comm->world_size, *s->target, &plan);
        if (status == SMP_OK)
            status = smp_plan_format(plan, &text);
        smp_plan_destroy(plan);
    }
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK)
        status = smp__comm_broadcast(s->comm, &text.data, &text.length);
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, smp_plan_parse(name, text.data, text.length, &s->plan));
    free(text.data);
    return status;
}

/* Rank 0 proves the plan right; the others hold the same one. */
static smp_status verify(const smp *s)
{
    SMP_TRY(smp_graph_check_runnable(s->graph));
    return s->comm->world_rank == 0 ? smp_verify(s->plan, s->graph) : SMP_OK;
}

static smp_status check_ranks(const smp *s)
{
    const int processes = smp_plan_processes(s->plan), tensor = smp_plan_tensor(s->plan);
    char with_tensor[64] = "";
    if (s->comm->world_size == processes)
        return SMP_OK;
    if (tensor > 1)
        snprintf(with_tensor, sizeof with_tensor, " x tensor %s%d",
                 s->plan->rank_begin ? "of each stage, at most " : "", tensor);
    return smp_fail(SMP_ERR_INPUT,
                    "%s is a plan for %d processes (pipeline %d x ddp %d%s), but %d were started: "
                    "run it with mpirun -n %d",
                    s->options->plan ? s->options->plan : "this", processes, s->plan->pipeline,
                    s->plan->ddp, with_tensor, s->comm->world_size, processes);
}

/* Devices that compute every op together are neighbours. */
static smp_status split_ranks(smp *s)
{
    int replica, rank, index;
    if (!smp_plan_place(s->plan, s->comm->world_rank, &replica, &rank, &index))
        return smp_fail(SMP_ERR_FAILED, "rank %d has no place in the plan", s->comm->world_rank);
    return smp__comm_split(s->comm, (smp_comm_place){.pipeline_rank = rank,
                                                     .pipeline = s->plan->pipeline,
                                                     .replica = replica,
                                                     .shard = s->plan->sharding.shard,
                                                     .near = s->plan->sharding.node_replicas,
                                                     .tensor = smp_plan_rank_tensor(s->plan, rank),
                                                     .tensor_rank = index,
                                                     .tensor_most = smp_plan_tensor(s->plan),
                                                     .rank_begin = s->plan->rank_begin});
}

/* The graph as this rank's share of it; of a plan made here it may be open already, whole. */
static smp_status open_model(smp *s)
{
    int replica, rank, index = 0;
    if (s->graph && smp_plan_tensor(s->plan) == 1)
        return smp_freezing_apply(&s->plan->freezing, s->graph);
    smp_graph_destroy(s->graph);
    s->graph = NULL;
    smp_plan_place(s->plan, s->comm->world_rank, &replica, &rank, &index);
    return smp_plan_open_model(s->plan, s->options->plan, index, &s->graph);
}

/* The plan and its graph, and what they run on. A plan that is made here is made for that; a plan
 * file is proven right for what it was made for, and then used for what is here. */
static smp_status open_plan(smp *s, smp__plan_maker *make_plan)
{
    if (s->options->plan) {
        SMP_TRY(share_plan(s, make_plan));
        SMP_TRY(smp__comm_agree(s->comm, check_ranks(s)));
        SMP_TRY(smp__comm_agree(s->comm, open_model(s)));
        SMP_TRY(smp__comm_agree(s->comm, verify(s)));
        SMP_TRY(smp__choose_device(s));
    } else {
        const smp_plan_options *o = &s->options->planning;
        const smp_settings settings = {.n = o->n_set, .text = o->set};
        SMP_TRY(smp__comm_agree(s->comm,
                                smp_graph_read_joined(s->options->model, settings, &s->graph)));
        SMP_TRY(smp__choose_device(s));
        SMP_TRY(share_plan(s, make_plan));
        SMP_TRY(smp__comm_agree(s->comm, check_ranks(s)));
        SMP_TRY(smp__comm_agree(s->comm, open_model(s)));
        SMP_TRY(smp__comm_agree(s->comm, verify(s)));
    }
    s->plan->target = *s->target;
    SMP_TRY(smp__comm_agree(s->comm, smp__progress_open(s, s->setup->strings)));
    return smp__comm_agree(s->comm, split_ranks(s));
}

/* A rank that has no memory for a job still comes, to tell the others. */
static smp_status refuse(smp_status status, smp_comm_limits limit)
{
    static smp_comm comm; /* not on the stack: after a failure MPI may still touch it */
    smp_status opened = smp__comm_open(&comm, limit);
    if (opened == SMP_OK)
        opened = smp__comm_agree(&comm, status);
    smp__comm_close(&comm);
    return opened;
}

/* The handle, and what it points to from its begin to its end. */
struct parts {
    smp handle;
    smp_comm comm;
    smp__endpoint endpoint;
    smp_target target;
    smp__work work;
    smp__buffers buffers;
    smp__given given;
    struct smp__stepping stepping;
    struct smp__setup setup;
    struct smp__found found;
};

static smp *make_handle(void)
{
    struct parts *p = calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->handle = (smp){.comm = &p->comm,
                      .endpoint = &p->endpoint,
                      .target = &p->target,
                      .work = &p->work,
                      .buffers = &p->buffers,
                      .given = &p->given,
                      .stepping = &p->stepping,
                      .setup = &p->setup};
    p->setup.found = &p->found;
    if (smp__place_open(&p->handle.place) == SMP_OK)
        return &p->handle;
    free(p);
    return NULL;
}

/* All ranks write parts of one file, whose layout these decide. Collective, once all of them have
 * agreed that they come so far. */
static smp_status check_own(const smp *s)
{
    const int bytes = (int)s->options->runtime.own_bytes;
    int most = bytes;
    SMP_TRY(smp__comm_max(s->comm, &most));
    return smp__comm_agree(
        s->comm, most == bytes
                     ? SMP_OK
                     : smp_fail(SMP_ERR_INPUT, "own_bytes %d: another rank has %d", bytes, most));
}

smp_status smp__job_open(smp **out, const smp_options *options, smp__plan_maker *make_plan)
{
    const smp_runtime_options *runtime = &options->runtime;
    const smp_comm_limits limit = {
        .step_s = runtime->timeout_s,
        .start_s = smp__comm_patience(runtime->timeout_start_s, runtime->timeout_s),
        .save_s = smp__comm_patience(runtime->timeout_save_s, runtime->timeout_s)};
    smp *s = make_handle();
    if (!s)
        return refuse(smp_fail_memory(sizeof(struct parts)), limit);
    s->setup->strings = smp_arena_create();
    smp_status status = smp__comm_open(s->comm, limit);
    if (status != SMP_OK)
        goto fail;
    status = s->setup->strings ? copy_options(s, options) : SMP_ERR_NO_MEMORY;
    if (status == SMP_OK)
        status = smp__save_open(s);
    if (status == SMP_OK)
        status = check_options(s);
    if (status == SMP_OK)
        status = smp_plugins_load(options->runtime.plugins, options->runtime.n_plugins);
    if ((status = smp__comm_agree(s->comm, status)) != SMP_OK)
        goto fail;
    if ((status = check_own(s)) != SMP_OK)
        goto fail;
    if ((status = smp__keep_enter(s)) != SMP_OK)
        goto fail;
    if ((status = open_plan(s, make_plan)) != SMP_OK)
        goto fail;
    if ((status = smp__job_build(s)) != SMP_OK)
        goto fail;
    if ((status = smp__keep_open(s)) != SMP_OK)
        goto fail;
    /* Not before: bound ranks of the batch policy wake up late where other work wants their core,
     * and a start is one short wait after the other. */
    if (!options->runtime.keep_scheduling)
        smp__comm_take_core(s->comm);
    smp__place_doing(s->place, smp__between_steps);
    forget_start(s->options);
    *out = s;
    return SMP_OK;

fail:
    smp_finalize(s);
    return status;
}

void smp_finalize(smp *s)
{
    if (!s)
        return;
    if (s->setup->elastic)
        smp__on_signal(NULL, false); /* the handler knows the job */
    smp__job_free(s);
    smp__comm_close(s->comm);
    if (s->comm->failed)
        return; /* MPI may still use buffers of the handle: they stay until the process ends */
    smp_arena_destroy(s->setup->strings);
    smp__place_close(s->place);
    free(s); /* the first of its parts */
}

int smp_rank(const smp *s, smp_group group)
{
    return group == SMP_WORLD      ? s->comm->world_rank
           : group == SMP_PIPELINE ? s->comm->line_rank
           : group == SMP_TENSOR   ? s->comm->tensor_rank
                                   : s->comm->replica;
}

int smp_size(const smp *s, smp_group group)
{
    return group == SMP_WORLD      ? s->comm->world_size
           : group == SMP_PIPELINE ? s->comm->line_size
           : group == SMP_TENSOR   ? s->comm->tensor_size
                                   : s->comm->ddp_size;
}

int smp_input_count(const smp *s)
{
    return s->graph->n_input;
}
