/* Keeping the state in memory that outlives the processes; see the header, and kept_folder.h for
 * the folder with its three places.
 *
 * Weights and states change in O alone. So after a step a thread of each rank writes its part from
 * where it stands, beside the forwards and backwards of the next step, whose O waits for it. Where
 * the host cannot read that, or several devices have a weight in parts, it is copied at the end of
 * the step, and updates that are made on the host beside the next step are waited for.
 *
 * That all parts are complete is known without another wait: at the end of the next step, all ranks
 * sum what lacks with their losses. Then the state gets its name, and what was complete before it
 * loses its own: but not its place, which is written after the place of the state that is begun
 * now. So rank 0 has taken a name away one sum before anybody writes to that place. Where it cannot
 * give or take a name something lacks from then on: what has a name stays, and all ranks write to
 * the same place again.
 *
 * Which place is the first to be written is known when a state is begun, not before: until then the
 * job may load what has a name. */
#include "exec/save/checkpoint_keep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "exec/checkpoint/heartbeat.h"
#include "exec/checkpoint/kept_folder.h"
#include "exec/save/checkpoint_part.h"
#include "exec/state/handle.h"
#include "exec/state/updates.h"
#include "exec/transport/own_core.h"

struct smp__keep {
    smp__kept_folder *folder;
    smp__heartbeat *heartbeat; /* NULL: none yet */
    smp__part part;
    smp__worker *worker; /* NULL: not open */
    int64_t asked;       /* states that it has been asked to write */
    int next;            /* place of the state that is written, or will be: the same on all ranks */
    bool pending;        /* it is not known to be complete; the same on all ranks */
    bool rewound;        /* `next` is to be found, of what has a name; the same on all ranks */
    bool loaded;
    smp__kept_state state; /* that is written, or will be: what this machine has of it. The same on
                              all ranks but for the spans, which are the first of a machine's */
    char note[512];        /* rank 0's: why names stay as they are; or "" */
};

/* mpirun that is killed takes its ranks with it, a moment later. */
static const double dying_s = 2.0;

static struct smp__keep *keep_of(const smp *s)
{
    return s->saving ? s->saving->keep : NULL;
}

/* On the thread. */
static smp_status write_part(void *job, int64_t asked)
{
    const smp *s = job;
    const struct smp__keep *k = keep_of(s);
    (void)asked;
    return smp__part_put(s, &k->part, k->state.number, smp__kept_file(k->folder, k->next),
                         s->options->runtime.keep_in);
}

static smp_status check_options(const smp *s)
{
    const smp_runtime_options *o = &s->options->runtime;
    if (o->keep_every < 0 || !o->keep_in || *o->keep_in == '\0')
        return smp_fail(SMP_ERR_INPUT,
                        "states to be kept every %" PRId64 " steps, in '%s': expected a number "
                        "from 1, and a folder",
                        o->keep_every, o->keep_in ? o->keep_in : "");
    return SMP_OK;
}

static smp_status enter(smp *s, bool first)
{
    struct smp__keep *k = keep_of(s);
    if ((s->comm->node_rank == 0) != first)
        return SMP_OK;
    SMP_TRY(check_options(s));
    SMP_TRY(smp__kept_enter(s->options->runtime.keep_in, first, dying_s, &k->folder));
    return smp__heartbeat_start(smp__kept_directory(k->folder), s->comm->world_rank,
                                s->comm->world_size, &k->heartbeat);
}

smp_status smp__keep_enter(smp *s)
{
    if (s->options->runtime.keep_every == 0)
        return SMP_OK;
    struct smp__keep *k = s->saving->keep = calloc(1, sizeof *k);
    SMP_TRY(smp__comm_agree(s->comm, k ? SMP_OK : smp_fail_memory(sizeof *k)));
    SMP_TRY(smp__comm_agree(s->comm, enter(s, true)));
    return smp__comm_agree(s->comm, enter(s, false));
}

