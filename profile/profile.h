/* Measured costs of a model's operators on one device, and of the links between ranks: the profile
 * file and the measurement that makes it. Measuring needs live devices, which exec owns: this layer
 * defines the probe, exec implements it. */
#ifndef SMP_PROFILE_PROFILE_H
#define SMP_PROFILE_PROFILE_H

#include "graph/base/text.h"
#include "graph/math/gemm_algorithms.h"
#include "graph/model/graph.h"
#include "graph/yaml/yaml.h"
#include "profile/device/cluster.h"

/* Costs of one op for one micro-batch. backward_us is the sum of both halves, also where a kernel
 * does them together in less. backward_input_us includes adding the op's input gradients to those
 * of other consumers of the same tensor (all but the first to contribute). In microseconds. */
typedef struct smp_op_cost {
    double forward_us;
    double backward_us;
    double backward_input_us;
    double backward_weight_us;
    double forward_exchange_us,
        backward_exchange_us; /* of these, what devices of a group exchange */
    int64_t weight_bytes;     /* weights alone */
    int64_t stash_bytes;      /* kept from forward to backward of one micro-batch */
    int64_t output_bytes;
    int64_t workspace_bytes;
} smp_op_cost;

typedef struct smp_profile {
    const char *model; /* name */
    uint64_t fingerprint;
    const char *device;    /* "cpu" or a card's name, see smp_backend_of_device */
    const char *dtype;     /* name of the precision: "fp32", "tf32", "bf16", "fp16" */
    int64_t memory_bytes;  /* of the device, that a plan may use; 0: not known */
    int64_t library_bytes; /* that libraries take besides, once kernels run; 0: not measured */
    int64_t microbatch_size;
    int32_t n_op;
    const char *const *name;      /* [n_op], in graph order */
    const smp_op_cost *op;        /* [n_op] */
    const double *spread;         /* [n_op] interquartile range of its times over their medians; -1:
                                     not known; NULL: of none */
    double optimizer_bytes_per_s; /* weight bytes updated per second by AdamW; 0: not measured */
    bool bf16_states;             /* ... with states in bf16 */
    double reduce_bytes_per_s;    /* bytes of one gradient added to another; 0: not measured */
    smp_link_spec link[SMP_LINK_KINDS]; /* n_point 0: not measured */
    double core_switch_us;              /* a rank gets its core from another one; 0: not measured */
    double keep_bytes_per_s;            /* smp_cluster.keep_bytes_per_s; 0: not measured */
    double scatter;                     /* smp_cluster.scatter */
    smp_launch_costs launch;
    smp_gemm_choices products; /* of the device's matrix products */
    smp_arena *arena;
} smp_profile;

/* Reads a profile of a graph, or of the whole that it is split from. Errors: SMP_ERR_INPUT with
 * file:line:column; a fingerprint other than the graph's, or an op that the graph lacks, is an
 * error. */
smp_status smp_profile_read(const char *path, const smp_graph *graph, smp_profile **out);
smp_status smp_profile_write(const smp_profile *profile, const char *path);
/* What smp_profile_write writes. Same profile, same bytes; doubles read back equal. */
smp_status smp_profile_format(const smp_profile *profile, smp_text *yaml);
void smp_profile_destroy(smp_profile *profile);

/* `products:` of a profile or a plan; absent: none. */
smp_status smp_gemm_choices_read(const smp_yaml_node *top, const char *what, smp_arena *arena,
                                 smp_gemm_choices *out);

/* What it was measured on, of which the device's name tells the backend. */
smp_target smp_profile_target(const smp_profile *profile);
/* SMP_ERR_INPUT unless that is the target: times on another device or in another precision say
 * nothing. */
smp_status smp_profile_check_target(const smp_profile *profile, smp_target target);

/* The devices that a plan is for where no cluster file says so: of this machine
 * (smp_cluster_local), or, with memory of their own, as many of what the profile was measured on,
 * in one node; with the measured link and core switch. profile: NULL, or of the target.
 * SMP_ERR_INPUT for those unless it knows the device's memory. */
