/* Every lane's sends come in the order of its receives: the executor's own code for messages and
 * reductions walks the programs of all ranks of a plan, one rank after the other, with a transport
 * that only writes down what it is asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "exec/step/message_lanes.h"
#include "exec/step/reduce_state.h"
#include "exec/step/messages.h"
#include "exec/step/reduce.h"
#include "exec/step/stepping.h"
#include "exec/step/sum_list.h"
#include "schedule/rules/schedule.h"
#include "tests/case_count.h"
#include "tests/exec/changed_plan.h"

enum { RANKS = 4, MAX_RECORDS = 4096 };

typedef struct record {
    int lane; /* index */
    bool outgoing;
    int64_t tag, bytes;
} record;

typedef struct recorder {
    int n;
    record record[MAX_RECORDS];
} recorder;

static smp_status note(void *context, int lane, bool outgoing, int64_t tag, int64_t bytes)
{
    recorder *r = context;
    assert_true(r->n < MAX_RECORDS);
    r->record[r->n++] = (record){.lane = lane, .outgoing = outgoing, .tag = tag, .bytes = bytes};
    return SMP_OK;
}

static smp_status note_send(void *context, int lane, int64_t tag, const void *data, int64_t bytes,
                            smp_request *request)
{
    (void)data;
    (void)request;
    return note(context, lane, true, tag, bytes);
}

static smp_status note_receive(void *context, int lane, int64_t tag, void *data, int64_t bytes,
                               smp_request *request)
{
    (void)data;
    (void)request;
    return note(context, lane, false, tag, bytes);
}

static smp_status say_done(void *context, smp_request *request, bool *done)
{
    (void)context;
    (void)request;
    *done = true;
    return SMP_OK;
}

static int64_t any_tag(void *context)
{
    (void)context;
    return INT64_MAX;
}

static smp_status no_copy(void *context, void *target, const void *source, int64_t bytes)
{
    (void)context;
    (void)target;
    (void)source;
    (void)bytes;
    return SMP_OK;
}

static smp_status no_add(void *context, smp_dtype dtype, void *target, const void *source,
                         int64_t elements)
{
    (void)dtype;
    return no_copy(context, target, source, elements);
}

static const smp_device device = {.name = "none", .copy = no_copy, .add = no_add};

/* One rank of a job, as far as messages need it. */
typedef struct rank_of_job {
    smp s;
    smp_comm comm;
    smp__endpoint endpoint;
    smp__work work;
    struct smp__stepping stepping;
    smp__buffers buffers;
    recorder recorder;
} rank_of_job;

static void build_rank(rank_of_job *r, smp_graph *graph, smp_plan *plan, smp_flow *flow,
                       int32_t *stage_of_op, int rank, const smp_transport *transport)
{
    static char arena[64];
    smp *s = &r->s;
    r->comm = (smp_comm){.pipeline_rank = rank,
                         .pipeline_size = plan->pipeline,
                         .ddp_size = 1,
                         .shard_size = 1,
                         .tensor_size = 1,
                         .tensor_most = 1};
    r->work = (smp__work){.stage_of_op = stage_of_op,
                          .flow = flow,
                          .program = &plan->program[rank],
                          .chunks = plan->chunks,
                          .microbatches = plan->microbatches,
                          .batch = plan->microbatch_size};
    r->endpoint = (smp__endpoint){.transport = transport, .context = &r->recorder};
    r->stepping = (struct smp__stepping){0};
    r->buffers = (smp__buffers){.arena = arena};
    *s = (smp){.comm = &r->comm,
               .device = &device,
               .endpoint = &r->endpoint,
               .graph = graph,
               .plan = plan,
               .work = &r->work,
               .stepping = &r->stepping,
               .buffers = &r->buffers};
    r->recorder.n = 0;
    s->work->stage_rank = calloc((size_t)plan->n_stage, sizeof(*s->work->stage_rank));
    s->work->stage_of_chunk = calloc((size_t)s->work->chunks, sizeof(*s->work->stage_of_chunk));
    s->work->chunk = calloc((size_t)s->work->chunks, sizeof(*s->work->chunk));
    smp_layout **layout = calloc((size_t)s->work->chunks, sizeof(*layout));
    assert_true(s->work->stage_rank && s->work->stage_of_chunk && s->work->chunk && layout);
    for (int stage = 0; stage < plan->n_stage; stage++)
        s->work->stage_rank[stage] = plan->stage[stage].rank;
    assert_int_equal(smp_memory_plan_rank(plan, graph, flow, rank, 2, layout, &s->memory), SMP_OK);
    for (int chunk = 0; chunk < s->work->chunks; chunk++) {
        s->work->stage_of_chunk[chunk] = s->work->chunk[chunk].stage =
            smp_plan_stage_of(plan, rank, chunk);
        s->work->chunk[chunk].layout = layout[chunk];
    }
    free(layout);
    smp_transport_options options = {0};
    assert_int_equal(smp__reduce_open(s, options.terms), SMP_OK);
    assert_int_equal(smp__messages_lanes(s, &options), SMP_OK);
    assert_true(options.n_lane == s->stepping->lanes->n &&
                options.lane == s->stepping->lanes->lane);
    assert_int_equal(smp__messages_build(s), SMP_OK);
    assert_int_equal(smp__reduce_build(s), SMP_OK);
}

