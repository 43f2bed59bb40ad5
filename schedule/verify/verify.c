/* The verifier (see verify.h): one pass over each program checks what a rank can know by itself, a
 * second over the pairs finds what is missing, a third follows every channel (verify_channels.c),
 * then token passing proves that the ranks together finish (rendezvous.c). Sends and receives match
 * one to one because each exists exactly once where the flow has a message.
 *
 * This is a proof, not a sample of one run: what a rank waits for is that others have reached
 * certain positions, and positions only grow. So an action that could go on once can go on for
 * ever after, and every order of running the ranks ends in the same fixpoint; if it is the end of
 * all programs, no timing leads anywhere else. Whoever waits for less (an executor that buffers,
 * posts receives earlier or completes sends later) gets at least as far at every moment.
 *
 * Channels that are first in, first out add no wait: a send to the neighbouring stage is complete
 * when its rank goes on, so it never stands after another one, and of what jumps, the receives of
 * one channel are reached in the order of its sends, so the front of the queue is taken first.
 * Linear in actions, transfers and micro-batches. */
#include "schedule/verify/verify.h"

#include <stdlib.h>

#include "schedule/verify/verify_channels.h"

typedef struct checker {
    const smp_plan *plan;
    smp__crossing crossing;
    smp__positions *position; /* [n_stage * microbatches] */
    int *accumulated;         /* [n_stage] weight gradients so far: the next micro-batch */
    bool *reduced;            /* [n_stage] */
    bool *gathered;           /* [n_stage] its weights are there */
    bool *complete;           /* [n_stage] A stands before */
    int64_t *stored;          /* [n_stage * microbatches] compute actions before S */
    int rank;                 /* being checked */
    int64_t at;
    int64_t computed; /* compute actions of the rank before it */
} checker;

static bool is_training(const checker *c)
{
    return c->plan->training;
}

static int stage_at(const checker *c, int chunk)
{
    return c->crossing.stage_of[(int64_t)c->rank * c->crossing.chunks + chunk];
}

static smp__positions *positions(const checker *c, int stage, int mb)
{
    return &c->position[(int64_t)stage * c->plan->microbatches + mb];
}

/* Where the whole backward of a pair, or its first half, stands; -1: not there. */
static int64_t backward_at(const smp__positions *p)
{
    return p->at[SMP_ACTION_B] >= 0 ? p->at[SMP_ACTION_B] : p->at[SMP_ACTION_I];
}

static const char *formatted(smp_action action, smp_text *text)
{
    text->length = 0;
    smp_action_format(&action, text);
    return text->data ? text->data : "?";
}

/* "rank 1, action 5 (<F2.0): what"; `needs` is appended as an action unless NULL. */
static smp_status reject(const checker *c, const char *what, const smp_action *needs)
{
    smp_text here = {0}, other = {0};
    smp_status status = smp_fail_at(
        smp_plan_program_where(c->plan, c->rank), "rank %d, action %lld (%s): %s%s", c->rank,
        (long long)c->at + 1, formatted(c->plan->program[c->rank].action[c->at], &here), what,
        needs ? formatted(*needs, &other) : "");
    smp_text_free(&here);
    smp_text_free(&other);
    return status;
}

static smp_action made(smp_action_kind kind, int mb, int chunk)
{
    return (smp_action){.kind = kind, .microbatch = mb, .chunk = chunk};
}

/* Inputs from other ranks: received; from other chunks of this rank: computed. */
static smp_status check_inputs(const checker *c, const smp_action *a, smp_transfer_kind kind)
{
    int stage = stage_at(c, a->chunk);
    const smp_flow *flow = c->crossing.flow;
    smp_action receive = made(smp__crossing_receive(kind), a->microbatch, a->chunk);
    if (c->crossing.receives[kind][stage] &&
        positions(c, stage, a->microbatch)->at[receive.kind] < 0)
        return reject(c, "its input is not there yet: expected before it ", &receive);
    for (int32_t i = flow->in_begin[stage]; i < flow->in_begin[stage + 1]; i++) {
        const smp_transfer *t = &flow->transfer[flow->in_list[i]];
        if (t->kind != kind || smp__crossing_is_message(&c->crossing, t))
            continue;
        const smp__positions *p = positions(c, t->from_stage, a->microbatch);
        smp_action source = made(kind == SMP_TRANSFER_F ? SMP_ACTION_F : SMP_ACTION_B,
                                 a->microbatch, c->crossing.chunk_of[t->from_stage]);
        if ((kind == SMP_TRANSFER_F ? p->at[SMP_ACTION_F] : backward_at(p)) < 0)
            return reject(c, "its input is not there yet: expected before it ", &source);
    }
    return SMP_OK;
}

