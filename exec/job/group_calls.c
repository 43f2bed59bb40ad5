/* Calls of a program over a group of ranks: barrier, broadcast, all-gather, all-reduce, messages.
 *
 * Before anything moves every member tells the others what it calls, with which arguments, and what
 * is wrong with them; so all see alike that calls do not match, nothing has moved, and the job goes
 * on. Bytes pass in pieces through memory of the job: after a failure MPI may still touch that, but
 * never what is the caller's. They are waited for as patiently as all else between steps.
 *
 * An all-reduce hands every member one part of a piece, which it adds up by rising rank and gives
 * to all: each element is made once and copied, so it has the same bits everywhere, and of the
 * bytes of an array about twice as many cross as it has, whatever the number of ranks (Rabenseifner
 * 2004, reduce-scatter and all-gather). */
#include "exec/job/group_calls.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/job/setup.h"

enum {
    MESSAGE_TAG = 2, /* in comm->world; HAND_TAG of comm_collective.c is another */
    TYPES = SMP_TYPE_INT64 + 1,
    COMBINES = SMP_COMBINE_MAX + 1,
    WRONG_BYTES = 128
};

/* A call with the arguments that all members have to pass alike; of a message: its two ends. */
typedef struct group_call {
    int32_t kind; /* of `kinds` */
    int32_t root; /* -1: none */
    int32_t type, combine;
    int64_t bytes;
    char wrong[WRONG_BYTES]; /* "": the arguments are right */
} group_call;

enum { BARRIER, BROADCAST, ALL_GATHER, ALL_REDUCE, SEND, RECEIVE };

static const char *const kinds[] = {"smp_barrier",    "smp_broadcast", "smp_all_gather",
                                    "smp_all_reduce", "smp_send",      "smp_receive"};
static const char *const group_names[] = {"SMP_WORLD", "SMP_PIPELINE", "SMP_DDP", "SMP_TENSOR"};
static const char *const type_names[] = {"float", "double", "int32", "int64"};
static const int type_bytes[] = {4, 8, 4, 8};
static const char *const combine_names[] = {"sum", "min", "max"};

struct smp__group_memory {
    MPI_Request request;  /* a second one beside comm.collective */
    group_call own, *all; /* [world_size] */
    char *piece;          /* [piece_bytes] */
    int64_t piece_bytes;  /* two values of eight bytes for every rank, at least */
};

/* A call in progress. */
typedef struct member {
    smp *s;
    struct smp__group_memory *memory;
    MPI_Comm ranks;
    smp_group group;
    int rank, size;
    const char *call;
} member;

smp_status smp__group_calls_build(smp *s)
{
    const size_t ranks = (size_t)s->comm->world_size;
    struct smp__group_memory *memory = s->setup->group_calls = calloc(1, sizeof(*memory));
    if (!memory)
        return smp_fail_memory(sizeof(*memory));
    memory->piece_bytes = SMP_SHARE_BYTES + 16 * (int64_t)ranks;
    memory->all = calloc(ranks, sizeof(*memory->all));
    memory->piece = malloc((size_t)memory->piece_bytes);
    if (!memory->all || !memory->piece)
        return smp_fail_memory(ranks * sizeof(*memory->all) + (size_t)memory->piece_bytes);
    return SMP_OK;
}

void smp__group_calls_free(smp *s)
{
    if (!s->setup->group_calls)
        return;
    free(s->setup->group_calls->all);
    free(s->setup->group_calls->piece);
    free(s->setup->group_calls);
}

int smp_local_rank(const smp *s)
{
    return s->comm->node_rank;
}

int smp_local_size(const smp *s)
{
    return s->comm->node_size;
}

