/* The signals by which a user ends a job: they are blocked, and read one by one. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_USER_SIGNALS_H
#define SMP_TOOLS_ELASTIC_HOSTS_USER_SIGNALS_H

/* SIGTERM, SIGINT, SIGUSR1 and SIGHUP, but for those that are ignored already; what is polled wakes
 * when a child ends, too. A descriptor, which the caller closes; -1: errno says why there is none.
 */
int smp__user_signals_open(void);
/* The next that has come; 0: none. */
int smp__user_signals_take(int signals);

#endif
