/* A core passed on: two threads stand for two ranks that share it. Each works for a while on memory
 * of its own, hands the turn to the other and waits as a rank waits where there are more of them
 * than cores. A switch costs from the moment a turn is given until it is taken, and what the first
 * pass over one's memory takes longer than a second one: it finds the cache filled by the other. A
 * turn is as long as sleeps need to reach their full length. */
#include "exec/probe/probe_core.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "exec/transport/comm.h"
#include "exec/transport/own_core.h"
#include "profile/measure.h"

enum { PLAYERS = 2, CACHE_BYTES = 1 << 20, LINE_BYTES = 64 };

#define TURN_S 600e-6

typedef struct game {
    atomic_int turn; /* counts up; of player turn % PLAYERS */
    int turns;       /* of each */
    double given_s;  /* the turn, when; written before it */
} game;

typedef struct player {
    game *game;
    int number;
    smp_comm comm; /* of no job; it makes a wait that of a crowded rank */
    char *memory;  /* [CACHE_BYTES] */
    double *us;    /* [turns] */
} player;

typedef struct turn_wait {
    game *game;
    int turn;
} turn_wait;

static smp_status test_turn(void *context, bool *done)
{
    const turn_wait *wait = context;
    *done = atomic_load_explicit(&wait->game->turn, memory_order_acquire) == wait->turn;
    return SMP_OK;
}

static void describe_turn(const void *context, char *buffer, size_t size)
{
    (void)context;
    snprintf(buffer, size, "its turn");
}

/* Returns what one pass takes. */
static double touch(const player *p)
{
    volatile char *line = p->memory;
    const double begin_s = smp_clock_s();
    for (int at = 0; at < CACHE_BYTES; at += LINE_BYTES)
        line[at]++;
    return smp_clock_s() - begin_s;
}

/* Waits cannot fail: there is nobody to say so, and no time-out. */
static void *play(void *context)
{
    player *p = context;
    game *g = p->game;
    for (int i = 0; i < g->turns; i++) {
        turn_wait wait = {g, i * PLAYERS + p->number};
        (void)smp__comm_wait_until(&p->comm, &(smp_wait){0}, test_turn, describe_turn, &wait);
        const double taken_s = smp_clock_s(), waited_s = taken_s - g->given_s;
        const double first_s = touch(p), again_s = touch(p);
        p->us[i] = 1e6 * (waited_s + (first_s > again_s ? first_s - again_s : 0));
        while (smp_clock_s() - taken_s < TURN_S)
            touch(p);
        g->given_s = smp_clock_s();
        atomic_store_explicit(&g->turn, wait.turn + 1, memory_order_release);
    }
    return NULL;
}

/* The other thread keeps the core and the policy of the one that starts it. Signals are for the
 * program's own threads. */
static smp_status play_both(player *p)
{
    pthread_t other;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const bool started = pthread_create(&other, NULL, play, &p[1]) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!started)
        return smp_fail(SMP_ERR_FAILED, "core switch: cannot start a thread");
    p[0].game->given_s = smp_clock_s();
    play(&p[0]);
    pthread_join(other, NULL);
    return SMP_OK;
}

smp_status smp__probe_core_switch(int node_rank, int turns, double *us)
{
    game g = {.turns = turns};
    double *sample = calloc((size_t)turns * PLAYERS, sizeof *sample);
    char *memory = calloc(PLAYERS, CACHE_BYTES);
    player p[PLAYERS];
    smp_status status = sample && memory ? SMP_OK : smp_fail_memory(PLAYERS * CACHE_BYTES);
    for (int i = 0; i < PLAYERS && status == SMP_OK; i++)
        p[i] = (player){.game = &g,
                        .number = i,
                        .comm = {.crowded = true, .notice = MPI_COMM_NULL},
                        .memory = memory + (size_t)i * CACHE_BYTES,
                        .us = sample + (size_t)i * (size_t)turns};
    if (status == SMP_OK) {
        smp__own_core_take(node_rank);
        status = play_both(p);
        smp__own_core_give_back();
    }
    if (status == SMP_OK)
        *us = smp__median(sample, (int64_t)turns * PLAYERS);
    free(sample);
    free(memory);
    return status;
}