/* What this rank alone can see; nobody else is told. */
static smp_status open_member(smp *s, smp_group group, int kind, member *m)
{
    if (!s)
        return smp_fail(SMP_ERR_INPUT, "%s: a NULL argument", kinds[kind]);
    if ((int)group < SMP_WORLD || group > SMP_TENSOR)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: group %d: expected SMP_WORLD, SMP_PIPELINE, SMP_DDP or SMP_TENSOR",
                        kinds[kind], (int)group);
    SMP_TRY(smp__job_usable(s));
    const MPI_Comm ranks[] = {s->comm->world, s->comm->pipeline, s->comm->ddp, s->comm->tensor};
    *m = (member){.s = s,
                  .memory = s->setup->group_calls,
                  .ranks = ranks[group],
                  .group = group,
                  .rank = smp_rank(s, group),
                  .size = smp_size(s, group),
                  .call = kinds[kind]};
    smp__place_doing(s->place, m->call);
    return SMP_OK;
}

static smp_status complete(smp_comm *comm, int started, const char *what)
{
    const smp_status status = smp__comm_check(started, what);
    return status == SMP_OK ? smp__comm_finish_request(comm, &comm->collective, what)
                            : smp__comm_notify(comm, status);
}

/* Only what all ranks start counts in how far a rank has come. */
static smp_status finish(const member *m, int started)
{
    char what[96];
    smp_comm *comm = m->s->comm;
    snprintf(what, sizeof what, "the other ranks of %s in %s", group_names[m->group], m->call);
    return m->group == SMP_WORLD ? smp__comm_finish(comm, started, what)
                                 : complete(comm, started, what);
}

/* "smp_broadcast of 8 bytes from rank 1" */
static void describe(const group_call *call, char *text, size_t size)
{
    if (call->kind == BARRIER)
        snprintf(text, size, "%s", kinds[BARRIER]);
    else if (call->kind == BROADCAST)
        snprintf(text, size, "%s of %" PRId64 " bytes from rank %d", kinds[BROADCAST], call->bytes,
                 (int)call->root);
    else if (call->kind == ALL_REDUCE)
        snprintf(text, size, "%s (%s) of %" PRId64 " %s", kinds[ALL_REDUCE],
                 combine_names[call->combine], call->bytes / type_bytes[call->type],
                 type_names[call->type]);
    else
        snprintf(text, size, "%s of %" PRId64 " bytes", kinds[call->kind], call->bytes);
}

static bool same(const group_call *a, const group_call *b)
{
    return a->kind == b->kind && a->root == b->root && a->type == b->type &&
           a->combine == b->combine && a->bytes == b->bytes;
}

/* All members have the same list, so all find the same. */
static smp_status compare(const member *m)
{
    const group_call *all = m->memory->all;
    char first[96], other[96];
    for (int i = 0; i < m->size; i++)
        if (all[i].wrong[0])
            return smp_fail(SMP_ERR_INPUT, "%s over %s, rank %d of %d: %s", kinds[all[i].kind],
                            group_names[m->group], i, m->size, all[i].wrong);
    for (int i = 1; i < m->size; i++) {
        if (same(&all[0], &all[i]))
            continue;
        describe(&all[0], first, sizeof first);
        describe(&all[i], other, sizeof other);
        return smp_fail(SMP_ERR_INPUT, "ranks of %s call different things: rank 0 %s, rank %d %s",
                        group_names[m->group], first, i, other);
    }
    return SMP_OK;
}

/* The members meet. Who returns knows that all have come. */
static smp_status meet(const member *m, const group_call *call)
{
    struct smp__group_memory *memory = m->memory;
    memory->own = *call;
    SMP_TRY(
        finish(m, MPI_Iallgather(&memory->own, sizeof memory->own, MPI_BYTE, memory->all,
                                 sizeof memory->own, MPI_BYTE, m->ranks, &m->s->comm->collective)));
    return compare(m);
}

static void check_array(group_call *call, const void *data, int64_t bytes)
{
    call->bytes = bytes;
    if (bytes < 0)
        snprintf(call->wrong, WRONG_BYTES, "%" PRId64 " bytes: expected 0 or more", bytes);
    else if (bytes > 0 && !data)
        snprintf(call->wrong, WRONG_BYTES, "a NULL array of %" PRId64 " bytes", bytes);
}

