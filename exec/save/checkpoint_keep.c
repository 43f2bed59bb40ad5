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
 * now. So the name has been taken away one sum before anybody writes to that place. Where that, or
 * giving a name, fails, something lacks from then on: what has a name stays, and all ranks write to
 * the same place again. On several machines the first rank of each sees to its names, and all of it
 * holds for each: none gives up its last state for one that another could not name.
 *
 * What a machine alone has is sent to the next one as soon as this rank has written it, from the
 * place, which stays as it is for two more states: O need not wait for it, the sum does.
 *
 * Which place is the first to be written is known when a state is begun, not before: until then the
 * job may load what has a name. */
#include "exec/save/checkpoint_keep.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

#include "exec/save/keep_state.h"
#include "exec/state/handle.h"
#include "exec/state/updates.h"

/* mpirun that is killed takes its ranks with it, a moment later. */
static const double dying_s = 2.0;

/* On the thread. */
static smp_status write_part(void *job, int64_t asked)
{
    const smp *s = job;
    const struct smp__keep *k = smp__keep_of(s);
    (void)asked;
    return smp__part_put(s, &k->part, k->state.number,
                         (smp__sink){smp__kept_file(k->folder, k->next), k->map[k->next],
                                     s->options->runtime.keep_in});
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
    struct smp__keep *k = smp__keep_of(s);
    if (smp__keep_is_first(s) != first)
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
    SMP_TRY(smp__comm_agree(s->comm, enter(s, false)));
    k->entered = true;
    return SMP_OK;
}

static smp_status take_part(smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    if (!s->graph->training)
        return smp_fail(SMP_ERR_INPUT, "keep_every: the plan is for inference, nothing to keep");
    k->rewound = true;
    return smp__part_take(s, &k->part);
}

/* What this rank writes. */
static smp_status find_spans(smp *s, smp__spans *own)
{
    struct smp__keep *k = smp__keep_of(s);
    k->part.sharers = k->machines.here;
    SMP_TRY(smp__part_take(s, &k->part));
    k->state.bytes = smp__part_file_bytes(s, &k->part);
    return smp__part_spans(s, &k->part, own);
}

/* What a rank writes that only its machine has, to or from `peer`. */
static smp_status add_message(struct smp__keep *k, int peer, bool sends, const smp__spans *written,
                              const smp__spans *alone)
{
    smp__spans both = {0};
    smp_status status = smp__spans_common(written, alone, &both);
    if (status == SMP_OK && both.n > 0)
        status = smp__byte_messages_add(&k->messages, peer, sends, &both);
    smp__spans_free(&both);
    return status;
}

/* The machines stand in a ring: what one alone has the next one has, too. The ranks there receive
 * in turn. written: of each rank; alone: of this machine, and of the one before. */
static smp_status add_messages(const smp *s, const smp__spans *written, const smp__spans alone[2])
{
    struct smp__keep *k = smp__keep_of(s);
    const smp__machines *m = &k->machines;
    const int rank = s->comm->world_rank, next = (m->own + 1) % m->n,
              before = (m->own + m->n - 1) % m->n;
    const int there = m->size[next], here = s->comm->node_size;
    for (int other = 0; other < s->comm->world_size; other++) {
        if (m->of[other] == next && m->number[other] == m->number[rank] % there)
            SMP_TRY(add_message(k, other, true, &written[rank], &alone[0]));
        if (m->of[other] == before && m->number[other] % here == m->number[rank])
            SMP_TRY(add_message(k, other, false, &written[other], &alone[1]));
    }
    return SMP_OK;
}

