/* A thread that reads a part of the data while the step before computes. */
#ifndef SMP_TOOLS_RUN_READ_AHEAD_H
#define SMP_TOOLS_RUN_READ_AHEAD_H

#include "exec/data/data.h"

/* What is read: samples [first, first + count) of the sequence, of every input with a buffer. */
typedef struct smp__reading {
    smp_data *data;
    int64_t first, count;
    int n_input;
    void *const *buffer; /* [n_input]; NULL: not needed */
} smp__reading;

/* By the caller itself. */
smp_status smp__reading_do(const smp__reading *what);

typedef struct smp__read_ahead smp__read_ahead;

/* NULL, where the system gives no thread or memory: then nothing is read ahead. Keeps the affinity
 * of the caller as it is now; takes no signals. */
smp__read_ahead *smp__read_ahead_start(void);
/* Waits for what is being read. Accepts NULL. */
void smp__read_ahead_stop(smp__read_ahead *a);

/* Begins to read; the buffers are the thread's until the wait that follows. One at a time. */
void smp__read_ahead_ask(smp__read_ahead *a, const smp__reading *what);
/* The end of what was asked, and what came of it: its failure is then the caller's last error. */
smp_status smp__read_ahead_wait(smp__read_ahead *a);
/* What the last one took the thread, whoever waited for it. */
double smp__read_ahead_took_us(const smp__read_ahead *a);

#endif
