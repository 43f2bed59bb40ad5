/* The file KEEP-agent: its lock is held by one agent of a host at a time, the latest. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_AGENT_LOCK_H
#define SMP_TOOLS_ELASTIC_HOSTS_AGENT_LOCK_H

#include "graph/base/status.h"

typedef struct smp__agent_lock {
    int file; /* -1: not held */
    char path[4096];
} smp__agent_lock;

/* Asks an earlier agent to leave, waits for that, and kills it if it does not. SMP_ERR_INPUT: the
 * file is not this user's; SMP_ERR_FAILED: that agent does not end. */
smp_status smp__agent_lock_take(const char *keep, smp__agent_lock *out);
void smp__agent_lock_drop(smp__agent_lock *lock);

#endif
