/* The hosts of an elastic job: an agent on each, what they tell of its ranks, and what becomes of
 * hosts that do not answer. Nothing here waits for a host but what is said to at the end. */
#ifndef SMP_TOOLS_ELASTIC_HOSTS_HOSTS_H
#define SMP_TOOLS_ELASTIC_HOSTS_HOSTS_H

#include <sys/stat.h>

#include "tools/elastic/hosts/agent_link.h"
#include "tools/elastic/hosts/host_list.h"

typedef enum smp__host_state {
    SMP__HOST_DOWN,
    SMP__HOST_STARTING, /* its agent has not answered yet */
    SMP__HOST_UP,
    SMP__HOST_REFUSED /* its devices are of another kind */
} smp__host_state;

typedef struct smp__host {
    char *name;
    int devices;
    bool local;  /* the supervisor's own; the first */
    bool listed; /* the file names it, still */
    smp__host_state state, told;
    smp__agent_link link;
    bool tried; /* its first agent has answered, or has not in time */
    bool used;  /* by the incarnation */
    bool lost;  /* since its ranks' places were chosen last (placing.c): it may have kept nothing */
    double since_s, again_s, pause_s;
} smp__host;

/* A rank as its host's agent tells. */
typedef struct smp__rank {
    int pid; /* 0: has not beaten yet */
    int host;
    bool gone;
    int64_t step; /* finished */
    double quiet_s;
} smp__rank;

typedef struct smp__ranks {
    int n;
    smp__rank *rank; /* [n] */
    int n_known;     /* have beaten */
    int first_gone;  /* rank; -1: all live */
} smp__ranks;

typedef struct smp__hosts_options {
    const char *file;  /* of names; NULL: the batch system's, or this host alone */
    const char *agent; /* how to get a shell on another host; NULL: ssh, or srun */
    int devices;       /* of this host where it is alone */
    bool gpus;
    const char *program, *keep;
    double beat_limit_s, keep_for_s;
    void (*say)(const char *format, ...) __attribute__((format(printf, 1, 2)));
    smp_status (*meanwhile)(void *of); /* while all are waited for; a failure ends that */
    void *of;
} smp__hosts_options;

typedef struct smp__hosts {
    smp__hosts_options options;
    int n;
    smp__host *host;
    char kind[SMP__KIND_BYTES]; /* of the local one's devices */
    char agent[1024];           /* with {host} */
    struct stat looked;         /* at the file */
    int64_t incarnation;
    smp__ranks ranks;
    int lost;      /* a host that was used and is lost since ranks were started; -1 */
    double lost_s; /* ... it had been silent for so long */
    double said_s; /* "beat" */
} smp__hosts;

/* Lists the hosts; agents are started by smp__hosts_look. SMP_ERR_INPUT: the list is bad, or this
 * host is not in it. */
smp_status smp__hosts_open(const smp__hosts_options *options, smp__hosts *out);
/* Hears agents, starts those that are due, sees who is lost, reads the file again if it is another
 * one. elapsed_s since the last time. */
void smp__hosts_look(smp__hosts *hosts, double elapsed_s);
/* Has each host been tried? Only before the first start of ranks is that waited for. */
bool smp__hosts_settled(const smp__hosts *hosts);
bool smp__host_usable(const smp__host *host);
/* Does any host hold a state in memory? Known once its agent was ready. */
bool smp__hosts_have_state(const smp__hosts *hosts);
/* Agents get ready for an incarnation of n ranks on the hosts that are `used`. */
smp_status smp__hosts_begin(smp__hosts *hosts, int64_t incarnation, int n);
/* *ready: all of them are. One that has failed to is lost. SMP_ERR_FAILED: it is the local one. */
smp_status smp__hosts_ready(smp__hosts *hosts, bool *ready);

/* A rank that lives and has not beaten for limit_s; -1: none. */
int smp__ranks_quiet(const smp__hosts *hosts, double limit_s);
void smp__ranks_kill(smp__hosts *hosts);
void smp__ranks_kill_one(smp__hosts *hosts, int rank);
/* Have all that have beaten ended, or gone with their hosts? */
bool smp__ranks_gone(const smp__hosts *hosts);
/* The highest step that a rank has finished; 0: none. */
int64_t smp__ranks_step(const smp__hosts *hosts);

int smp__hosts_count_polls(const smp__hosts *hosts);
void smp__hosts_put_polls(const smp__hosts *hosts, struct pollfd *polls); /* [count] */

/* At the end of a job, when nothing runs: to all that are up; waits until all of them have
 * answered. SMP_ERR_FAILED: one has failed, or does not in time; or as `meanwhile`. */
void smp__hosts_say(smp__hosts *hosts, const char *line);
smp_status smp__hosts_await(smp__hosts *hosts, bool (*answered)(const smp__agent_link *link),
                            double limit_s);
/* All have removed what they keep. */
smp_status smp__hosts_remove(smp__hosts *hosts);
/* The last state that they have together, into a directory, unless what is there was saved later.
 * *step: of what was saved; 0: nothing had to be. SMP_ERR_FAILED is tried again: what a host that
 * is lost meanwhile had, its partner may have. */
smp_status smp__hosts_save(smp__hosts *hosts, const char *directory, int64_t *step);
/* release: agents leave, and are waited for, not for long. Otherwise they hold what is kept. */
void smp__hosts_close(smp__hosts *hosts, bool release);

#endif
