/* The launcher of a job's ranks, a child in a process group of its own that ends with the
 * supervisor, and the lines that it prints. */
#ifndef SMP_TOOLS_ELASTIC_LAUNCHER_H
#define SMP_TOOLS_ELASTIC_LAUNCHER_H

#include <poll.h>
#include <stdbool.h>

#include "graph/base/text.h"
#include "tools/elastic/hosts/child_process.h"

/* What its standard error has told of the job. */
typedef struct smp__told {
    int rank, signal; /* that ended it; -1 and 0: nothing was said */
} smp__told;

typedef struct smp__launcher {
    smp__child child;
    smp_text out_part, err_part;
    smp__told told;
} smp__launcher;

/* What the environment of mpirun has to say for n ranks on one host at most: as
 * examples/mpi-env.sh. shell: with other hosts, what it starts its daemons there with; NULL: there
 * is one host. What is set already stays. */
smp_status smp__launcher_prepare(int n, const char *shell);
/* Starts it. argv: ends with NULL. SMP_ERR_INPUT: the program cannot be started. */
smp_status smp__launcher_start(char *const *argv, smp__launcher *out);
/* Reads what is there and passes whole lines on, unless their reader stalls. */
void smp__launcher_read(smp__launcher *launcher);
void smp__launcher_put_polls(const smp__launcher *launcher, struct pollfd *polls); /* [2] */
void smp__launcher_signal(const smp__launcher *launcher, int number); /* to the process alone */
/* Passes on what is left, and closes the pipes. The process has ended. */
void smp__launcher_close(smp__launcher *launcher);

/* The exit code of a job: of the process, or 128 and the signal that ended it. */
int smp__launcher_code(const smp__launcher *launcher);

#endif
