/* Choices of all ranks: each tells the others what it can choose from and what it has refused, and
 * strikes out of its own what others have refused of the same. What stands first after that is the
 * same everywhere, however the operators are spread over the ranks. */
#include "exec/job/agree_choices.h"

#include "graph/model/choice.h"

/* What all ranks have, one after the other: *total of them. Buffers that MPI may still use after a
 * failure stay. */
static smp_status gather(smp *s, const smp__choices *own, smp__choice **all, int *total)
{
    smp_comm *comm = &s->comm;
    const int ranks = comm->world_size, each = (int)sizeof(smp__choice);
    int *counts = calloc(2 * (size_t)ranks + 1, sizeof *counts), *at = counts + ranks;
    smp__choice *mine = calloc((size_t)own->n + 1, sizeof *mine);
    smp_status status =
        counts && mine ? SMP_OK : smp_fail_memory((size_t)(own->n + ranks) * sizeof *mine);
    SMP_TRY(smp__comm_agree(comm, status));
    for (int i = 0; i < own->n; i++)
        mine[i] = *own->choice[i];
    const int bytes = own->n * each;
    SMP_TRY(smp__comm_finish(
        comm,
        MPI_Iallgather(&bytes, 1, MPI_INT, counts, 1, MPI_INT, comm->world, &comm->collective),
        "the other ranks to choose"));
    for (int rank = 0; rank < ranks; rank++)
        at[rank + 1] = at[rank] + counts[rank];
    *total = at[ranks] / each;
    *all = calloc((size_t)*total + 1, sizeof **all);
    status = *all ? SMP_OK : smp_fail_memory((size_t)*total * sizeof **all);
    SMP_TRY(smp__comm_agree(comm, status));
    SMP_TRY(smp__comm_finish(comm,
                             MPI_Iallgatherv(mine, bytes, MPI_BYTE, *all, counts, at, MPI_BYTE,
                                             comm->world, &comm->collective),
                             "the choices of the other ranks"));
    free(counts);
    free(mine);
    return SMP_OK;
}

/* A way that another rank does not have is refused there. */
static void join(smp__choice *own, const smp__choice *other)
{
    if (strcmp(own->about, other->about) != 0)
        return;
    own->refused |= other->refused;
    if (other->ways < own->ways)
        own->ways = other->ways;
    if (own->why[0] == '\0')
        memcpy(own->why, other->why, sizeof own->why);
}

/* The first of all ranks, so that every rank has the same note. */
static void note(smp *s, const smp__choice *all, int total)
{
    for (int i = 0; i < total; i++)
        if (all[i].why[0] != '\0') {
            const size_t used = strlen(s->device_note);
            snprintf(s->device_note + used, sizeof s->device_note - used, "%s%s: %s",
                     used > 0 ? "; " : "", all[i].about, all[i].why);
            return;
        }
}

static smp_status check(const smp__choices *list)
{
    for (int i = 0; i < list->n; i++) {
        const smp__choice *c = list->choice[i];
        if (smp__choice_way(c) == c->ways)
            return smp_fail(SMP_ERR_FAILED, "%s: none of %d ways to compute it is left: %s",
                            c->about, c->ways, c->why);
    }
    return SMP_OK;
}

smp_status smp__agree_choices(smp *s)
{
    smp__choices *list = s->device->choices ? s->device->choices(s->device_context) : NULL;
    smp__choice *all = NULL;
    int total = 0;
    if (!list)
        return SMP_OK; /* the device is the same on all ranks */
    smp__choices_judge(list);
    SMP_TRY(gather(s, list, &all, &total));
    for (int i = 0; i < list->n; i++)
        for (int k = 0; k < total; k++)
            join(list->choice[i], &all[k]);
    note(s, all, total);
    free(all);
    return smp__comm_agree(&s->comm, check(list));
}
