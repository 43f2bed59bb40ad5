/* The figures by which people compare plans. */
#ifndef SMP_TOOLS_SHOW_PLAN_FIGURES_H
#define SMP_TOOLS_SHOW_PLAN_FIGURES_H

#include "schedule/plan/plan.h"

typedef struct smp_plan_figures {
    int64_t parameters;   /* values of weights, tied ones once, without running statistics */
    int64_t global_batch; /* samples of a step */
    int64_t tokens;       /* of a sample, the most that an embedding reads; 0: none does */
    double tokens_per_s;  /* 0: as above */
    /* Arithmetic of the model a second and device, without what recomputation adds (Chowdhery et
     * al. 2022, section 4.1), and its share of what the devices' matrix units do at most; 0: not
     * known. */
    double device_flops_per_s, mfu;
} smp_plan_figures;

/* graph: the plan's, split or whole. O(ops). */
void smp_plan_figures_get(const smp_plan *plan, const smp_graph *graph, smp_plan_figures *out);

/* What a training of so many tokens takes at this speed: days, device hours. false: the model reads
 * none. */
bool smp_plan_training_time(const smp_plan_figures *figures, double tokens, int devices,
                            double *days, double *device_hours);

/* "124.4 M", with k, M, B or T for thousands, millions, billions and trillions. */
/* Devices of a group, "8" or where groups differ "2 to 8"; of single devices "1". */
char *smp_format_tensor(char *buffer, size_t size, const smp_plan *plan);
char *smp_format_count(char *buffer, size_t size, double count);
/* "41.2 GFLOP/s", from 10^12 on "381.0 TFLOP/s". */
char *smp_format_flops(char *buffer, size_t size, double flops_per_s);

#endif