static bool is_sharded(const checker *c, smp_shard_what what)
{
    return smp_shards(c->plan->sharding, what, c->plan->training);
}

static smp_status check_compute(checker *c, const smp_action *a, const smp__positions *p)
{
    int stage = stage_at(c, a->chunk);
    smp_action gather = made(SMP_ACTION_GATHER, -1, a->chunk);
    if ((is_sharded(c, SMP_SHARD_OPTIMIZER) || is_sharded(c, SMP_SHARD_WEIGHTS)) &&
        !c->gathered[stage])
        return reject(c, "its weights are not there: expected before it ", &gather);
    smp_action forward = made(SMP_ACTION_F, a->microbatch, a->chunk);
    smp_action inputs = made(SMP_ACTION_I, a->microbatch, a->chunk);
    if (a->kind == SMP_ACTION_F)
        return check_inputs(c, a, SMP_TRANSFER_F);
    if (a->kind == SMP_ACTION_W && p->at[SMP_ACTION_I] < 0)
        return reject(c, "expected before it ", &inputs);
    if (p->at[SMP_ACTION_F] < 0)
        return reject(c, "expected before it ", &forward);
    if ((a->kind == SMP_ACTION_B && p->at[SMP_ACTION_I] >= 0) ||
        (a->kind == SMP_ACTION_I && p->at[SMP_ACTION_B] >= 0))
        return reject(c, "a backward is either whole (B) or split (I and W)", NULL);
    smp_action load = made(SMP_ACTION_LOAD, a->microbatch, a->chunk);
    if (p->at[SMP_ACTION_STORE] >= 0 && p->at[SMP_ACTION_LOAD] < 0)
        return reject(c, "what it reads is in host memory: expected before it ", &load);
    if (a->kind != SMP_ACTION_W)
        SMP_TRY(check_inputs(c, a, SMP_TRANSFER_B));
    if (a->kind == SMP_ACTION_I)
        return SMP_OK;
    if (a->microbatch != c->accumulated[stage]) {
        smp_action next = made(a->kind, c->accumulated[stage], a->chunk);
        return reject(c, "weight gradients are added in micro-batch order: expected ", &next);
    }
    c->accumulated[stage]++;
    return SMP_OK;
}

/* S and L: of a block that travels, once each, and back before it is read. Where a store has to be
 * complete is known from the program alone: before the (horizon + 1)-th compute action after it
 * begins. So what is loaded after that one was whole. */
static smp_status check_offload(checker *c, const smp_action *a, const smp__positions *p)
{
    const int stage = stage_at(c, a->chunk);
    int64_t *stored = &c->stored[(int64_t)stage * c->plan->microbatches + a->microbatch];
    smp_action forward = made(SMP_ACTION_F, a->microbatch, a->chunk);
    smp_action store = made(SMP_ACTION_STORE, a->microbatch, a->chunk);
    if (!c->plan->travels || !c->plan->travels[stage])
        return reject(c, "nothing of its stage travels", NULL);
    if (backward_at(p) >= 0)
        return reject(c, "the backward that reads it stands before it", NULL);
    if (a->kind == SMP_ACTION_STORE) {
        *stored = c->computed;
        return p->at[SMP_ACTION_F] < 0 ? reject(c, "expected before it ", &forward) : SMP_OK;
    }
    if (p->at[SMP_ACTION_STORE] < 0)
        return reject(c, "expected before it ", &store);
    if (c->computed - *stored <= c->plan->loading_horizon)
        return reject(c, "it may not be stored yet: expected more compute actions between it and ",
                      &store);
    return SMP_OK;
}