/* What a place of this machine holds: what its ranks write, and what only the one before has. */
static smp_status plan_copies(smp *s, const smp__spans *written)
{
    struct smp__keep *k = smp__keep_of(s);
    const smp__machines *m = &k->machines;
    const int before = (m->own + m->n - 1) % m->n;
    smp__spans *united = NULL, alone[2] = {{0}, {0}};
    smp_status status = smp__machines_unite(s, m, written, &united);
    if (status == SMP_OK && m->n > 1)
        status = smp__spans_alone(united, m->n, m->own, &alone[0]);
    if (status == SMP_OK && m->n > 1)
        status = smp__spans_alone(united, m->n, before, &alone[1]);
    if (status == SMP_OK && m->n > 1)
        status = add_messages(s, written, alone);
    if (status == SMP_OK)
        status = smp__spans_both(&united[m->own], &alone[1], &k->state.spans);
    k->lent = smp__spans_bytes(&alone[1]);
    smp__machines_free_united(m, united);
    smp__spans_free(&alone[0]);
    smp__spans_free(&alone[1]);
    return status;
}

/* What a step does not allocate. On the machine of rank 0 the folder was chosen by who began the
 * job: another model's state there is reported. On others it is a leftover. */
static smp_status reserve(smp *s, const smp__spans *written)
{
    struct smp__keep *k = smp__keep_of(s);
    SMP_TRY(plan_copies(s, written));
    if (smp__part_needs_copy(s))
        SMP_TRY(smp__part_reserve(s, &k->part));
    if (smp__keep_is_first(s))
        SMP_TRY(smp__kept_reserve(k->folder, k->state.bytes, &k->state.spans,
                                  k->machines.own != k->machines.of[0]));
    return smp__worker_start(write_part, s, &k->worker);
}

/* Writing to pages that are mapped takes half the time of pwrite. Messages are sent from there: O
 * need not wait for them. */
static smp_status open_places(struct smp__keep *k)
{
    SMP_TRY(smp__kept_open(k->folder));
    for (int i = 0; i < SMP__KEPT_PLACES; i++) {
        k->map[i] = mmap(NULL, (size_t)k->state.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                         smp__kept_file(k->folder, i), 0);
        if (k->map[i] == MAP_FAILED)
            k->map[i] = NULL;
        if (!k->map[i])
            return smp_fail(SMP_ERR_FAILED,
                            "place-%d of the states that are kept: cannot be "
                            "mapped: %s",
                            i, strerror(errno));
    }
    return SMP_OK;
}

/* The highest branch that a place of any machine is of. */
static smp_status find_branch(smp *s, struct smp__keep *k)
{
    char *all;
    size_t bytes;
    for (int i = 0; i < SMP__KEPT_PLACES && smp__keep_is_first(s); i++) {
        smp__kept_state here;
        if (smp__kept_look(k->folder, i, &here) == SMP_OK && here.branch > k->state.branch)
            k->state.branch = here.branch;
        smp__kept_state_free(&here);
    }
    SMP_TRY(smp__comm_gather(s->comm, &k->state.branch, sizeof k->state.branch, &all, &bytes));
    for (size_t at = 0; at < bytes; at += sizeof k->state.branch) {
        int64_t branch;
        memcpy(&branch, all + at, sizeof branch);
        k->state.branch = branch > k->state.branch ? branch : k->state.branch;
    }
    free(all);
    return SMP_OK;
}

smp_status smp__keep_open(smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    smp__spans own = {0}, *written = NULL;
    if (!k)
        return SMP_OK;
    SMP_TRY(smp__comm_agree(s->comm, take_part(s)));
    SMP_TRY(smp__machines_open(s, &k->machines));
    smp_status status = smp__comm_agree(s->comm, find_spans(s, &own));
    if (status == SMP_OK)
        status = smp__machines_gather(s, &own, &written);
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, reserve(s, written));
    if (status == SMP_OK)
        status = smp__comm_agree(s->comm, open_places(k));
    if (status == SMP_OK)
        status = find_branch(s, k);
    smp__machines_free_sets(s, written);
    smp__spans_free(&own);
    return status;
}

static void note_names(struct smp__keep *k, smp_status status)
{
    if (status != SMP_OK)
        snprintf(k->note, sizeof k->note, "%s", smp_last_error());
}

/* Of the states that may be put together: an id, and a number above all that are known. Of machines
 * that are away nothing is known: the clock puts their branches before this one. */