static void check_member(const member *m, group_call *call, int rank, const char *what)
{
    call->root = rank;
    if (rank < 0 || rank >= m->size)
        snprintf(call->wrong, WRONG_BYTES, "%s rank %d: expected 0 to %d", what, rank, m->size - 1);
}

smp_status smp_barrier(smp *s, smp_group group)
{
    member m;
    SMP_TRY(open_member(s, group, BARRIER, &m));
    return smp__job_leave(s, meet(&m, &(group_call){.kind = BARRIER}));
}

static smp_status broadcast(const member *m, int root, char *data, int64_t bytes)
{
    struct smp__group_memory *memory = m->memory;
    for (int64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < memory->piece_bytes ? bytes - at : memory->piece_bytes;
        if (m->rank == root)
            memcpy(memory->piece, data + at, (size_t)n);
        SMP_TRY(finish(m, MPI_Ibcast(memory->piece, (int)n, MPI_BYTE, root, m->ranks,
                                     &m->s->comm->collective)));
        if (m->rank != root)
            memcpy(data + at, memory->piece, (size_t)n);
    }
    return SMP_OK;
}

smp_status smp_broadcast(smp *s, smp_group group, int root, void *data, int64_t bytes)
{
    member m;
    group_call call = {.kind = BROADCAST};
    SMP_TRY(open_member(s, group, BROADCAST, &m));
    check_array(&call, data, bytes);
    check_member(&m, &call, root, "from");
    smp_status status = meet(&m, &call);
    if (status == SMP_OK && m.size > 1)
        status = broadcast(&m, root, data, bytes);
    return smp__job_leave(s, status);
}

/* A piece holds what every member has of it, then the own part. */
static smp_status gather(const member *m, const char *own, int64_t bytes, char *all)
{
    struct smp__group_memory *memory = m->memory;
    const int64_t most = memory->piece_bytes / (m->size + 1);
    for (int64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < most ? bytes - at : most;
        char *part = memory->piece + m->size * n;
        memcpy(part, own + at, (size_t)n);
        SMP_TRY(finish(m, MPI_Iallgather(part, (int)n, MPI_BYTE, memory->piece, (int)n, MPI_BYTE,
                                         m->ranks, &m->s->comm->collective)));
        for (int i = 0; i < m->size; i++)
            memcpy(all + i * bytes + at, memory->piece + i * n, (size_t)n);
    }
    return SMP_OK;
}

smp_status smp_all_gather(smp *s, smp_group group, const void *own, int64_t bytes, void *all)
{
    member m;
    group_call call = {.kind = ALL_GATHER};
    SMP_TRY(open_member(s, group, ALL_GATHER, &m));
    check_array(&call, own ? all : NULL, bytes);
    if (bytes > INT64_MAX / m.size)
        snprintf(call.wrong, WRONG_BYTES, "%" PRId64 " bytes of each rank are too many", bytes);
    smp_status status = meet(&m, &call);
    if (status == SMP_OK)
        status = gather(&m, own, bytes, all);
    return smp__job_leave(s, status);
}

/* a = a and b. Whole numbers wrap around; a value that is not a number stays one. */
#define COMBINE(name, type, sum_type)                                                              \
    static void combine_##name(smp_combine how, void *a, const void *b, int64_t n)                 \
    {                                                                                              \
        type *to = a;                                                                              \
        const type *from = b;                                                                      \
        for (int64_t i = 0; i < n && how == SMP_COMBINE_SUM; i++)                                  \
            to[i] = (type)((sum_type)to[i] + (sum_type)from[i]);                                   \
        for (int64_t i = 0; i < n && how == SMP_COMBINE_MIN; i++)                                  \
            to[i] = to[i] != to[i] || to[i] <= from[i] ? to[i] : from[i];                          \
        for (int64_t i = 0; i < n && how == SMP_COMBINE_MAX; i++)                                  \
            to[i] = to[i] != to[i] || to[i] >= from[i] ? to[i] : from[i];                          \
    }
