/* Several plans beside each other: a table, a CSV, a figure. */
#ifndef SMP_TOOLS_PARTITION_COMPARISON_H
#define SMP_TOOLS_PARTITION_COMPARISON_H

#include "graph/base/text.h"
#include "tools/show/plan_figures.h"

enum { SMP_MAX_COMPARED = 256, SMP_COMPARED_NAME = 512 };

/* Where the time of a step goes. Shares of rank time, means over ranks; they add up to 1. */
typedef enum smp_time_share {
    SMP_TIME_COMPUTE, /* forwards, backwards and the optimizer */
    SMP_TIME_RAMP,    /* nothing to do yet, or nothing left to do: the pipeline fills and drains */
    SMP_TIME_IMBALANCE, /* waits for what a neighbour still computes */
    SMP_TIME_TRANSFER,  /* waits for data on its way, the host's memory too */
    SMP_TIME_REDUCTION, /* waits for sums of gradients over replicas */
    SMP_TIME_SHARES
} smp_time_share;

extern const char *const smp_time_share_names[SMP_TIME_SHARES];

typedef struct smp_compared {
    char name[SMP_COMPARED_NAME];
    bool made;       /* false: there is no such plan, for this reason: */
    char reason[96]; /* the first words of it */
    char degrees[64], schedule[24];
    int devices, microbatches;
    int64_t microbatch_size, peak_bytes;
    double step_us, samples_per_s, bubble;
    double share[SMP_TIME_SHARES]; /* all 0 of a plan without `cluster:` */
    smp_plan_figures figures;
} smp_compared;

typedef struct smp_comparison {
    smp_compared *row; /* owned */
    int n;
    double tokens, price; /* of a whole training, of a device hour: columns of their own; 0: none */
} smp_comparison;

/* A row of its own; what it says is copied. graph: the plan's. SMP_ERR_INPUT: there are
 * SMP_MAX_COMPARED, or the plan is not one of the graph. O(actions log ranks). */
smp_status smp_comparison_add(smp_comparison *comparison, const char *name, const smp_plan *plan,
                              const smp_graph *graph);
/* The same where there is no plan. */
smp_status smp_comparison_miss(smp_comparison *comparison, const char *name, const char *reason);
void smp_comparison_free(smp_comparison *comparison);

/* Appends. csv: a head and a line for each row, numbers in SI units. */
smp_status smp_comparison_table(const smp_comparison *comparison, smp_text *text);
smp_status smp_comparison_csv(const smp_comparison *comparison, smp_text *text);
/* A figure: a bar for each plan, as long as a sample takes, in the colours of where the time
 * goes. */
smp_status smp_comparison_svg(const smp_comparison *comparison, smp_text *text);

#endif