/* The messages of a step, as exec/step/step.c has them. */
static void walk_step(smp *s)
{
    assert_int_equal(smp__reduce_begin_step(s), SMP_OK);
    for (int64_t i = 0; i < s->work->program->n; i++) {
        const smp_action *a = &s->work->program->action[i];
        for (int64_t k = s->memory->post_begin[i]; k < s->memory->post_begin[i + 1]; k++)
            assert_int_equal(smp__messages_post(s, s->memory->post[k]), SMP_OK);
        smp_status status = SMP_OK;
        if (a->kind == SMP_ACTION_SEND_F)
            status = smp__messages_send(s, a->chunk, a->microbatch, SMP_TRANSFER_F);
        else if (a->kind == SMP_ACTION_SEND_B)
            status = smp__messages_send(s, a->chunk, a->microbatch, SMP_TRANSFER_B);
        else if (a->kind == SMP_ACTION_REDUCE)
            status = smp__reduce_start(s, a->chunk);
        else if (a->kind == SMP_ACTION_OPTIMIZE)
            status = smp__reduce_finish(s);
        assert_int_equal(status, SMP_OK);
    }
}

static void free_rank(smp *s)
{
    smp__reduce_free(s);
    smp__messages_free(s);
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        smp_layout_destroy(s->work->chunk[chunk].layout);
    smp_memory_destroy(s->memory);
    free(s->work->chunk);
    free(s->work->stage_of_chunk);
    free(s->work->stage_rank);
}

/* The other end of a lane; -1: there is none. */
static int find_lane(const smp *s, int64_t id)
{
    for (int i = 0; i < s->stepping->lanes->n; i++)
        if (s->stepping->lanes->lane[i].id == id)
            return i;
    return -1;
}

/* What one end did in a lane is what the other did, in that order. */
static void compare_lane(const rank_of_job *all, int rank, int index)
{
    const smp_lane *own = &all[rank].s.stepping->lanes->lane[index];
    const rank_of_job *peer = &all[own->peer];
    int at = find_lane(&peer->s, own->id), k = 0, n = 0;
    assert_true(at >= 0);
    const smp_lane *other = &peer->s.stepping->lanes->lane[at];
    assert_int_equal(other->peer, rank);
    assert_int_equal(other->outgoing, !own->outgoing);
    assert_int_equal(other->messages, own->messages);
    assert_int_equal(other->max_bytes, own->max_bytes);
    for (int i = 0; i < all[rank].recorder.n; i++) {
        const record *r = &all[rank].recorder.record[i];
        if (r->lane != index)
            continue;
        n++;
        assert_int_equal(r->outgoing, own->outgoing);
        assert_true(r->bytes <= own->max_bytes);
        while (k < peer->recorder.n && peer->recorder.record[k].lane != at)
            k++;
        assert_true(k < peer->recorder.n);
        assert_int_equal(peer->recorder.record[k].tag, r->tag);
        assert_int_equal(peer->recorder.record[k].bytes, r->bytes);
        k++;
    }
    assert_int_equal(n, own->messages);
}

/* All ranks of a plan. */
typedef struct job {
    rank_of_job rank[RANKS];
    smp_flow *flow;
    int32_t *stage_of_op;
} job;

static void open_job(job *j, smp_graph *graph, smp_plan *plan, const smp_transport *transport)
{
    assert_int_equal(smp_plan_bind(plan, graph, &j->stage_of_op), SMP_OK);
    assert_int_equal(
        smp_flow_build(graph, j->stage_of_op, plan->n_stage, plan->microbatch_size, &j->flow),
        SMP_OK);
    assert_int_equal(plan->pipeline, RANKS);
    for (int rank = 0; rank < RANKS; rank++)
        build_rank(&j->rank[rank], graph, plan, j->flow, j->stage_of_op, rank, transport);
}

static void close_job(job *j)
{
    for (int rank = 0; rank < RANKS; rank++)
        free_rank(&j->rank[rank].s);
    smp_flow_destroy(j->flow);
    free(j->stage_of_op);
}