static smp_status check_message(const checker *c, const smp_action *a, const smp__positions *p)
{
    bool forward = a->kind == SMP_ACTION_SEND_F || a->kind == SMP_ACTION_RECV_F;
    bool send = a->kind == SMP_ACTION_SEND_F || a->kind == SMP_ACTION_SEND_B;
    smp_transfer_kind kind = forward ? SMP_TRANSFER_F : SMP_TRANSFER_B;
    int stage = stage_at(c, a->chunk);
    if (!(send ? c->crossing.sends : c->crossing.receives)[kind][stage])
        return reject(c,
                      send ? "nothing that it makes goes to another rank"
                           : "nothing that it needs comes from another rank",
                      NULL);
    smp_action source = made(forward ? SMP_ACTION_F : SMP_ACTION_B, a->microbatch, a->chunk);
    if (send && (forward ? p->at[SMP_ACTION_F] : backward_at(p)) < 0)
        return reject(c, "what it sends is not there yet: expected before it ", &source);
    return SMP_OK;
}

static smp_status check_reduce(checker *c, const smp_action *a)
{
    int stage = stage_at(c, a->chunk);
    if (c->reduced[stage])
        return reject(c, "it stands here a second time", NULL);
    if (c->accumulated[stage] < c->plan->microbatches) {
        smp_action next = made(SMP_ACTION_B, c->accumulated[stage], a->chunk);
        return reject(c, "the chunk's backwards are not done: expected before it ", &next);
    }
    c->reduced[stage] = true;
    return SMP_OK;
}

/* G, D and A. Weights that are not sharded themselves are gathered once. */
static smp_status check_shard(checker *c, const smp_action *a)
{
    const int stage = stage_at(c, a->chunk);
    smp_action reduce = made(SMP_ACTION_REDUCE, -1, a->chunk);
    if (!is_sharded(c, SMP_SHARD_OPTIMIZER) && !is_sharded(c, SMP_SHARD_WEIGHTS))
        return reject(c, "nothing of the plan is sharded", NULL);
    if (a->kind == SMP_ACTION_DROP && !is_sharded(c, SMP_SHARD_WEIGHTS))
        return reject(c, "the plan's weights are not sharded", NULL);
    if (a->kind == SMP_ACTION_ALL) {
        if (c->complete[stage])
            return reject(c, "it stands here a second time", NULL);
        if (!c->reduced[stage])
            return reject(c, "expected before it ", &reduce);
        c->complete[stage] = true;
        return SMP_OK;
    }
    if (c->gathered[stage] != (a->kind == SMP_ACTION_DROP))
        return reject(c,
                      a->kind == SMP_ACTION_DROP ? "its weights were not gathered"
                                                 : "its weights are there already",
                      NULL);
    c->gathered[stage] = a->kind == SMP_ACTION_GATHER;
    return SMP_OK;
}

static smp_status check_optimize(const checker *c)
{
    for (int chunk = 0; chunk < c->crossing.chunks; chunk++) {
        const int stage = stage_at(c, chunk);
        const bool sharded = is_sharded(c, SMP_SHARD_OPTIMIZER);
        smp_action reduce = made(SMP_ACTION_REDUCE, -1, chunk),
                   all = made(SMP_ACTION_ALL, -1, chunk);
        if (!c->reduced[stage])
            return reject(c, "expected before it ", &reduce);
        if (sharded && !c->complete[stage])
            return reject(c, "expected before it ", &all);
    }
    if (c->at + 1 < c->plan->program[c->rank].n)
        return reject(c, "it must be the last action", NULL);
    return SMP_OK;
}

static smp_status check_action(checker *c, const smp_action *a)
{
    if ((unsigned)a->kind > SMP_ACTION_OPTIMIZE)
        return reject(c, "unknown kind of action", NULL);
    bool forward =
        a->kind == SMP_ACTION_F || a->kind == SMP_ACTION_SEND_F || a->kind == SMP_ACTION_RECV_F;
    bool shard = a->kind == SMP_ACTION_GATHER || a->kind == SMP_ACTION_DROP;
    if (!is_training(c) && !forward && !shard)
        return reject(c, "an inference plan has forwards only", NULL);
    if (a->kind == SMP_ACTION_OPTIMIZE)
        return check_optimize(c);
    if (a->chunk < 0 || a->chunk >= c->crossing.chunks)
        return reject(c, "the rank does not hold such a chunk", NULL);
    if (a->kind == SMP_ACTION_REDUCE)
        return check_reduce(c, a);
    if (!smp_action_has_microbatch(a->kind))
        return check_shard(c, a);
    if (a->microbatch < 0 || a->microbatch >= c->plan->microbatches)
        return reject(c, "the plan does not have such a micro-batch", NULL);
    smp__positions *p = positions(c, stage_at(c, a->chunk), a->microbatch);
    if (p->at[a->kind] >= 0)
        return reject(c, "it stands here a second time", NULL);
    p->at[a->kind] = c->at;
    if (smp_action_is_message(a->kind))
        return check_message(c, a, p);
    return smp_action_is_compute(a->kind) ? check_compute(c, a, p) : check_offload(c, a, p);
}

