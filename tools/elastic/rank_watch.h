/* The ranks of a job as the supervisor sees them: whether they live, by descriptors of their
 * processes, and whether they get on, by the files in which they beat. It is not their parent. */
#ifndef SMP_TOOLS_ELASTIC_RANK_WATCH_H
#define SMP_TOOLS_ELASTIC_RANK_WATCH_H

#include <poll.h>
#include <stdbool.h>
#include <stdint.h>

#include "graph/base/status.h"

typedef struct smp__rank {
    int pid;        /* 0: has not beaten yet */
    int process;    /* descriptor; -1: none, or it is gone */
    int64_t beat;   /* the last */
    int64_t step;   /* finished */
    double quiet_s; /* since the last beat, by the time in which the supervisor ran */
    bool gone;
} smp__rank;

typedef struct smp__ranks {
    const char *folder; /* the caller's */
    int directory;      /* the same, open; -1: not yet there */
    int n;
    smp__rank *rank; /* [n] */
    int n_known;     /* have beaten */
    int first_gone;  /* rank; -1: all live */
} smp__ranks;

/* Can processes be watched here? SMP_ERR_FAILED: the kernel has no descriptors of processes. */
smp_status smp__ranks_check(void);
/* Kills what is left of an earlier job that beat in the folder, waits for its end, and removes its
 * files of beats. SMP_ERR_FAILED: a process does not end. */
smp_status smp__ranks_end_orphans(const char *folder);
/* Before n ranks are started. */
smp_status smp__ranks_open(const char *folder, int n, smp__ranks *out);
void smp__ranks_close(smp__ranks *ranks);
/* Reads new beats; elapsed_s since the last look. */
void smp__ranks_look(smp__ranks *ranks, double elapsed_s);
/* A rank that lives and has not beaten for limit_s; -1: none. */
int smp__ranks_quiet(const smp__ranks *ranks, double limit_s);
/* What to wait for, and what has come of that: notes who is gone. poll: [n]. */
int smp__ranks_put_polls(const smp__ranks *ranks, struct pollfd *poll);
void smp__ranks_take_polls(smp__ranks *ranks, const struct pollfd *poll, int n);
void smp__ranks_kill(smp__ranks *ranks);
void smp__ranks_kill_one(smp__ranks *ranks, int rank);
/* Have all that have beaten ended? */
bool smp__ranks_gone(const smp__ranks *ranks);
/* The highest step that a rank has finished; 0: none. */
int64_t smp__ranks_step(const smp__ranks *ranks);

#endif
