/* The plans of an elastic job: the first, for all devices, decides the bits; those for fewer have
 * the same. Each is made by a process of its own, so that training is watched meanwhile, and lies
 * in the job's folder: a supervisor that is started again finds it. */
#ifndef SMP_TOOLS_ELASTIC_PLANS_H
#define SMP_TOOLS_ELASTIC_PLANS_H

#include "schedule/plan/plan.h"
#include "tools/elastic/elastic_options.h"
#include "tools/elastic/speeds/plan_speeds.h"

typedef enum smp__plan_state {
    SMP__PLAN_UNKNOWN,
    SMP__PLAN_MADE,
    SMP__PLAN_NONE /* there is none for so many devices */
} smp__plan_state;

typedef struct smp__known_plan {
    smp__plan_state state;
    bool ahead;     /* made before it was needed */
    double step_us; /* predicted */
    uint64_t cuts;  /* of what decides which weights a rank has, but for replicas */
    char *why;      /* there is none; malloc'ed */
    int failures;   /* of the search */
    double again_s; /* ... which is not begun again before */
} smp__known_plan;

typedef struct smp__plans {
    const smp__elastic_options *options;
    const char *folder;
    smp__known_plan *of; /* [most + 2] by devices; the last: smp__plans_uneven */
    smp__speeds uneven;
    smp__known_plan *alike; /* likewise: with the stages of the plan in use */
    const char *like;       /* its file; NULL: none is in use */
    uint64_t like_cuts;
    int like_unit;    /* devices of a replica; 0: there are no plans with its stages */
    smp_plan *first;  /* NULL: not yet made */
    smp_graph *graph; /* its model */
    int child;        /* process that plans; 0: none */
    int planned;      /* ... for so many devices; 0: the first */
    bool ahead;       /* ... before it is needed */
    bool pinned;      /* ... with the stages of `like` */
    int report;       /* what it has to say when it fails; -1 */
} smp__plans;

/* known: plans that lie in the folder are this job's. SMP_ERR_INPUT: the first cannot be read. */
smp_status smp__plans_open(const smp__elastic_options *options, const char *folder, bool known,
                           smp__plans *out);
void smp__plans_close(smp__plans *plans);

/* The number that stands below for the plan for devices of these speeds, in place of their number,
 * which the other function gives. Another plan than before is made anew. */
static inline int smp__plans_uneven(const smp__plans *plans)
{
    return plans->options->most + 1;
}
int smp__plans_devices(const smp__plans *plans, int number);
void smp__plans_set_speeds(smp__plans *plans, const smp__speeds *speeds);

/* Begins to make the first plan, or that for so many devices, which then is not known yet; one at a
 * time. ahead: at low priority. */
smp_status smp__plans_begin(smp__plans *plans, int devices, bool ahead);
/* Ends what is being made. */
void smp__plans_stop(smp__plans *plans);
/* The process has ended, as waitpid says. A failure of the first plan is the job's; of another one
 * it is that there is none, or that the search has failed. */
smp_status smp__plans_end(smp__plans *plans, int status);
/* A search has failed: it is tried again after a while, a few times. */
void smp__plans_note_failure(smp__plans *plans, int devices, const char *why);
bool smp__plans_may_begin(const smp__plans *plans, int devices);

/* Is the plan for so many devices in the folder already? Sets its state then. */
bool smp__plans_find(smp__plans *plans, int devices);
/* The plan in use from now on, by its file, which is the caller's; and the same for plans with its
 * stages. There is none (SMP__PLAN_NONE) where the usual one, which has to be known, has them. */
smp_status smp__plans_use(smp__plans *plans, const char *path);
bool smp__plans_find_alike(smp__plans *plans, int devices);
smp_status smp__plans_begin_alike(smp__plans *plans, int devices);
smp_status smp__plans_alike_path(const smp__plans *plans, int devices, char *path, size_t size);
/* Of those that are made, for most devices at most, the fastest; for as many as can be within 10 %.
 * 0: none is made. */
int smp__plans_best(const smp__plans *plans, int least, int most);
/* The file of a plan that is made. */
smp_status smp__plans_path(const smp__plans *plans, int devices, char *path, size_t size);

/* The number of gradient blocks of a job that first has `blocks`, with so many micro-batches in
 * all, so that replicas of any number up to `devices` have work: see plans.c. */
int smp__plans_choose_blocks(int blocks, int64_t microbatches, int devices);

#endif
