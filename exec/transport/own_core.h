/* Ranks that share cores: each keeps to one of them while it has a job. The thread is the host's
 * and gets back what it had. And threads that work beside a rank. */
#ifndef SMP_EXEC_TRANSPORT_OWN_CORE_H
#define SMP_EXEC_TRANSPORT_OWN_CORE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "graph/base/status.h"

/* Binds the calling thread to the core of this rank among those of its machine. */
void smp__own_core_take(int node_rank);
/* Once for every take, by the same thread: the last one gives back. By another thread: nothing. */
void smp__own_core_give_back(void);

/* Starts a thread beside the calling one, which may run on any core that the host had. Signals are
 * the business of the program's own threads. false: it cannot be started. */
bool smp__own_core_start(pthread_t *thread, void *(*run)(void *), void *of);
/* How many cores a process, 0: the calling thread, may use; 0: unknown. */
int smp__own_core_count(pid_t of);
/* Is there a core for a thread beside each of so many ranks of this machine? */
bool smp__own_core_spare(int node_ranks);

/* Such a thread with tasks, numbered from 0, which it does in their order. One thread asks. A task
 * finds what was written before it was asked for; who has tested that it is done finds what the
 * task wrote. */
typedef struct smp__worker smp__worker;
typedef smp_status smp__worker_task(void *of, int64_t number);
smp_status smp__worker_start(smp__worker_task *task, void *of, smp__worker **out);
/* All tasks below n. */
void smp__worker_ask(smp__worker *worker, int64_t n);
/* The error of a task that failed appears here, and for all after it, which are left undone. */
smp_status smp__worker_test(smp__worker *worker, int64_t number, bool *done);
/* Accepts NULL. Joins the thread; what it has not begun is left undone. */
void smp__worker_stop(smp__worker *worker);
/* Accepts NULL. It ends by itself, if it ever does; what it uses has to stay. */
void smp__worker_leave(smp__worker *worker);

#endif
