/* Stretches of a sequence that are the same in every step: exec/step/captures.h.
 *
 * Of a training step of a whole batch everything that a call gets is a function of chunk, item and
 * micro-batch, but for the number of the step, which only kinds get that draw random numbers. So
 * there is a stretch for each of these, and other steps (short batches, evaluations) enqueue item
 * by item. Scales and learning rates do not occur: the loss scale lies in device memory, updates
 * are no part of this. A stretch ends before what draws, or exchanges something, and after
 * gradients whose sum over replicas may begin.
 *
 * A device keeps every launch of every micro-batch: MOST_LAUNCHES bounds what that takes of it,
 * which smp__device_note_libraries counts with what libraries take. O(launches) once. */
#include "exec/step/captures.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "exec/state/shards.h"
#include "exec/step/stepping.h"

enum { MOST_LAUNCHES = 1 << 14, LEAST_LAUNCHES = 2 /* at once */ };

typedef struct stretch {
    void *work; /* of the device; NULL: none begins here */
    int32_t n;  /* items */
} stretch;

struct smp__captures {
    int64_t launches; /* of a step, that are captured */
    int64_t works;
    stretch **of;  /* [chunks * SMP__STAGE_PARTS] of [microbatches][length] each; NULL: none */
    char why[256]; /* nothing is captured that should be; empty: there is no reason */
};

typedef enum graph_wish { AS_PLANNED, ON, OFF } graph_wish;

static smp_status read_wish(graph_wish *out)
{
    const char *given = getenv("SMP_GRAPHS"), *text = given ? given : "";
    *out = strcmp(text, "on") == 0 ? ON : strcmp(text, "off") == 0 ? OFF : AS_PLANNED;
    return *text == '\0' || *out != AS_PLANNED
               ? SMP_OK
               : smp_fail(SMP_ERR_INPUT, "SMP_GRAPHS=%s: expected on or off", text);
}

/* Costs are told by operator, and updates on the host are waited for by operator. Where a replica
 * begins with micro-batches without samples its inputs lie elsewhere than in the warm-up. Weights
 * that are in parts stand somewhere else after each of their gathers. */
static bool suits(const smp *s)
{
    return s->device->capture && s->graph->training && !s->stepping->cost_samples && !s->updates &&
           !smp__weights_in_parts(s) && smp__job_first(s, s->comm->replica) == 0;
}

static stretch *stretch_at(const smp *s, const smp__sequence *q, int32_t item)
{
    stretch *of = s->stepping->captures->of[q->chunk * SMP__STAGE_PARTS + (int)q->part];
    return of ? &of[(int64_t)q->microbatch * smp__sequence_length(s, q) + item] : NULL;
}

/* Enqueues, into the capture, from an item up to one that ends the stretch. */
static smp_status enqueue_stretch(smp *s, const smp__sequence *q, int32_t item, int32_t *n)
{
    const int32_t length = smp__sequence_length(s, q);
    bool last = false;
    *n = 0;
    for (int32_t i = item, done; i < length && !last && smp__sequence_is_fixed(s, q, i);
         i += done, *n += done) {
        last = smp__sequence_starts_sums(s, q, i);
        SMP_TRY(smp__sequence_enqueue(s, q, i, &done));
    }
    return SMP_OK;
}

/* *n: items that it has, at least one. */
static smp_status capture_stretch(smp *s, const smp__sequence *q, int32_t item, int32_t *n)
{
    struct smp__captures *c = s->stepping->captures;
    void *work = NULL;
    int launches = 0;
    SMP_TRY(s->device->capture(s->device_context));
    smp_status status = enqueue_stretch(s, q, item, n);
    const smp_status ended = s->device->captured(s->device_context, &work, &launches);
    if (status == SMP_OK)
        status = ended;
    if (status == SMP_OK && launches >= LEAST_LAUNCHES) {
        *stretch_at(s, q, item) = (stretch){work, *n};
        c->launches += launches;
        c->works++;
    } else if (work) {
        s->device->forget(work);
    }
    return status;
}

static smp_status capture_sequence(smp *s, const smp__sequence *q)
{
    const int32_t length = smp__sequence_length(s, q);
    for (int32_t i = 0, n; i < length; i += n) {
        n = 1;
        if (smp__sequence_is_fixed(s, q, i))
            SMP_TRY(capture_stretch(s, q, i, &n));
    }
    return SMP_OK;
}

static smp_status open_chunk(smp *s, int chunk)
{
    for (int part = 0; part < SMP__STAGE_PARTS; part++) {
        const smp__sequence q = {(smp__stage_part)part, chunk, 0};
        const size_t n = (size_t)s->work->microbatches * (size_t)smp__sequence_length(s, &q) + 1;
        stretch **of = &s->stepping->captures->of[chunk * SMP__STAGE_PARTS + part];
        *of = calloc(n, sizeof **of);
        if (!*of)
            return smp_fail_memory(n * sizeof **of);
    }
    return SMP_OK;
}

