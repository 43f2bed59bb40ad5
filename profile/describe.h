/* A device's description from a profile: what a cluster file may name (FORMAT.md, "efficiency"). */
#ifndef SMP_PROFILE_DESCRIBE_H
#define SMP_PROFILE_DESCRIBE_H

#include "profile/profile.h"

/* What was found, and how far it is from the operators that it was found in. */
typedef struct smp_device_measure {
    double flops_per_s;       /* of products, were their sums without end */
    double plain_flops_per_s; /* of the fastest op that is none; in fp32 as of products */
    double bytes_per_s;       /* of large ops that move memory, the median */
    double call_us;           /* of the shortest call */
    double lost_k;            /* this and shares of attention as in smp_efficiency; */
    double attention_forward, attention_backward; /* 0: there is none */
    int n_part;                                   /* parts of ops that it was found in */
    double error;                                 /* of their times, mean over time: 0.1 is 10 % */
} smp_device_measure;

/* The graph: the profile's, of different products (short and long sums), attention, large and tiny
 * ops that move memory, as examples/profiles/describe-device.yaml has them. SMP_ERR_INPUT: it lacks
 * a product, or what moves memory. O(ops * a grid of 400). */
smp_status smp_device_measure_get(const smp_graph *graph, const smp_profile *profile,
                                  smp_device_measure *out);

/* As a description with that name and memory, which was measured with ops of the graph. */
smp_status smp_device_describe(const smp_device_measure *measure, const smp_graph *graph,
                               const char *name, int64_t memory_bytes, smp_text *yaml);

#endif
