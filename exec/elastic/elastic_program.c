/* A program under smp-run --elastic: smp_elastic_join to smp_elastic_end. The supervisor tells it
 * what is to be run by its environment, and reads the marks of its steps in the file that gets
 * rank 0's standard output. By itself the program has no such file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/checkpoint/checkpoint_folder.h"
#include "exec/elastic/supervised.h"
#include "exec/job/on_signal.h"
#include "exec/job/setup.h"
#include "exec/save/checkpoint_keep.h"
#include "exec/save/checkpoint_part.h"
#include "exec/save/checkpoint_save.h"
#include "exec/state/handle.h"
#include "exec/step/step_sums.h"

struct smp__elastic {
    const char *checkpoint; /* NULL: nothing is saved */
    bool marks;             /* this rank tells a supervisor of its steps */
    bool ends;              /* the program knows that it is to end */
};

/* A variable that the supervisor has set. */
static smp_status read_variable(const char *name, const char **value)
{
    *value = getenv(name);
    if (*value && **value != '\0')
        return SMP_OK;
    return smp_fail(SMP_ERR_INPUT,
                    "%s: is not set, but " SMP__ELASTIC " is: expected all that smp-run --elastic "
                    "gives its ranks, or none of it",
                    name);
}

static smp_status read_keeping(smp_runtime_options *o)
{
    const char *every;
    SMP_TRY(read_variable(SMP__ELASTIC_KEEP_EVERY, &every));
    if (!smp_parse_int(every, &o->keep_every) || o->keep_every < 0)
        return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected a number of steps",
                        SMP__ELASTIC_KEEP_EVERY, every);
    return o->keep_every > 0 ? read_variable(SMP__ELASTIC_KEEP_IN, &o->keep_in) : SMP_OK;
}

/* Seconds, where they were given. */
static smp_status read_timeouts(smp_runtime_options *o)
{
    const struct {
        const char *name;
        double *s;
    } limit[] = {{SMP__ELASTIC_TIMEOUT, &o->timeout_s},
                 {SMP__ELASTIC_TIMEOUT_START, &o->timeout_start_s},
                 {SMP__ELASTIC_TIMEOUT_SAVE, &o->timeout_save_s}};
    for (size_t i = 0; i < sizeof limit / sizeof limit[0]; i++) {
        const char *text = getenv(limit[i].name);
        if (text && *text != '\0' && (!smp_parse_double(text, limit[i].s) || !(*limit[i].s >= 0.0)))
            return smp_fail(SMP_ERR_INPUT, "%s: got '%s', expected a number of seconds",
                            limit[i].name, text);
    }
    return SMP_OK;
}

smp_status smp_elastic_join(smp_options *options, const char **checkpoint)
{
    const char *version = getenv(SMP__ELASTIC), *device = getenv(SMP__ELASTIC_DEVICE), *folder;
    if (!options || !checkpoint)
        return smp_fail(SMP_ERR_INPUT, "smp_elastic_join: a NULL argument");
    if (!version) {
        *checkpoint = NULL;
        return SMP_OK;
    }
    if (strcmp(version, SMP__ELASTIC_VERSION) != 0)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got '%s', expected %s: smp-run is of another version than libsmp",
                        SMP__ELASTIC, version, SMP__ELASTIC_VERSION);
    smp_options joined = *options;
    joined.model = NULL;
    SMP_TRY(read_variable(SMP__ELASTIC_PLAN, &joined.plan));
    SMP_TRY(read_variable(SMP__ELASTIC_CHECKPOINT, &folder));
    SMP_TRY(read_variable(SMP__ELASTIC_ROWS, &joined.runtime.rows));
    SMP_TRY(read_keeping(&joined.runtime));
    SMP_TRY(read_timeouts(&joined.runtime));
    if (device && *device != '\0')
        joined.runtime.device = device;
    smp__supervised_begin();
    smp__on_signal(NULL, true); /* a signal that comes before there is a job counts */
    *options = joined;
    *checkpoint = folder;
    return SMP_OK;
}

/* Lines come one by one: a rank that is killed owes none that is printed. */
static smp_status move_output(const smp *s)
{
    const char *rows = s->options->runtime.rows;
    if (!rows || s->comm->world_rank != 0)
        return SMP_OK;
    fflush(stdout);
    SMP_TRY(smp__supervised_output(SMP__ELASTIC_ROWS, rows));
    setvbuf(stdout, NULL, _IOLBF, 0);
    return SMP_OK;
}

