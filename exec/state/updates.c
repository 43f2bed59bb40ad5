/* Updates beside the next step: exec/state/updates.h. The list of updates is cut into pieces, each
 * of which is brought to the host, made, and sent back; pieces are numbered through, and stand at
 * their number modulo the places that there are. Where the arena is host memory a piece is a whole
 * update, made where it lies, and there is a place for each: all are asked for at once. */
#include "exec/state/updates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "exec/device/host_values.h"
#include "exec/state/shards.h"
#include "exec/state/weights.h"
#include "exec/transport/own_core.h"
#include "graph/base/clock.h"

/* A GPU has one on its way down, one with the host, one on its way up, one to spare. */
enum {
    PLACES = 4,
    PIECE_FLOATS = SMP__PIECE_BYTES / PLACES / 2 / (int)sizeof(float),
    WEIGHT_DOWN = 0, /* copies of a piece */
    GRAD_DOWN,
    UP,
    COPIES
};

typedef struct piece {
    smp_update update; /* as the host makes it */
    void *target;      /* where on the device what is new goes, */
    const void *made;  /* from here, */
    int64_t bytes;
    uint16_t *rounded; /* of a weight that stays here: what goes up; else NULL */
    bool last;         /* of its update */
    double begin_s, end_s;
} piece;

struct smp__updates {
    const smp_optimizer *optimizer;
    smp__worker *worker; /* NULL: whoever asks makes them */
    double delay_s;
    int n;
    int32_t *index;   /* [n] of memory->param, in the order of use */
    smp_update *list; /* [n] under way */
    int places;
    piece *piece; /* [places] */
    int first_copy;
    int bringing;  /* the update that is cut next, */
    int64_t at;    /* ... and from which element on */
    int64_t down;  /* pieces that have been begun to bring */
    int64_t asked; /* ... that the host has been asked to make */
    int64_t up;    /* ... that it has made, and that were begun to send back */
    int made;      /* updates of which all pieces are up */
    int joined;    /* ... that the compute stream knows of */
    double begin_s,
        end_s; /* on the host, of the list under way, as far as it is known to be made */
};

bool smp__updates_are_in_host(const smp *s)
{
    return s->plan->sharding.offload_states && s->graph->training;
}

int smp__updates_copies_weights(const smp *s)
{
    return smp__updates_are_in_host(s) && !s->device->host_memory ? PLACES * COPIES : 0;
}

static int copy_of(const smp__updates *u, int64_t number, int what)
{
    return u->first_copy + (int)(number % u->places) * COPIES + what;
}

static smp_status make_update(void *of, int64_t number)
{
    const smp__updates *u = of;
    piece *p = &u->piece[number % u->places];
    const struct timespec delay = {.tv_sec = (time_t)u->delay_s,
                                   .tv_nsec = (long)(1e9 * fmod(u->delay_s, 1.0))};
    p->begin_s = smp_clock_s();
    if (u->delay_s > 0.0)
        nanosleep(&delay, NULL);
    const smp_status status = smp_device_find("cpu")->update(NULL, u->optimizer, &p->update);
    if (status == SMP_OK && p->rounded)
        smp__host_round(p->update.half, p->rounded, p->update.weight, p->update.elements);
    p->end_s = smp_clock_s();
    return status;
}

static bool is_updated(const smp *s, int32_t index)
{
    const smp_param *param = &s->graph->param[s->memory->param[index].param];
    const smp__range own = smp__own_range(s, index);
    return own.begin < own.end && !param->frozen && !param->running;
}

/* Weights in the order in which the forward uses them; how many of them each call has to find
 * made: chunks come one after the other, so it is all up to its own. */
static void list_weights(smp *s, smp__updates *u, int *place)
{
    for (int chunk = 0; chunk < s->work->chunks; chunk++) {
        smp__chunk *c = &s->work->chunk[chunk];
        for (int32_t i = 0; i < c->layout->n_call; i++) {
            smp__call *call = &c->call[i];
            for (int32_t k = 0; k < call->op->n_param; k++) {
                const int32_t index = smp__job_find_param(s, call->op->param[k]);
                if (!is_updated(s, index))
                    continue;
                if (place[index] == 0) {
                    u->index[u->n++] = index;
                    place[index] = u->n;
                }
                call->updates = place[index] > call->updates ? place[index] : call->updates;
            }
            c->updates = call->updates > c->updates ? call->updates : c->updates;
        }
    }
}

/* A number of the environment, `otherwise` if it is not set. */
static double setting(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text ? strtod(text, NULL) : otherwise;
}

static bool wants_thread(const smp *s)
{
    const bool spare = !s->device->host_memory || smp__own_core_spare(s->comm->node_size);
    return setting("SMP_UPDATE_THREAD", spare) != 0.0 && !s->options->runtime.record_costs;
}