static smp_status draw_branch(smp__kept_state *state)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const int64_t now_us = (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
    state->branch = now_us > state->branch ? now_us : state->branch + 1;
    if (getrandom(&state->id, sizeof state->id, 0) == sizeof state->id)
        return SMP_OK;
    return smp_fail(SMP_ERR_FAILED, "no random number: %s", strerror(errno));
}

/* The first rank of a machine's: what has a name of this step or a later one is of other steps. */
static smp_status clear_next(smp *s, struct smp__keep *k)
{
    SMP_TRY(smp__kept_forget(k->folder, s->step));
    SMP_TRY(smp__kept_next(k->folder, &k->next));
    return s->comm->world_rank == 0 ? draw_branch(&k->state) : SMP_OK;
}

/* Where the first state after a start, or after others were loaded, is written. Each machine has a
 * place of its own, and no rank writes before all places are cleared. */
static smp_status find_next(smp *s, struct smp__keep *k)
{
    int failed = 0;
    void *places;
    if (!k->rewound)
        return SMP_OK;
    if (smp__keep_is_first(s)) {
        const smp_status status = clear_next(s, k);
        note_names(k, status);
        failed = status != SMP_OK;
    }
    SMP_TRY(smp__comm_max(s->comm, &failed));
    SMP_TRY(smp__comm_share(s->comm, &k->state.id, sizeof k->state.id, 0));
    SMP_TRY(smp__comm_share(s->comm, &k->state.branch, sizeof k->state.branch, 0));
    SMP_TRY(smp__comm_gather_node(s->comm, &k->next, sizeof k->next, &places));
    k->next = failed ? -1 : *(const int *)places;
    free(places);
    k->rewound = failed != 0;
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
    if (k->machines.n > 1) /* each writes what the first says */
        SMP_TRY(smp__comm_share(s->comm, k->part.own, k->part.says.own_bytes, 0));
    if (smp__part_needs_copy(s))
        SMP_TRY(smp__part_copy(s, &k->part));
    k->state.step = s->step;
    k->state.number = s->saving->number;
    k->state.begun = s->saving->begun_step;
    if (smp__keep_is_first(s))
        make_way(k);
    k->pending = true;
    k->sending = false;
    if (k->messages.n > 0)
        SMP_TRY(smp__byte_messages_begin(&k->messages, s->comm, false, k->map[k->next]));
    smp__worker_ask(k->worker, ++k->asked);
    return SMP_OK;
}

smp_status smp__keep_check_told(const smp *s)
{
    if (s->options->runtime.rows && !s->saving->tells)
        return smp_fail(SMP_ERR_INPUT, "smp_step: under smp-run --elastic smp_elastic_begin comes "
                                       "before the first step");
    if (s->saving->untold)
        return smp_fail(SMP_ERR_INPUT,
                        "smp_step: smp_elastic_step is to be called after step %" PRId64
                        ", before the next one",
                        s->step);
    return SMP_OK;
}

smp_status smp__keep_step(smp *s, const smp_step_result *done)
{
    struct smp__keep *k = smp__keep_of(s);
    s->saving->untold = s->saving->tells;
    if (!k)
        return SMP_OK;
    smp__heartbeat_step(k->heartbeat, s->step, 1e-6 * done->step_us);
    return s->saving->tells ? SMP_OK : smp__keep_deferred(s);
}

smp_status smp__keep_deferred(smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    if (!k || s->step % s->options->runtime.keep_every != 0)
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
    struct smp__keep *k = smp__keep_of(s);
    if (!k || !k->worker)
        return SMP_OK;
    return smp__comm_wait_until(s->comm, &(smp_wait){.patient = patient}, test_written,
                                describe_written, k);
}

/* This rank's part is written: on its way with it, unless it is. */
static smp_status send_written(smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    if (!k || !k->pending || k->sending)
        return SMP_OK;
    k->sending = true;
    return smp__byte_messages_begin(&k->messages, s->comm, true, k->map[k->next]);
}

smp_status smp__keep_look(smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    bool done = false;
    if (!k || !k->pending || k->sending || k->messages.n == 0)
        return SMP_OK;
    if (test_written(k, &done) != SMP_OK || !done) /* smp__keep_wait finds what has failed */
        return SMP_OK;
    return send_written(s);
}