COMBINE(float, float, float)
COMBINE(double, double, double)
COMBINE(int32, int32_t, uint32_t)
COMBINE(int64, int64_t, uint64_t)

static void (*const combine[])(smp_combine how, void *a, const void *b, int64_t n) = {
    combine_float, combine_double, combine_int32, combine_int64};

/* One piece: the parts of all members in its front half, what they have of the own part in the
 * other. Behind the array's end a part holds zeroes. */
static smp_status reduce_piece(const member *m, const group_call *call, char *values, int64_t n)
{
    const int64_t bytes = type_bytes[call->type], part = (n / bytes + m->size - 1) / m->size;
    const int64_t part_bytes = part * bytes;
    char *front = m->memory->piece, *back = front + m->size * part_bytes;
    memcpy(front, values, (size_t)n);
    memset(front + n, 0, (size_t)(m->size * part_bytes - n));
    SMP_TRY(finish(m, MPI_Ialltoall(front, (int)part_bytes, MPI_BYTE, back, (int)part_bytes,
                                    MPI_BYTE, m->ranks, &m->s->comm->collective)));
    for (int i = 1; i < m->size; i++)
        combine[call->type]((smp_combine)call->combine, back, back + i * part_bytes, part);
    SMP_TRY(finish(m, MPI_Iallgather(back, (int)part_bytes, MPI_BYTE, front, (int)part_bytes,
                                     MPI_BYTE, m->ranks, &m->s->comm->collective)));
    memcpy(values, front, (size_t)n);
    return SMP_OK;
}

static smp_status all_reduce(const member *m, const group_call *call, char *values)
{
    const int64_t each = 2 * (int64_t)m->size * type_bytes[call->type];
    const int64_t most = m->memory->piece_bytes / each * (each / 2);
    for (int64_t at = 0, n; at < call->bytes; at += n) {
        n = call->bytes - at < most ? call->bytes - at : most;
        SMP_TRY(reduce_piece(m, call, values + at, n));
    }
    return SMP_OK;
}

/* Type and kind come from a program: anything may stand there. */
static void check_reduce(group_call *call, int type, int how, const void *values, int64_t count)
{
    if (type < 0 || type >= TYPES) {
        snprintf(call->wrong, WRONG_BYTES, "type %d: expected SMP_TYPE_FLOAT to SMP_TYPE_INT64",
                 type);
        return;
    }
    if (how < 0 || how >= COMBINES) {
        snprintf(call->wrong, WRONG_BYTES, "combine %d: expected SMP_COMBINE_SUM, MIN or MAX", how);
        return;
    }
    call->type = type;
    call->combine = how;
    if (count < 0 || count > INT64_MAX / type_bytes[type])
        snprintf(call->wrong, WRONG_BYTES, "%" PRId64 " values: expected 0 or more, that fit",
                 count);
    else
        check_array(call, values, count * type_bytes[type]);
}

smp_status smp_all_reduce(smp *s, smp_group group, smp_type type, smp_combine how, void *values,
                          int64_t count)
{
    member m;
    group_call call = {.kind = ALL_REDUCE};
    SMP_TRY(open_member(s, group, ALL_REDUCE, &m));
    check_reduce(&call, (int)type, (int)how, values, count);
    smp_status status = meet(&m, &call);
    if (status == SMP_OK && m.size > 1)
        status = all_reduce(&m, &call, values);
    return smp__job_leave(s, status);
}

static int rank_in_world(const member *m, int rank)
{
    MPI_Group group, world;
    int found = rank;
    MPI_Comm_group(m->ranks, &group);
    MPI_Comm_group(m->s->comm->world, &world);
    MPI_Group_translate_ranks(group, 1, &rank, world, &found);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    return found;
}

static smp_status wait_for_peer(const member *m, int started, int peer)
{
    char what[96];
    snprintf(what, sizeof what, "rank %d of %s in %s", peer, group_names[m->group], m->call);
    return complete(m->s->comm, started, what);
}