static void forget_chunk(smp *s, int chunk)
{
    for (int part = 0; part < SMP__STAGE_PARTS; part++) {
        const smp__sequence q = {(smp__stage_part)part, chunk, 0};
        const int64_t n = (int64_t)s->work->microbatches * smp__sequence_length(s, &q);
        stretch **of = &s->stepping->captures->of[chunk * SMP__STAGE_PARTS + part];
        for (int64_t i = 0; *of && i < n; i++)
            if ((*of)[i].work)
                s->device->forget((*of)[i].work);
        free(*of);
        *of = NULL;
    }
}

/* Of one micro-batch, of a stage whose times stand in the plan. */
static bool pays(const smp *s, int chunk, int64_t graphs, int64_t launches)
{
    const smp_cluster *cluster = s->plan->cluster;
    const smp_plan_stage *stage = &s->plan->stage[s->work->chunk[chunk].stage];
    const double device_us = stage->forward_us - stage->forward_exchange_us + stage->backward_us -
                             stage->backward_exchange_us;
    return smp_graphs_pay(cluster ? &cluster->launch : NULL, (double)graphs, (double)launches,
                          device_us);
}

/* All micro-batches if the first one says that it pays. */
static smp_status capture_chunk(smp *s, int chunk, graph_wish wish)
{
    struct smp__captures *c = s->stepping->captures;
    const int64_t launches = c->launches, works = c->works;
    SMP_TRY(open_chunk(s, chunk));
    for (int mb = 0; mb < s->work->microbatches && c->launches < MOST_LAUNCHES; mb++) {
        for (int part = 0; part < SMP__STAGE_PARTS; part++)
            SMP_TRY(capture_sequence(s, &(smp__sequence){(smp__stage_part)part, chunk, mb}));
        if (mb > 0 || wish == ON || pays(s, chunk, c->works - works, c->launches - launches))
            continue;
        forget_chunk(s, chunk);
        c->launches = launches;
        c->works = works;
        break;
    }
    return SMP_OK;
}

static smp_status capture_all(smp *s, graph_wish wish)
{
    struct smp__captures *c = s->stepping->captures = calloc(1, sizeof *c);
    const size_t n = (size_t)s->work->chunks * SMP__STAGE_PARTS;
    if (!c || !(c->of = calloc(n, sizeof(*c->of))))
        return smp_fail_memory(n * sizeof(*c->of));
    s->given->training = true;
    for (int chunk = 0; chunk < s->work->chunks; chunk++)
        SMP_TRY(capture_chunk(s, chunk, wish));
    return SMP_OK;
}

static void forget_all(smp *s)
{
    struct smp__captures *c = s->stepping->captures;
    for (int chunk = 0; c && c->of && chunk < s->work->chunks; chunk++)
        forget_chunk(s, chunk);
    if (c)
        c->launches = c->works = 0;
}

/* A wish that cannot be read is an error of the user's; all else is the device's refusal. */
smp_status smp__captures_make(smp *s)
{
    graph_wish wish;
    smp_status status = read_wish(&wish);
    if (status == SMP_OK && wish != OFF && suits(s) && capture_all(s, wish) != SMP_OK)
        status = SMP_ERR_FAILED;
    status = smp__comm_agree(s->comm, status);
    if (status == SMP_OK || status == SMP_ERR_INPUT || s->comm->failed)
        return status;
    forget_all(s);
    if (s->stepping->captures)
        snprintf(s->stepping->captures->why, sizeof s->stepping->captures->why, "%s",
                 smp_last_error());
    return SMP_OK;
}

void smp__captures_free(smp *s)
{
    forget_all(s);
    if (s->stepping->captures)
        free(s->stepping->captures->of);
    free(s->stepping->captures);
}

smp_status smp__captures_replay(smp *s, const smp__sequence *q, int32_t item, int32_t *n)
{
    const stretch *at = NULL;
    *n = 0;
    if (s->stepping->captures && s->given->training &&
        s->given->samples == smp__job_global_batch(s))
        at = stretch_at(s, q, item);
    if (!at || !at->work)
        return SMP_OK;
    *n = at->n;
    return s->device->replay(s->device_context, at->work);
}

int64_t smp__captures_count(const smp *s, int64_t *launches)
{
    const struct smp__captures *c = s->stepping->captures;
    *launches = c ? c->launches : 0;
    return c ? c->works : 0;
}

void smp__captures_describe(const smp *s, smp_text *text)
{
    const struct smp__captures *c = s->stepping->captures;
    int64_t launches;
    const int64_t graphs = smp__captures_count(s, &launches);
    if (c && c->why[0] != '\0')
        smp_text_append(text, " [graphs: %s]", c->why);
    else if (graphs > 0)
        smp_text_append(text, ", %lld graphs for %lld launches a step", (long long)graphs,
                        (long long)launches);
}