/* What a step does not allocate. */
static smp_status reserve(smp *s)
{
    struct smp__keep *k = keep_of(s);
    if (!s->graph->training)
        return smp_fail(SMP_ERR_INPUT, "keep_every: the plan is for inference, nothing to keep");
    SMP_TRY(smp__part_take(s, &k->part));
    if (smp__part_needs_copy(s))
        SMP_TRY(smp__part_reserve(s, &k->part));
    k->state.bytes = smp__part_file_bytes(s, &k->part);
    k->rewound = true;
    SMP_TRY(smp__spans_add(&k->state.spans, 0, k->state.bytes));
    if (s->comm->world_rank == 0)
        SMP_TRY(smp__kept_reserve(k->folder, k->state.bytes, &k->state.spans));
    return smp__worker_start(write_part, s, &k->worker);
}

smp_status smp__keep_open(smp *s)
{
    struct smp__keep *k = keep_of(s);
    if (!k || s->comm->node_size < s->comm->world_size)
        return SMP_OK;
    SMP_TRY(smp__comm_agree(s->comm, reserve(s)));
    return smp__comm_agree(s->comm, smp__kept_open(k->folder));
}

static void note_names(struct smp__keep *k, smp_status status)
{
    if (status != SMP_OK)
        snprintf(k->note, sizeof k->note, "%s", smp_last_error());
}

/* Of states that may be put together. */
static smp_status draw_id(struct smp__keep *k)
{
    k->state.branch++; /* one more than reserve() found */
    if (getrandom(&k->state.id, sizeof k->state.id, 0) != sizeof k->state.id)
        return smp_fail(SMP_ERR_FAILED, "no random number: %s", strerror(errno));
    return SMP_OK;
}

/* Where the first state after a start, or after others were loaded, is written: what has a name of
 * its step or a later one is of other steps. */
static smp_status find_next(smp *s, struct smp__keep *k)
{
    if (!k->rewound)
        return SMP_OK;
    if (s->comm->world_rank == 0) {
        smp_status status = smp__kept_forget(k->folder, s->step);
        if (status == SMP_OK)
            status = smp__kept_next(k->folder, &k->next);
        if (status == SMP_OK)
            status = draw_id(k);
        note_names(k, status);
        k->next = status == SMP_OK ? k->next : -1;
    }
    SMP_TRY(smp__comm_share(s->comm, &k->next, sizeof k->next, 0));
    k->rewound = k->next < 0;
    return SMP_OK;
}

/* The first says what is about to be written, and takes a name away, before any rank is in the sum
 * that follows. */
static void make_way(struct smp__keep *k)
{
    const int after = (k->next + 1) % SMP__KEPT_PLACES;
    if (k->note[0] == '\0')
        note_names(k, smp__kept_claim(k->folder, k->next, &k->state));
    if (k->note[0] == '\0')
        note_names(k, smp__kept_unname(k->folder, after));
    if (k->note[0] == '\0')
        note_names(k, smp__kept_claim(k->folder, after, NULL));
}

static smp_status begin(smp *s, struct smp__keep *k)
{
    SMP_TRY(find_next(s, k));
    if (k->next < 0)
        return SMP_OK;
    SMP_TRY(smp__updates_finish(s));
    SMP_TRY(smp__part_take(s, &k->part));
    if (smp__part_needs_copy(s))
        SMP_TRY(smp__part_copy(s, &k->part));
    k->state.step = s->step;
    k->state.number = s->saving->number;
    if (s->comm->world_rank == 0)
        make_way(k);
    k->pending = true;
    smp__worker_ask(k->worker, ++k->asked);
    return SMP_OK;
}

smp_status smp__keep_step(smp *s, const smp_step_result *done)
{
    struct smp__keep *k = keep_of(s);
    if (!k)
        return SMP_OK;
    smp__heartbeat_step(k->heartbeat, s->step, 1e-6 * done->step_us);
    if (!k->worker || s->step % s->options->runtime.keep_every != 0)
        return SMP_OK;
    smp__place_doing(s->place, "keeping its state");
    const smp_status status = begin(s, k);
    return smp__job_leave(s, status);
}

static smp_status test_written(void *of, bool *done)
{
    const struct smp__keep *k = of;
    *done = true;
    return k->asked > 0 ? smp__worker_test(k->worker, k->asked - 1, done) : SMP_OK;
}

static void describe_written(const void *of, char *buffer, size_t size)
{
    const struct smp__keep *k = of;
    snprintf(buffer, size, "its part of the state of step %" PRId64 " to be kept",
             k->part.says.step);
}