smp_status smp__keep_wait(smp *s)
{
    SMP_TRY(wait_written(s, false));
    return send_written(s);
}

/* Is one of them done since this was begun to wait for? */
static smp_status test_messages(void *of, bool *done)
{
    struct smp__keep *k = of;
    int left;
    SMP_TRY(smp__byte_messages_test(&k->messages, &left));
    *done = left < k->awaited || left == 0;
    k->awaited = left;
    return SMP_OK;
}

static void describe_messages(const void *of, char *buffer, size_t size)
{
    const struct smp__keep *k = of;
    snprintf(buffer, size, "copies of the state of step %" PRId64 " on another machine",
             k->state.step);
}

/* Each may take as long as anything in a step: all of them together take what the network needs. */
static smp_status wait_messages(smp *s, bool patient)
{
    struct smp__keep *k = smp__keep_of(s);
    if (!k || !k->sending || k->messages.n == 0)
        return SMP_OK;
    k->awaited = k->messages.n;
    while (k->awaited > 0)
        SMP_TRY(smp__comm_wait_until(s->comm, &(smp_wait){.patient = patient}, test_messages,
                                     describe_messages, k));
    return SMP_OK;
}

smp_status smp__keep_deliver(smp *s)
{
    return wait_messages(s, false);
}

/* What was begun is written, and no message is under way. Collective. */
static smp_status arrive(smp *s)
{
    smp_status status = wait_written(s, true);
    if (status == SMP_OK)
        status = send_written(s);
    SMP_TRY(smp__comm_agree(s->comm, status));
    return smp__comm_agree(s->comm, wait_messages(s, true));
}

smp_status smp__keep_settle(smp *s)
{
    if (!smp__keep_of(s))
        return SMP_OK;
    SMP_TRY(arrive(s));
    double lacks = smp__keep_lacks(s);
    SMP_TRY(smp__comm_sum(s->comm, &lacks, 1));
    smp__keep_agree(s, lacks);
    return SMP_OK;
}

/* More than there are ranks: a machine that names nothing any more. */
static const double nameless = 1e9;

double smp__keep_lacks(const smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    bool written = true;
    int left = 0;
    if (!k || !k->pending)
        return 0.0;
    if (k->note[0] != '\0')
        return nameless;
    /* what has failed is found by those who wait */
    if (test_written(k, &written) != SMP_OK || !written)
        return 1.0;
    if (k->messages.n == 0)
        return 0.0;
    if (!k->sending || smp__byte_messages_test(&k->messages, &left) != SMP_OK || left > 0)
        return 1.0;
    return 0.0;
}

void smp__keep_agree(smp *s, double lacks)
{
    struct smp__keep *k = smp__keep_of(s);
    if (!k || !k->pending)
        return;
    if (lacks >= nameless && s->comm->world_rank == 0 && k->note[0] == '\0')
        snprintf(k->note, sizeof k->note,
                 "a state cannot get its name on another machine: its first rank says why");
    if (lacks > 0.0)
        return;
    if (smp__keep_is_first(s))
        note_names(k, smp__kept_name(k->folder, k->next, k->part.says.step));
    k->pending = false;
    k->next = (k->next + 1) % SMP__KEPT_PLACES;
}

void smp__keep_rewind(smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    if (k)
        k->pending = false;
    if (k)
        k->rewound = true;
}

smp_status smp__keep_discard(smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    if (!k)
        return SMP_OK;
    const smp_status status = arrive(s); /* a rank may already wait for another's part */
    smp__keep_rewind(s);
    if (smp__keep_is_first(s))
        note_names(k, smp__kept_forget(k->folder, 0));
    return status;
}

const char *smp__keep_folder(const smp *s)
{
    return smp__keep_of(s) ? s->options->runtime.keep_in : NULL;
}

const char *smp__keep_source(const smp *s)
{
    return smp__keep_of(s) && smp__keep_of(s)->asked == 0 ? smp__keep_folder(s) : NULL;
}