static smp_status lacks(const checker *c, smp_action_kind kind, int mb, int chunk)
{
    smp_text text = {0};
    smp_status status = smp_fail_at(smp_plan_program_where(c->plan, c->rank),
                                    "rank %d, after the last action (%lld): %s is missing", c->rank,
                                    (long long)c->plan->program[c->rank].n,
                                    formatted(made(kind, mb, chunk), &text));
    smp_text_free(&text);
    return status;
}

/* What the program of the rank lacks. A receive that lacks was found at its use. */
static smp_status check_complete(const checker *c)
{
    const smp_program *program = &c->plan->program[c->rank];
    for (int chunk = 0; chunk < c->crossing.chunks; chunk++) {
        int stage = stage_at(c, chunk);
        if (is_sharded(c, SMP_SHARD_WEIGHTS) && c->gathered[stage])
            return lacks(c, SMP_ACTION_DROP, -1, chunk);
        for (int mb = 0; mb < c->plan->microbatches; mb++) {
            const smp__positions *p = positions(c, stage, mb);
            if (p->at[SMP_ACTION_F] < 0)
                return lacks(c, SMP_ACTION_F, mb, chunk);
            if (is_training(c) && backward_at(p) < 0)
                return lacks(c, SMP_ACTION_B, mb, chunk);
            if (is_training(c) && mb >= c->accumulated[stage])
                return lacks(c, SMP_ACTION_W, mb, chunk);
            for (int kind = 0; kind < 2; kind++)
                if (c->crossing.sends[kind][stage] && p->at[smp__crossing_send(kind)] < 0)
                    return lacks(c, smp__crossing_send(kind), mb, chunk);
        }
    }
    if (is_training(c) && program->action[program->n - 1].kind != SMP_ACTION_OPTIMIZE)
        return lacks(c, SMP_ACTION_OPTIMIZE, -1, -1);
    return SMP_OK;
}

static smp_status check_rank(checker *c, int rank)
{
    const smp_program *program = &c->plan->program[rank];
    c->rank = rank;
    c->computed = 0;
    for (c->at = 0; c->at < program->n; c->at++) {
        SMP_TRY(check_action(c, &program->action[c->at]));
        c->computed += smp_action_is_compute(program->action[c->at].kind);
    }
    return check_complete(c);
}

/* Every pair has its forward (and backward): a program that is too short for that is refused before
 * memory in proportion to the numbers of the plan is asked for. */
static smp_status check_lengths(const smp_plan *plan)
{
    int64_t least = plan->training ? 2 : 1;
    for (int rank = 0; rank < plan->pipeline; rank++)
        if (plan->program[rank].n / least < (int64_t)plan->microbatches * plan->chunks)
            return smp_fail_at(
                smp_plan_program_where(plan, rank),
                "rank %d: %lld actions are too few for %d micro-batches in %d chunks", rank,
                (long long)plan->program[rank].n, plan->microbatches, plan->chunks);
    return SMP_OK;
}

/* The stages lie where the schedule puts them. */
static smp_status check_stages(const smp_plan *plan, const smp_flow *flow, int *stage_rank)
{
    const smp_schedule_kind *kind = smp_schedule_find(plan->schedule);
    smp_schedule_shape shape = smp_plan_shape(plan);
    if (!kind)
        return smp_fail_at(plan->place.schedule,
                           "schedule: got '%s', expected the name of a schedule",
                           plan->schedule ? plan->schedule : "");
    SMP_TRY(smp_schedule_check(kind, &shape));
    for (int stage = 0; stage < flow->n_stage; stage++) {
        int expected = smp_schedule_stage_rank(kind, &shape, stage);
        stage_rank[stage] = plan->stage[stage].rank;
        if (stage_rank[stage] != expected && !kind->any_placement)
            return smp_fail_at(smp_plan_stage_where(plan, stage),
                               "stage %d lies on rank %d, expected rank %d: schedule %s places the "
                               "stages so",
                               stage, stage_rank[stage], expected, kind->name);
    }
    return SMP_OK;
}

