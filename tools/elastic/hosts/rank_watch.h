/* The ranks of a job on one host, as its agent sees them: whether they live, by descriptors of
 * their processes, and whether they get on, by the files in which they beat. It is not their
 * parent. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_RANK_WATCH_H
#define SMP_TOOLS_ELASTIC_HOSTS_RANK_WATCH_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

typedef struct smp__watched {
    int pid;        /* 0: has not beaten yet */
    int process;    /* descriptor; -1: none, or it is gone */
    int64_t beat;   /* the last */
    int64_t step;   /* finished */
    double quiet_s; /* since the last beat, by the time in which the agent ran */
    bool gone;
} smp__watched;

typedef struct smp__rank_watch {
    const char *folder; /* the caller's */
    int directory;      /* the same, open; -1: not yet there */
    int n;              /* of the job; those on other hosts do not beat here */
    smp__watched *rank; /* [n] */
} smp__rank_watch;

/* Can processes be watched here? SMP_ERR_FAILED: the kernel has no descriptors of processes. */
smp_status smp__rank_watch_check(void);
/* Kills what is left of an earlier job that beat in the folder, waits for its end, and removes its
 * files of beats. SMP_ERR_FAILED: a process does not end. */
smp_status smp__rank_watch_end_orphans(const char *folder);
/* Before ranks of a job of n are started. */
smp_status smp__rank_watch_open(const char *folder, int n, smp__rank_watch *out);
void smp__rank_watch_close(smp__rank_watch *watch);
/* Reads new beats; elapsed_s since the last look. */
void smp__rank_watch_look(smp__rank_watch *watch, double elapsed_s);
/* What to wait for, and what has come of that: is anyone gone? polls: [n]. */
int smp__rank_watch_put_polls(const smp__rank_watch *watch, struct pollfd *polls);
bool smp__rank_watch_take_polls(smp__rank_watch *watch, const struct pollfd *polls, int n);
void smp__rank_watch_kill(smp__rank_watch *watch);
void smp__rank_watch_kill_one(smp__rank_watch *watch, int rank);

/* A descriptor of the process of this number that began then (smp__process_start); -1: it is gone.
 */
int smp__process_open(int64_t pid, uint64_t start_ticks);
/* Sends a signal; waits until it has ended. */
void smp__process_signal(int process, int number);
bool smp__process_ends(int process, double patience_s);

#endif
