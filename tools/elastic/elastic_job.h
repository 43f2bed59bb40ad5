/* An elastic job as its supervisor has it: what the parts of the supervisor share. */
#ifndef SMP_TOOLS_ELASTIC_ELASTIC_JOB_H
#define SMP_TOOLS_ELASTIC_ELASTIC_JOB_H

#include "exec/elastic/supervised.h"
#include "tools/elastic/device_slots.h"
#include "tools/elastic/elastic_options.h"
#include "tools/elastic/elastic_record.h"
#include "tools/elastic/output/events.h"
#include "tools/elastic/hosts/hosts.h"
#include "tools/elastic/launcher.h"
#include "tools/elastic/moves/state_moves.h"
#include "tools/elastic/plans.h"
#include "tools/elastic/output/rows_file.h"

typedef enum smp__life {
    SMP__LIFE_CHOOSE, /* nothing runs: a plan is looked for */
    SMP__LIFE_PLAN,   /* ... it is being made */
    SMP__LIFE_PAUSE,  /* ... until until_s */
    SMP__LIFE_WAIT,   /* too few devices, until until_s */
    SMP__LIFE_START,  /* agents get ready for ranks */
    SMP__LIFE_RUN,    /* ranks run */
    SMP__LIFE_END,    /* ... and have been asked to end, or killed; by until_s */
    SMP__LIFE_OVER
} smp__life;

/* Devices that are slower than others (slow_devices.c). */
typedef struct smp__slow_devices {
    smp__speeds now;     /* of the ranks that run, for which */
    double now_us;       /* ... a step is predicted to take so long; 0: not yet known */
    smp__speeds planned; /* ... which their plan was made for */
    double since_s;      /* smp_clock_s: the last finding of one of theirs */
    int changes;         /* that were made for slow devices */
    bool ends;           /* ranks are ended for one */
} smp__slow_devices;

typedef struct smp__elastic_job {
    const smp__elastic_options *options;
    int signals;                   /* user_signals.h */
    struct smp__folder_lock *lock; /* of DIR, this supervisor's; NULL: not held, */
    double renewed_s;              /* ... looked at then; 0: not taken yet */
    bool ousted;                   /* ... another supervisor has it by now */
    char *folder, *keep;           /* real path of DIR; the folder of kept states */
    char *program;                 /* smp-run */
    char *gpus;                    /* CUDA_VISIBLE_DEVICES as it was; NULL: not set */
    smp__events events;
    smp__slots slots;
    smp__record record;
    smp__plans plans;
    smp__rows rows;
    smp__launcher launcher;
    smp__hosts hosts;
    smp__slow_devices slow;
    smp__life life;
    double until_s;
    int code;       /* of the end */
    bool user_end;  /* a signal asks for the end */
    bool ask_again; /* ... which ranks may not have got yet */
    double asked_s; /* ... when they were told last */
    bool reshapes;  /* the ranks are ended for other devices */
    bool told_idle;
    bool told_few; /* that there are too few devices has been said */

    /* The incarnation: ranks from one start to their end. */
    int devices;
    int *picked;                 /* [most] slots of the ranks */
    int number;                  /* of the plan (plans.h) */
    char plan[4096];             /* path of theirs */
    smp__moves moves;            /* what they lack of the state */
    bool resumed;                /* a step is done */
    double started_s, loaded_s;  /* ranks were started, all have beaten or said so; 0: not yet */
    double first_mark_s, mark_s; /* the first and the last step were seen */
    int64_t first_mark, n_marks;
    bool killed;   /* its ranks, because they did not end */
    double left_s; /* the launcher was gone, and ranks were not; 0: not seen */
    int stalled;   /* rank that was killed because it did not beat; -1 */
    int lost_host; /* ... whose ranks, and devices, went with it; -1 */

    /* The recovery under way, and the failures before. */
    bool recovers;
    smp_text why;
    double lost_s, noticed_s, ended_s; /* a rank was lost, and seen to be; all had ended */
    double paused_s;
    int64_t reached; /* the highest step that rank 0 had done then */
    int in_a_row;    /* failures without a step between them */
    int64_t failed_last;
    int own_failures; /* of the program by itself, and the step of the last */
    int64_t own_failed_at;
    int failed_slot; /* -1: not known */
    double cost_s;   /* the last recovery took, from its plan on, or the first start */
} smp__elastic_job;