static smp_status check_counts(const smp_plan *plan, const smp_flow *flow)
{
    if (plan->pipeline < 1 || plan->chunks < 1 || plan->microbatches < 1)
        return smp_fail(SMP_ERR_INPUT,
                        "pipeline %d, chunks %d, micro-batches %d: expected at least 1 of each",
                        plan->pipeline, plan->chunks, plan->microbatches);
    if (plan->n_stage != flow->n_stage || (int64_t)plan->pipeline * plan->chunks != plan->n_stage)
        return smp_fail(SMP_ERR_INPUT, "the plan has %d stages, expected pipeline %d * chunks %d",
                        plan->n_stage, plan->pipeline, plan->chunks);
    if (!plan->program)
        return smp_fail(SMP_ERR_INPUT, "the plan has no programs");
    return check_lengths(plan);
}

static smp_status check_channels(checker *c)
{
    bool found;
    smp__overtaking o = {0};
    SMP_TRY(smp__channels_check(&c->crossing, c->plan->program, c->position, c->plan->microbatches,
                                &found, &o));
    if (!found)
        return SMP_OK;
    const smp_program *receiver = &c->plan->program[o.receiver];
    smp_text taken = {0}, blocked = {0}, what = {0};
    smp_text_append(&what,
                    "it overtakes: rank %d takes it at action %lld (%s), before action %lld (%s), "
                    "which is sent to it earlier; expected the order of the sends",
                    o.receiver, (long long)o.receive_at + 1,
                    formatted(receiver->action[o.receive_at], &taken), (long long)o.blocked_at + 1,
                    formatted(receiver->action[o.blocked_at], &blocked));
    c->rank = o.sender;
    c->at = o.send_at;
    smp_status status = reject(c, what.data ? what.data : "it overtakes", NULL);
    smp_text_free(&taken);
    smp_text_free(&blocked);
    smp_text_free(&what);
    return status;
}

static smp_status allocate(checker *c, smp_arena *arena)
{
    size_t n_stage = (size_t)c->plan->n_stage;
    size_t pairs = n_stage * (size_t)c->plan->microbatches;
    c->position = SMP_ARENA_NEW(arena, smp__positions, pairs);
    c->accumulated = SMP_ARENA_NEW(arena, int, n_stage);
    c->reduced = SMP_ARENA_NEW(arena, bool, n_stage);
    c->gathered = SMP_ARENA_NEW(arena, bool, n_stage);
    c->complete = SMP_ARENA_NEW(arena, bool, n_stage);
    c->stored = SMP_ARENA_NEW(arena, int64_t, c->plan->travels ? pairs : 0);
    if (!c->position || !c->accumulated || !c->reduced || !c->gathered || !c->complete ||
        !c->stored)
        return SMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < pairs; i++)
        for (int kind = 0; kind <= SMP_ACTION_LOAD; kind++)
            c->position[i].at[kind] = -1;
    return SMP_OK;
}

static smp_status verify_in(smp_arena *arena, const smp_plan *plan, const smp_flow *flow)
{
    checker c = {.plan = plan};
    int *stage_rank = SMP_ARENA_NEW(arena, int, (size_t)flow->n_stage);
    if (!stage_rank)
        return SMP_ERR_NO_MEMORY;
    SMP_TRY(check_stages(plan, flow, stage_rank));
    SMP_TRY(
        smp__crossing_build(arena, flow, stage_rank, plan->pipeline, plan->chunks, &c.crossing));
    SMP_TRY(allocate(&c, arena));
    for (int rank = 0; rank < plan->pipeline; rank++)
        SMP_TRY(check_rank(&c, rank));
    SMP_TRY(check_channels(&c));
    smp_status status =
        smp__rendezvous_check(&c.crossing, plan->program, c.position, plan->microbatches);
    smp_where where = smp_plan_program_where(plan, 0);
    if (where.file)
        smp_fail_context(status, "%s:%d:%d", where.file, where.line, where.column);
    return status;
}

smp_status smp_verify_programs(const smp_plan *plan, const smp_flow *flow)
{
    SMP_TRY(check_counts(plan, flow));
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? verify_in(arena, plan, flow) : SMP_ERR_NO_MEMORY;
    smp_arena_destroy(arena);
    return status;
}
