/* Choices of all ranks: each tells the others what it can choose from and what it has refused, and
 * strikes out of its own what others have refused of the same. What stands first after that is the
 * same everywhere, however the operators are spread over the ranks. */
#include "exec/job/agree_choices.h"

#include "graph/model/choice.h"

static smp_status gather(smp *s, const smp__choices *own, smp__choice **all, int *total)
{
    smp__choice *mine = calloc((size_t)own->n + 1, sizeof *mine);
    char *bytes = NULL;
    size_t n = 0;
    SMP_TRY(
        smp__comm_agree(&s->comm, mine ? SMP_OK : smp_fail_memory((size_t)own->n * sizeof *mine)));
    for (int i = 0; i < own->n; i++)
        mine[i] = *own->choice[i];
    smp_status status = smp__comm_gather(&s->comm, mine, (size_t)own->n * sizeof *mine, &bytes, &n);
    free(mine);
    *all = (smp__choice *)(void *)bytes;
    *total = (int)(n / sizeof *mine);
    return status;
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
