/* Ranks that share cores: each keeps to one of them while it has a job. The thread is the host's
 * and gets back what it had. */
#ifndef SMP_EXEC_TRANSPORT_OWN_CORE_H
#define SMP_EXEC_TRANSPORT_OWN_CORE_H

#include <pthread.h>
#include <stdbool.h>

/* Binds the calling thread to the core of this rank among those of its machine. */
void smp__own_core_take(int node_rank);
/* Once for every take, by the same thread: the last one gives back. By another thread: nothing. */
void smp__own_core_give_back(void);

/* Starts a thread beside the calling one, which may run on any core that the host had. Signals are
 * the business of the program's own threads. false: it cannot be started. */
bool smp__own_core_start(pthread_t *thread, void *(*run)(void *), void *of);

#endif