/* The two ends tell each other what they call, and find the same in it. */
static smp_status meet_peer(const member *m, const group_call *call, int peer, int world)
{
    struct smp__group_memory *memory = m->memory;
    smp_comm *comm = m->s->comm;
    group_call *other = &memory->all[0];
    memory->own = *call;
    int started = MPI_Isend(&memory->own, sizeof *call, MPI_BYTE, world, MESSAGE_TAG, comm->world,
                            &memory->request);
    if (started == MPI_SUCCESS)
        started = MPI_Irecv(other, sizeof *call, MPI_BYTE, world, MESSAGE_TAG, comm->world,
                            &comm->collective);
    SMP_TRY(wait_for_peer(m, started, peer));
    SMP_TRY(smp__comm_finish_request(comm, &memory->request, m->call));
    const group_call *const wrong = call->wrong[0] ? call : other->wrong[0] ? other : NULL;
    if (wrong)
        return smp_fail(SMP_ERR_INPUT, "%s over %s, rank %d of %d: %s", kinds[wrong->kind],
                        group_names[m->group], wrong == call ? m->rank : peer, m->size,
                        wrong->wrong);
    if (other->kind != call->kind && other->bytes == call->bytes)
        return SMP_OK;
    const group_call *low = m->rank < peer ? call : other, *high = low == call ? other : call;
    return smp_fail(SMP_ERR_INPUT,
                    "two ranks of %s do not meet: rank %d %s of %" PRId64
                    " bytes, rank %d %s of %" PRId64 " bytes",
                    group_names[m->group], m->rank < peer ? m->rank : peer, kinds[low->kind],
                    low->bytes, m->rank < peer ? peer : m->rank, kinds[high->kind], high->bytes);
}

/* `from` or `to` is NULL. */
static smp_status pass(const member *m, int peer, int world, const char *from, char *to,
                       int64_t bytes)
{
    struct smp__group_memory *memory = m->memory;
    smp_comm *comm = m->s->comm;
    for (int64_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < memory->piece_bytes ? bytes - at : memory->piece_bytes;
        if (from)
            memcpy(memory->piece, from + at, (size_t)n);
        const int started = from ? MPI_Isend(memory->piece, (int)n, MPI_BYTE, world, MESSAGE_TAG,
                                             comm->world, &comm->collective)
                                 : MPI_Irecv(memory->piece, (int)n, MPI_BYTE, world, MESSAGE_TAG,
                                             comm->world, &comm->collective);
        SMP_TRY(wait_for_peer(m, started, peer));
        if (to)
            memcpy(to + at, memory->piece, (size_t)n);
    }
    return SMP_OK;
}

static smp_status message(smp *s, smp_group group, int kind, int peer, const void *from, void *to,
                          int64_t bytes)
{
    member m;
    group_call call = {.kind = kind};
    SMP_TRY(open_member(s, group, kind, &m));
    check_member(&m, &call, peer, kind == SEND ? "to" : "from");
    if (!call.wrong[0] && peer == m.rank)
        snprintf(call.wrong, WRONG_BYTES, "a message of rank %d to itself", peer);
    if (call.wrong[0]) /* there is nobody to tell */
        return smp__job_leave(
            s, smp_fail(SMP_ERR_INPUT, "%s over %s: %s", m.call, group_names[group], call.wrong));
    check_array(&call, kind == SEND ? from : to, bytes);
    const int world = rank_in_world(&m, peer);
    smp_status status = meet_peer(&m, &call, peer, world);
    if (status == SMP_OK)
        status = pass(&m, peer, world, from, to, bytes);
    return smp__job_leave(s, status);
}

smp_status smp_send(smp *s, smp_group group, int to, const void *data, int64_t bytes)
{
    return message(s, group, SEND, to, data, NULL, bytes);
}

smp_status smp_receive(smp *s, smp_group group, int from, void *data, int64_t bytes)
{
    return message(s, group, RECEIVE, from, NULL, data, bytes);
}