static void check_plan(smp_graph *graph, smp_plan *plan, bool on_device)
{
    static job j;
    const smp_transport transport = {.on_device = on_device,
                                     .max_message_bytes = INT64_MAX,
                                     .max_tag = any_tag,
                                     .send = note_send,
                                     .receive = note_receive,
                                     .test = say_done};
    open_job(&j, graph, plan, &transport);
    for (int rank = 0; rank < RANKS; rank++)
        walk_step(&j.rank[rank].s);
    for (int rank = 0; rank < RANKS; rank++) {
        const smp *s = &j.rank[rank].s;
        for (int i = 0; i < s->stepping->lanes->n; i++) {
            assert_true(i == 0 ||
                        s->stepping->lanes->lane[i].id > s->stepping->lanes->lane[i - 1].id);
            compare_lane(j.rank, rank, i);
        }
    }
    close_job(&j);
}

static void open_plan(const char *model, const char *schedule, int chunks, smp_graph **graph,
                      smp_plan **plan)
{
    char path[1024];
    snprintf(path, sizeof(path), "%s/examples/%s", SMP_SOURCE_DIR, model);
    const smp_target cpu = {SMP_BACKEND_CPU, SMP_PRECISION_FP32};
    smp_options options = smp_options_default();
    options.model = path;
    options.planning.stages = RANKS;
    options.planning.ddp = 1;
    options.planning.chunks = chunks;
    options.planning.microbatches = 6;
    options.planning.microbatch_size = 1;
    options.planning.schedule = schedule;
    assert_int_equal(smp_graph_read(path, graph), SMP_OK);
    if (smp__plan_from_options(&options, RANKS, cpu, plan) != SMP_OK)
        fail_msg("%s: %s", schedule, smp_last_error());
}

static void check_schedule(const char *model, const char *schedule, int chunks)
{
    smp_graph *graph = NULL;
    smp_plan *plan = NULL;
    open_plan(model, schedule, chunks, &graph, &plan);
    for (int split = 0; split < 2; split++) {
        check_plan(graph, plan, split == 1);
        if (split == 0)
            assert_int_equal(change_plan(plan, graph,
                                         (plan_changes){.seed = 3,
                                                        .recompute_percent = 50,
                                                        .split_percent = 70,
                                                        .whole_percent = 20,
                                                        .soon_percent = 30}),
                             SMP_OK);
    }
    smp_plan_destroy(plan);
    smp_graph_destroy(graph);
}

static void test_message_lanes_keep_their_order(void **state)
{
    (void)state;
    for (int i = 0; smp_schedules()[i]; i++)
        for (int chunks = 1; chunks <= (is_long() ? 3 : 2); chunks++) {
            const smp_schedule_kind *kind = smp_schedules()[i];
            smp_schedule_shape shape = {
                .pipeline = RANKS, .chunks = chunks, .microbatches = 6, .training = true};
            if (smp_schedule_check(kind, &shape) != SMP_OK)
                continue;
            check_schedule("branches.yaml", kind->name, chunks);
            check_schedule("gpt-tiny.yaml", kind->name, chunks);
        }
}

static void expect_limit(smp *s, int64_t message_bytes, const char *refusal)
{
    const smp_transport *unlimited = s->endpoint->transport;
    smp_transport transport = *unlimited;
    transport.max_message_bytes = message_bytes;
    s->endpoint->transport = &transport;
    smp__sum_lists_free(s->stepping->reducer->scatter, s->work->chunks);
    smp__sum_lists_free(s->stepping->reducer->across, s->work->chunks);
    free(s->stepping->reducer->weights);
    assert_int_equal(smp__reduce_build(s), refusal ? SMP_ERR_FAILED : SMP_OK);
    if (refusal && !strstr(smp_last_error(), refusal))
        fail_msg("'%s' does not say '%s'", smp_last_error(), refusal);
    s->endpoint->transport = unlimited;
}

/* A message that is too long for the transport by one byte is refused before the first step. */
static void test_message_lanes_stay_within_the_transport(void **state)
{
    (void)state;
    static job j;
    const smp_transport transport = {.max_message_bytes = INT64_MAX, .max_tag = any_tag};
    const int64_t bytes = 256 * 128 * 4; /* wte.weight */
    smp_graph *graph = NULL;
    smp_plan *plan = NULL;
    int tied = 0;
    open_plan("gpt-tiny.yaml", "breadth-first", 2, &graph, &plan);
    open_job(&j, graph, plan, &transport);
    for (int rank = 0; rank < RANKS; rank++) {
        smp *s = &j.rank[rank].s;
        expect_limit(s, bytes, NULL);
        bool ties = s->stepping->reducer->n_tie > 0;
        tied += ties;
        expect_limit(s, bytes - 1, ties ? "tied weight 'wte.weight' is too long" : NULL);
        smp_graph inference = *graph;
        inference.training = false;
        s->graph = &inference;
        expect_limit(s, 0, NULL);
        s->graph = graph;
    }
    assert_int_equal(tied, 2); /* the first and the last stage */
    close_job(&j);
    smp_plan_destroy(plan);
    smp_graph_destroy(graph);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_lanes_keep_their_order),
        cmocka_unit_test(test_message_lanes_stay_within_the_transport),
    };
    return cmocka_run_group_tests_name("message_lanes", tests, NULL, NULL);
}