static smp_status reserve(smp *s, smp__updates *u)
{
    const size_t n = (size_t)s->memory->n_param + 1;
    int *place = calloc(n, sizeof *place);
    u->index = calloc(n, sizeof *u->index);
    u->list = calloc(n, sizeof *u->list);
    if (place && u->index)
        list_weights(s, u, place);
    free(place);
    u->places = s->device->host_memory ? u->n + 1 : PLACES;
    u->piece = calloc((size_t)u->places, sizeof *u->piece);
    return place && u->index && u->list && u->piece ? SMP_OK : smp_fail_memory(n * sizeof *u->list);
}

smp_status smp__updates_open(smp *s, int first_copy)
{
    if (!smp__updates_are_in_host(s))
        return SMP_OK;
    smp__updates *u = s->updates = calloc(1, sizeof *u);
    if (!u)
        return smp_fail_memory(sizeof *u);
    u->optimizer = s->optimizer;
    u->first_copy = first_copy;
    u->delay_s = 1e-6 * setting("SMP_UPDATE_DELAY", 0.0);
    SMP_TRY(reserve(s, u));
    u->bringing = u->made = u->joined = u->n;
    if (!wants_thread(s))
        return SMP_OK;
    return smp_fail_context(smp__worker_start(make_update, u, &u->worker), "updates of weights");
}

void smp__updates_close(smp *s)
{
    smp__updates *u = s->updates;
    if (!u)
        return;
    if (s->comm->failed) {
        smp__worker_leave(u->worker);
        return;
    }
    smp__worker_stop(u->worker);
    free(u->index);
    free(u->list);
    free(u->piece);
    free(u);
    s->updates = NULL;
}

/* What of an update is from an element on, up to a piece of the device's. */
static smp_update part_of(const smp *s, const smp_update *update, int64_t begin)
{
    const int64_t left = update->elements - begin;
    smp_update part = *update;
    if (s->device->host_memory)
        return part;
    part.elements = left < PIECE_FLOATS ? left : PIECE_FLOATS;
    part.weight += begin;
    part.grad += begin;
    if (update->direction)
        part.direction += begin;
    if (update->weight16)
        part.weight16 = (uint16_t *)part.weight16 + begin;
    for (int k = 0; k < SMP_MAX_OPTIMIZER_STATES; k++)
        if (update->state16[k])
            part.state16[k] += begin;
        else if (update->state[k])
            part.state[k] += begin;
    part.rounding.first += begin;
    return part;
}

/* Weights that do not lie here, then gradients, in the piece's place of s->piece; the copies are
 * begun. Of the former the piece's place has what goes up. */
static smp_status bring_down(smp *s, const smp__updates *u, int64_t number, piece *p)
{
    const smp_update there = p->update;
    const int64_t bytes = there.elements * (int64_t)sizeof(float);
    float *here = (float *)(void *)s->buffers->piece + number % u->places * (2 * PIECE_FLOATS);
    float *grad = here + PIECE_FLOATS;
    const bool in_host = smp__weight_is_in_host(s, u->index[u->bringing]);
    p->rounded = in_host && !there.direction ? (uint16_t *)here : NULL;
    p->target = there.direction ? there.direction : in_host ? there.weight16 : there.weight;
    p->made = there.direction ? grad : here;
    p->bytes = p->rounded ? bytes / 2 : bytes;
    p->update.weight = in_host ? there.weight : here;
    p->update.weight16 = NULL;
    p->update.grad = grad;
    p->update.direction = there.direction ? grad : NULL;
    if (!in_host)
        SMP_TRY(s->device->copy_to_host(s->device_context, copy_of(u, number, WEIGHT_DOWN), here,
                                        there.weight, bytes));
    return s->device->copy_to_host(s->device_context, copy_of(u, number, GRAD_DOWN), grad,
                                   there.grad, bytes);
}

static bool is_copied(const smp *s, const smp__updates *u, int64_t number, int what)
{
    double begin_s, end_s;
    return s->device->host_memory ||
           s->device->copy_times(s->device_context, copy_of(u, number, what), &begin_s, &end_s);
}

/* A place is free again when what is new has left it. */
static bool has_place(const smp *s, const smp__updates *u)
{
    const int64_t before = u->down - u->places;
    return before < 0 || (before < u->up && is_copied(s, u, before, UP));
}

static smp_status bring_next(smp *s, smp__updates *u)
{
    piece *p = &u->piece[u->down % u->places];
    p->update = part_of(s, &u->list[u->bringing], u->at);
    u->at += p->update.elements;
    p->last = u->at == u->list[u->bringing].elements;
    if (!s->device->host_memory)
        SMP_TRY(bring_down(s, u, u->down, p));
    if (p->last) {
        u->bringing++;
        u->at = 0;
    }
    u->down++;
    return SMP_OK;
}

static smp_status ask(smp__updates *u)
{
    u->asked++;
    if (!u->worker)
        return make_update(u, u->asked - 1);
    smp__worker_ask(u->worker, u->asked);
    return SMP_OK;
}

static smp_status test_made(const smp__updates *u, bool *done)
{
    *done = true;
    return u->worker ? smp__worker_test(u->worker, u->up, done) : SMP_OK;
}