/* Takes DIR for this supervisor, by a lock that it holds as long as it lives, and waits where those
 * of a lost host have to run out. SMP_ERR_INPUT: another supervisor runs the job, or a signal has
 * come (user_end). */
smp_status smp__elastic_take_folder(smp__elastic_job *job);
/* Now and then. SMP_ERR_INPUT: another supervisor has it by now: nothing is written there any more.
 */
smp_status smp__elastic_renew(smp__elastic_job *job);
/* What a wait does meanwhile, for a job: renews that, and ends (SMP_ERR_INPUT, user_end) by a
 * signal of the user. */
smp_status smp__elastic_meanwhile(void *job);

/* Nothing runs: starts ranks on the devices at hand, or begins to make the plan for that, or waits.
 */
smp_status smp__elastic_choose(smp__elastic_job *job);
/* The fastest plan for so many devices, or the one with the stages of the last incarnation's, and
 * hosts in an order that moves little: what takes the least time within the horizon
 * (smp__going_on_s). Sets job->picked, job->moves and the plan's file, `path`. */
smp_status smp__elastic_place(smp__elastic_job *job, int number, char *path, size_t size);
/* Ranks run, and nothing is being planned: begins to make a plan that may be needed, or ends the
 * ranks because there are more devices and that pays. */
smp_status smp__elastic_look_ahead(smp__elastic_job *job);
/* What going on with other devices costs, as far as it is known. */
double smp__elastic_cost_s(const smp__elastic_job *job);
/* The devices at hand are others. */
void smp__elastic_change(smp__elastic_job *job);
/* The ranks have ended with an exit code: is that the end of the job, or what comes next? */
void smp__elastic_judge(smp__elastic_job *job, int code);
/* The first step of an incarnation is done. */
void smp__elastic_note_resumed(smp__elastic_job *job);
/* DIR/elastic.yaml. false: it cannot be written, which has been said; the job goes on; or it is
 * another supervisor's. */
bool smp__elastic_write_record(smp__elastic_job *job);
/* Nothing runs any more. opened: there was a job. */
void smp__elastic_close(smp__elastic_job *job, bool opened);
/* The job ends with the last error. */
void smp__elastic_fail(smp__elastic_job *job, smp_status status);

/* A rank is so many times slower than most; 1: no more. For smp__rows.tell_pace; context: the job.
 */
void smp__slow_tell(void *job, int rank, double times);
/* Speeds that have been known for long are forgotten, and set for the plan that is to know them.
 * Nothing runs, or ranks do. */
void smp__slow_look(smp__elastic_job *job);
/* Ranks are about to run by the plan of this number (plans.h). */
void smp__slow_begin(smp__elastic_job *job, int number);
/* Devices that plans for equal ones may have: those that are not slow, if they are enough and no
 * part of the state is lost with the others. */
int smp__slow_most(const smp__elastic_job *job);
/* What a step of the ranks that run is predicted to take, as fast as their devices are. */
double smp__slow_now_us(smp__elastic_job *job);
/* The number of a plan that has to be known for a decision, and is not; 0: all are. */
int smp__slow_wanted(smp__elastic_job *job);
/* The faster one of a plan for equal devices (0: there is none) and that for the speeds as they
 * are; its number. */
int smp__slow_best(const smp__elastic_job *job, int even);
/* Ranks run: the number of another plan that pays because devices are slow, or are so no more; 0:
 * none does. Says so in job->why. */
int smp__slow_better(smp__elastic_job *job);

#endif