static smp_status wait_written(smp *s, bool patient)
{
    struct smp__keep *k = keep_of(s);
    if (!k || !k->worker)
        return SMP_OK;
    return smp__comm_wait_until(s->comm, &(smp_wait){.patient = patient}, test_written,
                                describe_written, k);
}

smp_status smp__keep_wait(smp *s)
{
    return wait_written(s, false);
}

smp_status smp__keep_settle(smp *s)
{
    if (!keep_of(s))
        return SMP_OK;
    SMP_TRY(smp__comm_agree(s->comm, wait_written(s, true)));
    double lacks = smp__keep_lacks(s);
    SMP_TRY(smp__comm_sum(s->comm, &lacks, 1));
    smp__keep_agree(s, lacks);
    return SMP_OK;
}

double smp__keep_lacks(const smp *s)
{
    struct smp__keep *k = keep_of(s);
    bool done = true;
    /* what has failed is found by smp__keep_wait */
    return k && k->pending && (test_written(k, &done) != SMP_OK || !done || k->note[0] != '\0')
               ? 1.0
               : 0.0;
}

void smp__keep_agree(smp *s, double lacks)
{
    struct smp__keep *k = keep_of(s);
    if (!k || !k->pending || lacks > 0.0)
        return;
    if (s->comm->world_rank == 0)
        note_names(k, smp__kept_name(k->folder, k->next, k->part.says.step));
    k->pending = false;
    k->next = (k->next + 1) % SMP__KEPT_PLACES;
}

void smp__keep_rewind(smp *s)
{
    struct smp__keep *k = keep_of(s);
    if (k)
        k->pending = false;
    if (k)
        k->rewound = true;
}

void smp__keep_discard(smp *s)
{
    struct smp__keep *k = keep_of(s);
    smp__keep_rewind(s);
    if (k && s->comm->world_rank == 0)
        note_names(k, smp__kept_forget(k->folder, 0));
}

const char *smp__keep_folder(const smp *s)
{
    return keep_of(s) ? s->options->runtime.keep_in : NULL;
}

const char *smp__keep_source(const smp *s)
{
    const struct smp__keep *k = keep_of(s);
    return k && k->worker && k->asked == 0 ? smp__keep_folder(s) : NULL;
}

bool smp__keep_was_loaded(const smp *s)
{
    return keep_of(s) && keep_of(s)->loaded;
}

void smp__keep_loaded(smp *s, bool kept)
{
    struct smp__keep *k = keep_of(s);
    if (!k)
        return;
    k->loaded = kept;
    smp__heartbeat_step(k->heartbeat, s->step, 0.0);
    if (s->comm->world_rank == 0)
        note_names(k, smp__kept_forget(k->folder, s->step + 1));
}

void smp__keep_describe(const smp *s, smp_text *text)
{
    const struct smp__keep *k = keep_of(s);
    char bytes[32];
    if (k && k->worker)
        smp_text_append(text, "%d x %s in %s", SMP__KEPT_PLACES,
                        smp_format_bytes(bytes, sizeof bytes, k->state.bytes),
                        s->options->runtime.keep_in);
}

const char *smp__keep_note(const smp *s)
{
    return keep_of(s) ? keep_of(s)->note : "";
}

/* Is what the job has come to on the disk? */
static bool is_saved(const smp *s)
{
    return !s->broken && s->saving->complete_step == s->step;
}

smp_status smp__keep_close(smp *s)
{
    struct smp__keep *k = keep_of(s);
    bool done = true;
    if (!k)
        return SMP_OK;
    const bool completes = k->pending && !s->comm->failed;
    const smp_status status = completes ? smp__keep_settle(s) : wait_written(s, false);
    if (k->worker)
        (void)test_written(k, &done);
    if (!done)
        return status; /* its thread keeps what it reads */
    smp__worker_stop(k->worker);
    smp__heartbeat_stop(k->heartbeat);
    if (k->folder && s->comm->node_rank == 0 && !s->comm->failed &&
        (is_saved(s) || !smp__kept_has_state(k->folder)))
        smp__kept_remove(k->folder);
    smp__kept_leave(k->folder);
    smp__part_free(&k->part);
    smp__kept_state_free(&k->state);
    free(k);
    s->saving->keep = NULL;
    return status;
}