smp_status smp__keep_has_state(smp *s, bool *has)
{
    struct smp__keep *k = smp__keep_of(s);
    *has = false;
    if (!k)
        return SMP_OK;
    int state = smp__keep_is_first(s) && smp__kept_has_state(k->folder);
    SMP_TRY(smp__comm_max(s->comm, &state));
    *has = state != 0;
    return SMP_OK;
}

smp_status smp__keep_fetched(smp *s, double *bytes)
{
    *bytes = smp__keep_of(s) ? (double)smp__keep_of(s)->fetched : 0.0;
    return smp__comm_sum(s->comm, bytes, 1);
}

bool smp__keep_was_loaded(const smp *s)
{
    return smp__keep_of(s) && smp__keep_of(s)->loaded;
}

void smp__keep_loaded(smp *s, bool kept)
{
    struct smp__keep *k = smp__keep_of(s);
    if (!k)
        return;
    k->loaded = kept;
    smp__heartbeat_step(k->heartbeat, s->step, 0.0);
    if (smp__keep_is_first(s))
        note_names(k, smp__kept_forget(k->folder, s->step + 1));
}

void smp__keep_describe(const smp *s, smp_text *text)
{
    const struct smp__keep *k = smp__keep_of(s);
    char bytes[32], lent[32];
    if (!k)
        return;
    smp_text_append(text, "%d x %s", SMP__KEPT_PLACES,
                    smp_format_bytes(bytes, sizeof bytes, smp__spans_bytes(&k->state.spans)));
    if (k->lent > 0)
        smp_text_append(text, " (of another machine %s)",
                        smp_format_bytes(lent, sizeof lent, k->lent));
    smp_text_append(text, " in %s", s->options->runtime.keep_in);
}

const char *smp__keep_note(const smp *s)
{
    return smp__keep_of(s) ? smp__keep_of(s)->note : "";
}

/* Is what the job has come to on the disk? */
static bool is_saved(const smp *s)
{
    return !s->broken && s->saving->complete_step == s->step;
}

/* A state counts if one machine has its name: the others keep what they have of it. Collective once
 * all ranks have entered. */
static smp_status remove_folder(smp *s, struct smp__keep *k)
{
    int state = k->folder && smp__keep_is_first(s) && smp__kept_has_state(k->folder);
    if (s->comm->failed)
        return SMP_OK;
    if (k->entered)
        SMP_TRY(smp__comm_max(s->comm, &state));
    if (k->folder && smp__keep_is_first(s) && (is_saved(s) || !state))
        smp__kept_remove(k->folder);
    return SMP_OK;
}

/* Others may still write to what is mapped, unless all have agreed that they do not. */
static void close_places(const smp *s, struct smp__keep *k)
{
    int left = 0;
    if (!s->comm->failed && (smp__byte_messages_test(&k->messages, &left) != SMP_OK || left > 0))
        return;
    for (int i = 0; i < SMP__KEPT_PLACES && !s->comm->failed; i++)
        if (k->map[i])
            munmap(k->map[i], (size_t)k->state.bytes);
    smp__byte_messages_free(&k->messages, s->comm);
    smp__machines_free(&k->machines);
}

smp_status smp__keep_close(smp *s)
{
    struct smp__keep *k = smp__keep_of(s);
    bool done = true;
    if (!k)
        return SMP_OK;
    const bool completes = k->pending && !s->comm->failed;
    smp_status status = completes ? smp__keep_settle(s) : wait_written(s, false);
    if (k->worker)
        (void)test_written(k, &done);
    if (!done)
        return status; /* its thread keeps what it reads */
    smp__worker_stop(k->worker);
    smp__heartbeat_stop(k->heartbeat);
    const smp_status removed = remove_folder(s, k);
    status = status == SMP_OK ? removed : status;
    smp__kept_leave(k->folder);
    close_places(s, k);
    smp__part_free(&k->part);
    smp__kept_state_free(&k->state);
    free(k);
    s->saving->keep = NULL;
    return status;
}
