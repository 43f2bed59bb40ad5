/* What the drawings share: a picture with its cells. Written by picture.c and
 * picture_memory.c; only read by what draws. */
#ifndef SMP_TOOLS_SHOW_PICTURE_MODEL_H
#define SMP_TOOLS_SHOW_PICTURE_MODEL_H

#include "schedule/lower/crossing.h"
#include "tools/show/picture.h"
#include "schedule/simulate/simulate.h"

/* Why a rank stood still, as the simulation counts it (smp_simulation). */
typedef enum smp__wait {
    SMP__WAIT_WARMUP,
    SMP__WAIT_TRANSFER,
    SMP__WAIT_IMBALANCE,
    SMP__WAIT_REDUCTION,
    SMP__WAIT_DRAIN,
    SMP__WAIT_KINDS
} smp__wait;

/* A compute action or O. */
typedef struct smp__cell {
    smp_action_kind kind;
    int32_t microbatch; /* -1: O */
    int32_t stage;      /* -1: O */
    double start_us, end_us;
    double ready_us; /* when what it receives is there; < 0: it receives nothing */
    int64_t bytes;   /* alive from its start to the next cell's */
} smp__cell;

/* What goes on beside the compute: reductions, gathers of weights, what goes to host memory and
 * what comes back. */
enum { SMP__BESIDE_KINDS = 4 };
extern const char smp__beside_letters[]; /* of the kinds: "RGSL" */
typedef struct smp__beside {
    double start_us, end_us;
    int kind;
} smp__beside;

/* What a rank does in a step. */
typedef struct smp__lane {
    smp__cell *cell; /* by start */
    int64_t n;
    smp__beside *beside; /* at most one for each action */
    int64_t n_beside;
    double busy_us;
    double wait_us[SMP__WAIT_KINDS]; /* of the prediction */
} smp__lane;

typedef struct smp__timeline {
    smp__lane *lane; /* [pipeline]; NULL: there is no such timeline */
    double end_us;   /* of the last action */
} smp__timeline;

/* Memory of a rank. */
typedef struct smp__rank_memory {
    int64_t fixed_bytes;    /* weights, gradients, optimizer state, work area */
    int64_t alive_bytes;    /* most alive at one time, with the fixed part */
    int64_t reserved_bytes; /* the arena: alive and what packing loses */
    int64_t limit_bytes;    /* of the rank's smallest device, without what communicators may take;
                               0: not known */
} smp__rank_memory;

struct smp_picture {
    const smp_plan *plan;
    const smp_graph *graph;
    smp_simulated_plan simulated;
    const smp_flow *flow; /* its flow */
    smp__crossing crossing;
    smp__timeline predicted;
    smp__timeline measured;
    double bubble;            /* of the simulation */
    smp__rank_memory *memory; /* [pipeline] */
    int64_t **alive;          /* [pipeline][program n] bytes alive at each action */
    smp_arena *arena;
    const smp_run_record *run; /* borrowed; NULL: of a plan alone */
    const smp_text *section;   /* borrowed; NULL: none */
};

/* Fills memory and alive. */
smp_status smp__picture_memory(smp_picture *picture);

/* The later of both ends: the right edge of a drawing. At least a tiny positive number. */
double smp__picture_end_us(const smp_picture *picture);

/* Cells by what they look like: F B I W O, whose letters are smp__cell_letters[class]. */
enum { SMP__CELL_CLASSES = 5 };
extern const char smp__cell_letters[];
int smp__cell_class(smp_action_kind kind);

/* Which classes the prediction has. */
void smp__picture_classes(const smp_picture *picture, bool used[SMP__CELL_CLASSES]);
/* Whether anything goes to host memory in the prediction. */
bool smp__picture_offloads(const smp_picture *picture);

/* Shares of the classes in columns of bin_us, each averaged over some cells. */
enum { SMP__SHARE_BINS = 520 };
typedef double smp__shares[SMP__CELL_CLASSES][SMP__SHARE_BINS];
void smp__lane_shares(const smp__lane *lane, double bin_us, smp__shares bins);

/* Share of a timeline in which a rank is busy, in percent. */
double smp__busy_percent(const smp__timeline *timeline, int rank);

/* Appends HTML of a run: figures as SVG and tables, without a script. */
void smp_run_record_html(const smp_run_record *run, smp_text *html);

#endif