smp_status smp_cluster_default(smp_target target, const smp_profile *profile, int devices,
                               smp_cluster **out);

/* Live devices as the measurement sees them. Every rank of the job measures the same ops in the
 * same order, so that all cores are as busy as they will be in training; times are of the calling
 * rank. Between two calls of `sync` a rank may fail by itself; open and close are paired. */
typedef struct smp_probe {
    void *context;
    bool fuses; /* FORWARD of an op that is one kernel with the next (smp_op_fused) runs both, and
                   BACKWARD_INPUT that of the op before (smp_op_fused_backward) */
    const char *device;   /* see smp_profile */
    int64_t memory_bytes; /* of the device, free when it was opened; 0: not known */
    /* What libraries have taken of that since; NULL: not known. */
    smp_status (*library_bytes)(void *context, int64_t *bytes);
    /* Makes inputs, weights and gradients for one op at one micro-batch size. */
    smp_status (*open)(void *context, const smp_graph *graph, const smp_op *op, int64_t batch);
    /* Runs one part `repeat` times back to back, gives the mean time of one run. A part the op
     * does not have takes 0. */
    smp_status (*time)(void *context, smp_op_part part, int repeat, double *us);
    void (*close)(void *context);
    /* One way between two ranks of one node, or of two nodes, where there are any, or between a
     * device and its host while the other way is as busy: the mean of `repeat` messages after one
     * to warm up, and what all that took. Every rank is told the same. */
    bool has_link[SMP_LINK_KINDS];
    smp_status (*time_link)(void *context, smp_link_kind kind, int64_t bytes, int repeat,
                            double *us, double *spent_us);
    /* One AdamW update of `elements` weights. */
    smp_status (*time_optimizer)(void *context, int64_t elements, int repeat, double *us);
    /* Adding one gradient of `elements` activations, in 16 bits if the target is, to another; NULL:
     * not measured. */
    smp_status (*time_reduce)(void *context, int64_t elements, int repeat, double *us);
    /* A core that goes from one waiting rank to another, the median of so many turns of each. NULL:
     * ranks do not compute on cores. */
    smp_status (*time_core_switch)(void *context, int turns, double *us);
    /* A core of the host that hashes a state and writes it to memory, as ranks keep them. NULL: not
     * measured. */
    smp_status (*time_keeping)(void *context, double *bytes_per_s);
    /* What launches take the host of a device that can capture them; not measured: it cannot. NULL:
     * nobody launches. */
    smp_status (*time_launches)(void *context, smp_launch_costs *costs);
    /* How this rank computes the matrix products of the ops that were open so far, in the fastest
     * way that it has found for each. NULL: in one way. */
    smp_status (*products)(void *context, smp_arena *arena, smp_gemm_choices *out);
    /* Rank 0's bytes to every rank; NULL with a single rank. Collective. */
    smp_status (*share)(void *context, void *data, int64_t bytes);
    /* Waits for all ranks and gives every rank the same status: the first failure, if any. NULL
     * with a single rank. */
    smp_status (*sync)(void *context, smp_status status);
} smp_probe;

typedef struct smp_profile_options {
    int64_t microbatch_size;
    bool links;
    double link_s;        /* about so long, for all links */
    double min_sample_us; /* repeat a run until one sample takes this long */
    int samples;          /* median of so many */
    double most_spread;   /* an op whose times scatter more is measured again, all its samples, */
    int again;            /* ... up to so often; the least scattered measurement counts */
    /* both may be NULL */
    void (*progress)(void *context, int done, int total);
    void (*again_progress)(void *context, int scattered, int total); /* distinct ops */
    void (*link_progress)(void *context, smp_link_kind kind, int64_t bytes, double left_s);
    void *progress_context;
} smp_profile_options;

/* Measures every op of a graph that has the probe's target (identical ops once: same kind,
 * attributes, input shapes and weights), the optimizer and, if asked, the links. */
smp_status smp_profile_measure(const smp_graph *graph, const smp_probe *probe,
                               const smp_profile_options *options, smp_profile **out);

#endif
