/* One agent as the supervisor has it: the child that it talks through, and what it said last.
 * Nothing here waits. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_AGENT_LINK_H
#define SMP_TOOLS_ELASTIC_HOSTS_AGENT_LINK_H

#include <poll.h>
#include <stdint.h>

#include "exec/checkpoint/kept_ranges.h"
#include "graph/base/text.h"
#include "tools/elastic/hosts/child_process.h"
#include "tools/elastic/hosts/host_kind.h"

/* What an agent says of one rank. */
typedef struct smp__told_rank {
    int rank, pid;
    bool lives;
    int64_t step;
    double quiet_s;
} smp__told_rank;

typedef struct smp__agent_link {
    smp__child child; /* the agent, or the shell to its host */
    smp_text in, out, err;
    smp_text pieces; /* of a state that is being told */
    bool greeted;
    char kind[SMP__KIND_BYTES];
    double silent_s; /* since it said anything, by the time in which the supervisor ran */
    int64_t ready;   /* the last incarnation that it is ready for */
    int64_t failed;  /* ... that it has failed to get ready for; -1: none, 0: anything else */
    bool has_state;  /* its folder does */
    smp__kept_state *states; /* [n_states] that it has told of */
    int n_states;
    bool told_states; /* ... all of them */
    int64_t put;      /* bytes that it has written; -1: not yet */
    bool removed;     /* what is kept there is removed */
    char why[1024];   /* it has failed, or its child has said; empty: nothing */
} smp__agent_link;

#define SMP__NO_LINK                                                                               \
    {                                                                                              \
        .child = SMP__NO_CHILD, .failed = -1, .put = -1                                            \
    }

smp_status smp__agent_link_open(char *const *argv, bool local, smp__agent_link *out);
/* Kills the child, and forgets what was said. An agent on another host finds itself alone. */
void smp__agent_link_cut(smp__agent_link *link);
/* Forgets what was said, and closes the pipes: any agent finds itself alone. */
void smp__agent_link_leave(smp__agent_link *link);
/* Appends a line, and sends what can be sent. */
void smp__agent_link_say(smp__agent_link *link, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Reads what has come; tells each rank. false: the child has ended, or what it says is not the
 * language of an agent: `why` says so. */
bool smp__agent_link_hear(smp__agent_link *link, void (*tell)(void *of, const smp__told_rank *rank),
                          void *of);
void smp__agent_link_put_polls(const smp__agent_link *link, struct pollfd *polls); /* [3] */

#endif