static smp_status send_back(smp *s, smp__updates *u)
{
    const piece *p = &u->piece[u->up % u->places];
    if (!s->device->host_memory)
        SMP_TRY(s->device->copy_to_device(s->device_context, copy_of(u, u->up, UP), p->target,
                                          p->made, p->bytes));
    if (u->begin_s == 0.0)
        u->begin_s = p->begin_s;
    u->end_s = p->end_s;
    u->made += p->last;
    u->up++;
    return SMP_OK;
}

smp_status smp__updates_look(smp *s)
{
    smp__updates *u = s->updates;
    if (!u || u->made == u->n)
        return SMP_OK;
    while (u->bringing < u->n && has_place(s, u))
        SMP_TRY(bring_next(s, u));
    while (u->asked < u->down && is_copied(s, u, u->asked, GRAD_DOWN))
        SMP_TRY(ask(u));
    for (bool done = true; u->up < u->asked;) {
        SMP_TRY(test_made(u, &done));
        if (!done)
            break;
        SMP_TRY(send_back(s, u));
    }
    return SMP_OK;
}

/* Copies in 16 bits are the device's own, of what has come back, unless they are that. */
static smp_status join(smp *s, smp__updates *u)
{
    if (!s->device->host_memory)
        SMP_TRY(s->device->copy_join(s->device_context, copy_of(u, u->up - 1, UP)));
    for (; u->joined < u->made; u->joined++) {
        const smp_update *update = &u->list[u->joined];
        if (!s->device->host_memory && update->weight16 && !update->direction &&
            !smp__weight_is_in_host(s, u->index[u->joined]))
            SMP_TRY(s->device->round16(s->device_context, update->half, update->weight16,
                                       update->weight, update->elements));
    }
    return SMP_OK;
}

typedef struct update_wait {
    smp *job;
    int n;
} update_wait;

static void describe(const void *context, char *buffer, size_t size)
{
    const update_wait *w = context;
    const smp *s = w->job;
    const int32_t index = s->updates->index[s->updates->made];
    snprintf(buffer, size, "the update of weight '%s' on the host",
             s->graph->param[s->memory->param[index].param].name);
}

static smp_status test(void *context, bool *done)
{
    const update_wait *w = context;
    smp *s = w->job;
    bool idle; /* errors of the device appear there */
    SMP_TRY(smp__updates_look(s));
    *done = s->updates->made >= w->n;
    if (*done)
        return SMP_OK;
    SMP_TRY(s->device->idle(s->device_context, &idle));
    return s->endpoint->context ? s->endpoint->transport->progress(s->endpoint->context) : SMP_OK;
}

smp_status smp__updates_wait(smp *s, int n)
{
    smp__updates *u = s->updates;
    update_wait w = {s, n};
    if (!u || u->joined >= n)
        return SMP_OK;
    const double begin_s = smp__spent_begin(s->record);
    SMP_TRY(smp__comm_wait_until(s->comm, &(smp_wait){0}, test, describe, &w));
    if (s->given->training && !smp__place_words(s->place))
        smp__spent_end(s->record,
                       smp__place_is_forward(s->place) ? SMP__SPENT_UPDATE_FORWARD
                                                       : SMP__SPENT_UPDATE_OTHER,
                       begin_s);
    return join(s, u);
}

smp_status smp__updates_finish(smp *s)
{
    return s->updates ? smp__updates_wait(s, s->updates->n) : SMP_OK;
}

smp_status smp__updates_settle(smp *s)
{
    return s->updates ? smp__comm_agree(s->comm, smp__updates_finish(s)) : SMP_OK;
}

void smp__updates_times(const smp *s, double times_s[2])
{
    times_s[0] = s->updates ? s->updates->begin_s : 0.0;
    times_s[1] = s->updates ? s->updates->end_s : 0.0;
}

/* All pieces of earlier lists are up, and known to be: each call has waited for its own. */
static smp_status begin_list(smp *s)
{
    smp__updates *u = s->updates;
    u->bringing = u->made = u->joined = 0;
    u->at = 0;
    u->begin_s = u->end_s = 0.0;
    if (!s->device->host_memory) {
        SMP_TRY(s->device->copy_from_here(s->device_context, false));
        SMP_TRY(s->device->copy_from_here(s->device_context, true));
    }
    return u->worker ? smp__updates_look(s) : smp__updates_finish(s);
}

smp_status smp__updates_begin(smp *s, int64_t step, float lr, float grad_scale)
{
    smp__updates *u = s->updates;
    for (int i = 0; i < u->n; i++)
        u->list[i] = smp__update_of(s, u->index[i], step, lr, grad_scale);
    return begin_list(s);
}

smp_status smp__updates_measure(smp *s, int64_t step, float lr, float grad_scale)
{
    smp__updates *u = s->updates;
    for (int i = 0; i < u->n; i++) {
        u->list[i] = smp__update_of(s, u->index[i], step, lr, grad_scale);
        u->list[i].direction = (float *)u->list[i].grad;
    }
    SMP_TRY(begin_list(s));
    return smp__updates_finish(s);
}
