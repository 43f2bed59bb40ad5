/* A program as a child in a process group of its own, with pipes. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_CHILD_PROCESS_H
#define SMP_TOOLS_ELASTIC_HOSTS_CHILD_PROCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "graph/base/status.h"

typedef struct smp__child {
    pid_t pid;    /* 0: none */
    int status;   /* as waitpid has it, once */
    bool ended;   /* ... it is reaped */
    int in;       /* its standard input; -1: none, it reads nothing */
    int out, err; /* ... output and error; -1: closed */
} smp__child;

#define SMP__NO_CHILD                                                                              \
    {                                                                                              \
        .in = -1, .out = -1, .err = -1                                                             \
    }

/* argv ends with NULL. talks: it gets a pipe as standard input. death_signal: what it gets when
 * this thread ends; 0: nothing. The pipes do not block. SMP_ERR_INPUT: it cannot be started. */
smp_status smp__child_start(char *const *argv, bool talks, int death_signal, smp__child *out);
/* Has it ended? Reaps it then. */
bool smp__child_reap(smp__child *child);
/* Its whole group, unless it is reaped: then the number may be another one's. */
void smp__child_kill(const smp__child *child);
/* Reaps what was killed, if it ends within some milliseconds, as it should. */
void smp__child_bury(smp__child *child);
/* Closes the pipes. The child itself, if it runs, is forgotten. */
void smp__child_close(smp__child *child);

#endif