static smp_status open_elastic(smp *s, const char *checkpoint)
{
    struct smp__elastic *e = SMP_ARENA_NEW(s->setup->strings, struct smp__elastic, 1);
    char *path = checkpoint ? smp_arena_strdup(s->setup->strings, checkpoint) : NULL;
    if (!e || (checkpoint && !path))
        return SMP_ERR_NO_MEMORY;
    if (checkpoint && !s->graph->training)
        return smp_fail(SMP_ERR_INPUT, "smp_elastic_begin: the plan is for inference");
    *e = (struct smp__elastic){.checkpoint = path,
                               .marks = s->options->runtime.rows && s->comm->world_rank == 0};
    SMP_TRY(move_output(s));
    if (path && s->comm->world_rank == 0) {
        SMP_TRY(smp__checkpoint_folder_make(path));
        SMP_TRY(smp__save_lock(s, path));
    }
    s->setup->elastic = e;
    return SMP_OK;
}

/* What was saved last, or kept after that; nothing: the job begins. */
static smp_status load_newest(smp *s)
{
    const char *path = s->setup->elastic->checkpoint;
    int saved = path && s->comm->world_rank == 0 && smp__checkpoint_exists(path);
    bool kept = false;
    SMP_TRY(smp__comm_max(s->comm, &saved));
    if (path)
        SMP_TRY(smp__keep_has_state(s, &kept));
    if (!saved && !kept)
        return SMP_OK;
    double fetched;
    SMP_TRY(smp_load(s, path));
    SMP_TRY(smp__keep_fetched(s, &fetched));
    if (s->setup->elastic->marks)
        smp__supervised_loaded(smp__keep_was_loaded(s), fetched);
    return SMP_OK;
}

smp_status smp_elastic_begin(smp *s, const char *checkpoint)
{
    if (!s || (checkpoint && *checkpoint == '\0'))
        return smp_fail(SMP_ERR_INPUT, "smp_elastic_begin: no job, or an empty path");
    SMP_TRY(smp__job_usable(s));
    if (s->setup->elastic)
        return smp_fail(SMP_ERR_INPUT, "smp_elastic_begin: this job has begun already");
    SMP_TRY(smp__comm_agree(s->comm, open_elastic(s, checkpoint)));
    if (checkpoint)
        smp__on_signal(s, true);
    s->saving->tells = true;
    return load_newest(s);
}

smp_status smp_elastic_step(smp *s, const smp_step_result *done, int *ends)
{
    if (!s || !done || !ends)
        return smp_fail(SMP_ERR_INPUT, "smp_elastic_step: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    if (!s->saving->untold || done->step != s->step)
        return smp_fail(SMP_ERR_INPUT, "smp_elastic_step: %s",
                        s->saving->tells ? "this is not the result of the last step, told once"
                                         : "smp_elastic_begin comes first");
    s->saving->untold = false;
    if (s->setup->elastic->marks)
        smp__supervised_mark(done->step, done->loss);
    const smp_status status = smp__keep_deferred(s);
    if (status != SMP_OK) {
        s->broken = true;
        return smp__comm_notify(s->comm, status);
    }
    *ends = s->setup->elastic->ends = smp__step_sums_end_asked(s);
    return SMP_OK;
}

/* The state of the last step gets to the folder. A save before it may have failed, or gone
 * elsewhere; none after a load: that was from there. */
static smp_status save_last(smp *s)
{
    const char *path = s->setup->elastic->checkpoint;
    const char *saved_to = s->saving->directory;
    const smp_status before = smp_save_wait(s);
    if (before != SMP_OK && s->comm->failed)
        return before;
    const bool there = !s->saving->failed && s->saving->complete_step == s->step &&
                       (*saved_to == '\0' || (path && strcmp(saved_to, path) == 0));
    return !path || s->step == 0 || there ? SMP_OK : smp_save(s, path);
}

smp_status smp_elastic_end(smp *s, int *exit_code)
{
    if (!s || !exit_code)
        return smp_fail(SMP_ERR_INPUT, "smp_elastic_end: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    if (!s->setup->elastic)
        return smp_fail(SMP_ERR_INPUT, "smp_elastic_end: smp_elastic_begin comes first");
    SMP_TRY(save_last(s));
    SMP_TRY(smp__comm_agree(s->comm, SMP_OK)); /* all have come: MPI_Finalize waits unwatched */
    *exit_code = s->setup->elastic->ends ? SMP__EXIT_STOPPED : 0;
    return SMP_OK;
}
