/* Machines of a job; see the header. */
#include "exec/save/machines.h"

#include <stdlib.h>
#include <string.h>

/* Where a rank stands in the plan. */
typedef struct seat {
    int pipeline, replica, tensor, copy_size;
} seat;

smp__sharers smp__sharers_all(const smp *s)
{
    const smp_comm *c = s->comm;
    const int copies = c->ddp_size / c->shard_size, copy = c->replica / c->shard_size;
    return (smp__sharers){
        copy * c->tensor_size + c->tensor_rank, copies * c->tensor_size, {copy, copies}};
}

static seat own_seat(const smp *s)
{
    const smp_comm *c = s->comm;
    return (seat){c->pipeline_rank, c->replica, c->tensor_rank, c->tensor_size * c->shard_size};
}

/* How many ranks of a copy are on this machine. */
static int count_copy(const smp *s, const smp__machines *m, const seat *seats, int copy)
{
    int n = 0;
    for (int rank = 0; rank < s->comm->world_size; rank++)
        n += m->of[rank] == m->own && seats[rank].pipeline == s->comm->pipeline_rank &&
             seats[rank].replica / s->comm->shard_size == copy;
    return n;
}

/* The copies of this rank's stages that are wholly on this machine share, if its own is one. Where
 * it is on several, each of them has a part of every copy. */
static smp__copies share_copies(const smp *s, const smp__machines *m, const seat *seats)
{
    const smp_comm *c = s->comm;
    const int own = c->replica / c->shard_size, size = c->tensor_size * c->shard_size;
    smp__copies copies = {0, 0};
    if (count_copy(s, m, seats, own) < size)
        return (smp__copies){0, 1};
    for (int copy = 0; copy < c->ddp_size / c->shard_size; copy++)
        if (count_copy(s, m, seats, copy) == size) {
            copies.index += copy < own;
            copies.count++;
        }
    return copies;
}

/* Ranks of this machine with this rank's part of its stages: by replica, then by device. */
static smp__sharers share(const smp *s, const smp__machines *m, const seat *seats)
{
    const smp_comm *c = s->comm;
    smp__sharers here = {0, 0, share_copies(s, m, seats)};
    for (int rank = 0; rank < c->world_size; rank++) {
        const seat *other = &seats[rank];
        if (m->of[rank] != m->own || other->pipeline != c->pipeline_rank ||
            other->replica % c->shard_size != c->shard_rank)
            continue;
        here.n++;
        here.turn += other->replica < c->replica ||
                     (other->replica == c->replica && other->tensor < c->tensor_rank);
    }
    return here;
}

/* lowest: of the machine of each rank. */
static smp_status number_machines(const smp *s, const int *lowest, smp__machines *m)
{
    const int ranks = s->comm->world_size;
    m->of = calloc(4 * (size_t)ranks, sizeof *m->of);
    if (!m->of)
        return smp_fail_memory(4 * (size_t)ranks * sizeof *m->of);
    m->number = m->of + ranks;
    m->first = m->number + ranks;
    m->size = m->first + ranks;
    for (int rank = 0; rank < ranks; rank++) { /* the lowest one comes first */
        if (lowest[rank] == rank)
            m->first[m->n++] = rank;
        m->of[rank] = lowest[rank] == rank ? m->n - 1 : m->of[lowest[rank]];
        m->number[rank] = m->size[m->of[rank]]++;
    }
    m->own = m->of[s->comm->world_rank];
    return SMP_OK;
}

smp_status smp__machines_open(smp *s, smp__machines *m)
{
    int *lowest = NULL;
    char *seats = NULL;
    size_t bytes;
    const seat own = own_seat(s);
    SMP_TRY(smp__comm_nodes(s->comm, &lowest));
    smp_status status = smp__comm_agree(s->comm, number_machines(s, lowest, m));
    free(lowest);
    if (status == SMP_OK)
        status = smp__comm_gather(s->comm, &own, sizeof own, &seats, &bytes);
    if (status == SMP_OK)
        m->here = share(s, m, (const seat *)(const void *)seats);
    free(seats);
    return status;
}

void smp__machines_free(smp__machines *m)
{
    free(m->of);
    *m = (smp__machines){0};
}

/* The number of spans of each rank, and its spans. */
static smp_status take_sets(const smp *s, const char *all, size_t total, smp__spans *sets)
{
    const char *at = all;
    for (int rank = 0; rank < s->comm->world_size; rank++) {
        int64_t n;
        memcpy(&n, at, sizeof n);
        at += sizeof n;
        for (int64_t i = 0; i < n; i++, at += sizeof(smp__span)) {
            smp__span span;
            memcpy(&span, at, sizeof span);
            SMP_TRY(smp__spans_add(&sets[rank], span.begin, span.end));
        }
    }
    return at == all + total ? SMP_OK : smp_fail(SMP_ERR_FAILED, "ranks say what they have amiss");
}

smp_status smp__machines_gather(smp *s, const smp__spans *own, smp__spans **out)
{
    const int64_t n = own->n;
    const size_t spans_bytes = (size_t)n * sizeof *own->at, ranks = (size_t)s->comm->world_size;
    char *said = malloc(sizeof n + spans_bytes), *all = NULL;
    smp__spans *sets = calloc(ranks, sizeof *sets);
    size_t total = 0;
    smp_status status = said && sets ? SMP_OK : smp_fail_memory(spans_bytes + ranks * sizeof *sets);
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK) {
        memcpy(said, &n, sizeof n);
        if (n > 0)
            memcpy(said + sizeof n, own->at, spans_bytes);
        status = smp__comm_gather(s->comm, said, sizeof n + spans_bytes, &all, &total);
    }
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, take_sets(s, all, total, sets));
    free(said);
    free(all);
    if (status == SMP_OK)
        *out = sets;
    else
        smp__machines_free_sets(s, sets);
    return status;
}

static void free_sets(smp__spans *sets, int n)
{
    for (int i = 0; sets && i < n; i++)
        smp__spans_free(&sets[i]);
    free(sets);
}

void smp__machines_free_sets(const smp *s, smp__spans *sets)
{
    free_sets(sets, s->comm->world_size);
}

void smp__machines_free_united(const smp__machines *m, smp__spans *united)
{
    free_sets(united, m->n);
}

smp_status smp__machines_unite(const smp *s, const smp__machines *m, const smp__spans *sets,
                               smp__spans **out)
{
    smp_status status = SMP_OK;
    smp__spans *united = calloc((size_t)m->n, sizeof *united);
    if (!united)
        return smp_fail_memory((size_t)m->n * sizeof *united);
    for (int rank = 0; rank < s->comm->world_size; rank++)
        for (int32_t i = 0; i < sets[rank].n && status == SMP_OK; i++)
            status =
                smp__spans_add(&united[m->of[rank]], sets[rank].at[i].begin, sets[rank].at[i].end);
    for (int i = 0; i < m->n; i++)
        smp__spans_join(&united[i]);
    if (status == SMP_OK)
        *out = united;
    else
        free_sets(united, m->n);
    return status;
}
