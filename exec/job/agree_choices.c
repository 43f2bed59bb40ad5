/* Choices of all ranks: each tells the others what it can choose from and what it has refused, and
 * strikes out of its own what others have refused of the same. What stands first after that is the
 * same everywhere, however the operators are spread over the ranks.
 *
 * A way that stands first now may never have run on a rank that had nothing against the one before
 * it. So the kernels run again where a way has changed anywhere, and are agreed upon again. Ways
 * are only struck out, so there are at most as many rounds as ways in all choices; commonly there
 * is one. */
#include "exec/job/agree_choices.h"

#include "exec/job/agree_gemms.h"
#include "exec/job/choose_device.h"
#include "exec/job/setup.h"
#include "graph/math/choice.h"

static smp__choices *choices_of(const smp *s)
{
    return s->device->choices ? s->device->choices(s->device_context) : NULL;
}

static smp_status gather(smp *s, const smp__choices *own, smp__choice **all, int *total)
{
    smp__choice *mine = calloc((size_t)own->n + 1, sizeof *mine);
    char *bytes = NULL;
    size_t n = 0;
    SMP_TRY(
        smp__comm_agree(s->comm, mine ? SMP_OK : smp_fail_memory((size_t)own->n * sizeof *mine)));
    for (int i = 0; i < own->n; i++)
        mine[i] = *own->choice[i];
    smp_status status = smp__comm_gather(s->comm, mine, (size_t)own->n * sizeof *mine, &bytes, &n);
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

static bool is_first(const smp__choice *all, int i)
{
    for (int k = 0; k < i; k++)
        if (strcmp(all[k].about, all[i].about) == 0)
            return false;
    return true;
}

/* As many lines as there is room for. */
static void note_ways(const smp__choice *all, int total, char *lines, size_t size)
{
    size_t used = 0;
    for (int i = 0; i < total; i++) {
        const int way = smp__choice_way(&all[i]);
        if (way >= SMP__CHOICE_NAMES || all[i].name[way][0] == '\0' || !is_first(all, i))
            continue;
        const int n =
            snprintf(lines + used, size - used, "product %s: %s\n", all[i].about, all[i].name[way]);
        if ((size_t)n >= size - used)
            break;
        used += (size_t)n;
    }
    lines[used] = '\0';
}

/* The first of all ranks, so that every rank has the same note. */
static smp_status note(smp *s)
{
    const smp__choices *list = choices_of(s);
    smp__choice *all = NULL;
    int total = 0;
    if (!list)
        return SMP_OK;
    SMP_TRY(gather(s, list, &all, &total));
    int i = 0;
    while (i < total && all[i].why[0] == '\0')
        i++;
    const size_t used = strlen(s->setup->found->device_note);
    if (i < total)
        snprintf(s->setup->found->device_note + used, sizeof s->setup->found->device_note - used,
                 "%s%s: %s", used > 0 ? "; " : "", all[i].about, all[i].why);
    note_ways(all, total, s->setup->found->ways, sizeof s->setup->found->ways);
    free(all);
    return SMP_OK;
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

/* After a run of the kernels, with the device idle: what one rank has refused nobody takes.
 * *changed: some rank takes another way than it has run. */
static smp_status agree(smp *s, bool *changed)
{
    smp__choices *list = choices_of(s);
    smp__choice *all = NULL;
    int total = 0, any;
    *changed = false;
    if (!list)
        return SMP_OK; /* the device is the same on all ranks */
    any = smp__choices_judge(list);
    SMP_TRY(gather(s, list, &all, &total));
    for (int i = 0; i < list->n; i++) {
        const int way = smp__choice_way(list->choice[i]);
        for (int k = 0; k < total; k++)
            join(list->choice[i], &all[k]);
        any |= smp__choice_way(list->choice[i]) != way;
    }
    free(all);
    SMP_TRY(smp__comm_agree(s->comm, check(list)));
    SMP_TRY(smp__comm_max(s->comm, &any));
    *changed = any;
    return SMP_OK;
}

smp_status smp__agree_kernels(smp *s, smp_status (*run)(smp *))
{
    bool again;
    SMP_TRY(smp__gemms_list(s));
    do {
        SMP_TRY(run(s));
        SMP_TRY(agree(s, &again));
        SMP_TRY(smp__gemms_settle(s, &again));
    } while (again);
    return note(s);
}
