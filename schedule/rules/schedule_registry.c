/* The table of schedules, made of SMP_SCHEDULE_LIST, and what follows from a schedule's properties:
 * names and aliases, the defaults of what it may leave out, what it can run. */
#include <string.h>

#include "schedule/rules/schedule.h"

#define SMP_SCHEDULE_ENTRY(id) &smp__schedule_##id,
static const smp_schedule_kind *const rules[] = {SMP_SCHEDULE_LIST(SMP_SCHEDULE_ENTRY) NULL};
#undef SMP_SCHEDULE_ENTRY

enum { N_RULE = sizeof rules / sizeof rules[0] - 1 };

const smp_schedule_kind *const *smp_schedules(void)
{
    return rules;
}

static bool has_name(const smp_schedule_kind *kind, const char *name)
{
    return strcmp(kind->name, name) == 0 || (kind->alias && strcmp(kind->alias, name) == 0);
}

const smp_schedule_kind *smp_schedule_find(const char *name)
{
    for (int i = 0; name && i < N_RULE; i++)
        if (has_name(rules[i], name))
            return rules[i];
    return name && has_name(&smp__schedule_auto, name) ? &smp__schedule_auto : NULL;
}

const char *smp_schedule_name(const char *name)
{
    const smp_schedule_kind *kind = smp_schedule_find(name);
    return kind ? kind->name : name;
}

/* The names of those that `which` is true of; NULL: of all. */
static void put_names(smp_text *text, bool (*which)(const smp_schedule_kind *kind))
{
    bool first = true;
    for (int i = 0; i < N_RULE; i++) {
        const smp_schedule_kind *kind = rules[i];
        if (which && !which(kind))
            continue;
        smp_text_append(text, "%s%s", first ? "" : ", ", kind->name);
        if (kind->alias)
            smp_text_append(text, " (%s)", kind->alias);
        first = false;
    }
}

void smp_schedule_put_names(smp_text *text)
{
    put_names(text, NULL);
    smp_text_append(text, ", or auto");
}

static void put_nearest(smp_text *text, const char *name)
{
    const char *names[2 * N_RULE];
    size_t n = 0;
    for (int i = 0; i < N_RULE; i++) {
        names[n++] = rules[i]->name;
        if (rules[i]->alias)
            names[n++] = rules[i]->alias;
    }
    const char *nearest = smp_nearest(name, names, n);
    if (nearest)
        smp_text_append(text, "; nearest is '%s'", nearest);
}

smp_status smp_schedule_fail_name(const char *what, const char *name)
{
    smp_text names = {0};
    smp_schedule_put_names(&names);
    put_nearest(&names, name);
    smp_status status = names.failed ? SMP_ERR_NO_MEMORY
                                     : smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected one of %s",
                                                what, name, names.data);
    smp_text_free(&names);
    return status;
}

static bool takes_active(const smp_schedule_kind *kind)
{
    return kind->takes_active;
}

static bool trains(const smp_schedule_kind *kind)
{
    return !kind->no_training;
}

static bool infers(const smp_schedule_kind *kind)
{
    return !kind->no_inference;
}

/* The reason, then "expected one of" those that can. */
static smp_status fail_others(const smp_schedule_kind *kind, const char *why,
                              bool (*which)(const smp_schedule_kind *kind))
{
    smp_text names = {0};
    put_names(&names, which);
    smp_status status = names.failed ? SMP_ERR_NO_MEMORY
                                     : smp_fail(SMP_ERR_INPUT, "schedule %s %s: expected one of %s",
                                                kind->name, why, names.data ? names.data : "");
    smp_text_free(&names);
    return status;
}

smp_status smp_schedule_check(const smp_schedule_kind *kind, const smp_schedule_shape *shape)
{
    if (shape->training && kind->no_training)
        return fail_others(kind, "has no backward, and a model of mode: training needs one",
                           trains);
    if (!shape->training && kind->no_inference)
        return fail_others(kind, "is one of backwards, and a model of mode: inference has none",
                           infers);
    return kind->check ? kind->check(shape) : SMP_OK;
}

smp_status smp_schedule_check_active(const smp_schedule_kind *kind, const smp_schedule_shape *shape)
{
    int64_t most = (int64_t)shape->active * shape->chunks;
    for (int r = 0; r < shape->pipeline && most > 0; r++) {
        int live = kind->live(shape, r);
        if (live <= most)
            continue;
        smp_text names = {0};
        put_names(&names, takes_active);
        smp_fail(SMP_ERR_INPUT,
                 "schedule %s keeps %.4g micro-batches alive on rank %d of %d, expected at most "
                 "%d: use %s, which takes any bound, or allow %d",
                 kind->name, (double)live / shape->chunks, r, shape->pipeline, shape->active,
                 names.data ? names.data : "another", (live + shape->chunks - 1) / shape->chunks);
        smp_text_free(&names);
        return SMP_ERR_INPUT;
    }
    return SMP_OK;
}

int smp_schedule_stage_rank(const smp_schedule_kind *kind, const smp_schedule_shape *shape,
                            int stage)
{
    return kind->stage_rank ? kind->stage_rank(shape, stage) : stage % shape->pipeline;
}
