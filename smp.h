/* SMP: automatic model partitioner, pipeline scheduler and executor. The only public header.
 *
 * A network is an operator graph in YAML. SMP cuts it into pipeline stages, schedules micro-batches
 * through them and trains it with one process per device under mpirun. Opaque handles, option
 * structs, no MPI or CUDA types.
 *
 * The library is a guest. It starts no threads except for smp_save, smp_save_begin and keep_every,
 * and after each call signal handlers, environment, OpenMP settings, rand(), locale and
 * floating-point modes are what they were. What a job has taken it gives back: memory, files, and,
 * in smp_finalize or a failed smp_init on the same thread, the thread's scheduling. What it
 * changes, and how not:
 * - MPI is initialised by the first smp_init if the program has not done so, with what MPI_Init
 *   does to a process (threads, descriptors, handlers of SIGSEGV and the like; its environment
 *   variables are taken back). A process can do that once, so MPI stays open and is finalised when
 *   the process exits, unless a job is open or broken then: such ranks do not wait for each other.
 *   A program that initialises MPI itself also finalises it, after the last smp_finalize.
 * - Where a machine has more ranks than cores, the calling thread is bound to one core, with the
 *   batch policy and a timer slack of 1 us, while it has a job: not with runtime.keep_scheduling.
 * - smp_elastic_join and smp_elastic_begin take signals and, under a supervisor, more: see there.
 * - A job on a GPU makes it the thread's current CUDA device; CUDA and NCCL, once loaded, stay.
 * - Plugins, once loaded, stay.
 *
 * Errors: every call that can fail returns an smp_status; smp_last_error() holds the message of the
 * last failure in the calling thread. The library never exits, prints or aborts. Outputs are
 * written only on success.
 *
 * Collective calls must be made by every rank of the job in the same order; each says so. */
#ifndef SMP_H
#define SMP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SMP_API __attribute__((visibility("default")))
#else
#define SMP_API
#endif

#define SMP_VERSION_MAJOR 0
#define SMP_VERSION_MINOR 1
#define SMP_VERSION_PATCH 0
#define SMP_VERSION_STRING "0.1.0"

/* name, value, exit code of the programs, text */
#define SMP_STATUS_LIST(X)                                                                         \
    X(SMP_OK, 0, 0, "ok")                                                                          \
    X(SMP_ERR_FAILED, 1, 1, "failed")                                                              \
    X(SMP_ERR_NO_MEMORY, 2, 1, "out of memory")                                                    \
    X(SMP_ERR_PEER, 3, 1, "another rank failed or hangs")                                          \
    X(SMP_ERR_INPUT, 4, 2, "wrong usage or bad input")                                             \
    X(SMP_ERR_NO_FIT, 5, 3, "no plan fits")

typedef enum smp_status {
#define SMP_STATUS_ENUM(name, value, exit_code, text) name = value,
    SMP_STATUS_LIST(SMP_STATUS_ENUM)
#undef SMP_STATUS_ENUM
} smp_status;

/* "SMP_ERR_INPUT" for SMP_ERR_INPUT. Static storage. */
SMP_API const char *smp_status_name(smp_status status);

/* The exit code a program should end with: 0 done, 1 failed, 2 bad input, 3 no plan fits. */
SMP_API int smp_status_exit_code(smp_status status);

/* Message of the last failure in this thread, "" if none. Valid until the next call that fails. */
SMP_API const char *smp_last_error(void);

/* "0.1.0", of the library at run time. */
SMP_API const char *smp_version(void);

/* A training (or inference) job on this rank. */
typedef struct smp smp;

/* Rank groups: all ranks; the ranks that hold the stages of one replica; the ranks that hold the
 * same stages in every replica; the ranks that compute every operator of their stages together
 * (tensor parallelism). Of the middle two each rank sees those with its own number in the last:
 * where stages have groups of different sizes, not every stage has one. */
typedef enum smp_group { SMP_WORLD, SMP_PIPELINE, SMP_DDP, SMP_TENSOR } smp_group;

/* In planning: what the plan to be kept (`fix`) says, else what stands beside the field. */
enum { SMP_DEFAULT = -1 };

typedef enum smp_objective { SMP_OBJECTIVE_STEP, SMP_OBJECTIVE_BOTTLENECK } smp_objective;
typedef enum smp_optimize { SMP_OPTIMIZE_SPEED, SMP_OPTIMIZE_MEMORY } smp_optimize;

/* Stages that run their forward again instead of keeping activations. */
typedef enum smp_recompute {
    SMP_RECOMPUTE_NONE,
    SMP_RECOMPUTE_AUTO, /* as much as it takes to fit */
    SMP_RECOMPUTE_ALL   /* everything; of a model that trains */
} smp_recompute;

/* How much work a search for a plan may be, whatever the machine: the same input has the same plan.
 * With SMP_OBJECTIVE_BOTTLENECK and HIGH the proof takes all of it while a gap is open. */
typedef enum smp_effort {
    SMP_EFFORT_QUICK,  /* about a second of one core of a server, */
    SMP_EFFORT_NORMAL, /* ten, */
    SMP_EFFORT_HIGH,   /* a hundred */
    SMP_EFFORT_FULL    /* until nothing is left to look at */
} smp_effort;

/* What lies in host memory while it is not needed. */
typedef enum smp_offload {
    SMP_OFFLOAD_NONE,
    SMP_OFFLOAD_AUTO, /* as much as it takes to fit, where that is faster than to recompute */
    SMP_OFFLOAD_ALL
} smp_offload;

/* Which states replicas share: each what the one before it says, and more. */
typedef enum smp_shard_what {
    SMP_SHARD_OPTIMIZER, /* states of the optimizer: ZeRO 1 */
    SMP_SHARD_GRADIENTS, /* ZeRO 2 */
    SMP_SHARD_WEIGHTS    /* ZeRO 3 */
} smp_shard_what;

/* What sums of gradients send: them as they are, or rounded to bf16, added in fp32, and the sums
 * rounded again. */
enum { SMP_WIRE_FP32, SMP_WIRE_BF16 };

/* Are weight gradients put off, to be made while a group exchanges gradients of activations? */
typedef enum smp_tensor_overlap {
    SMP_TENSOR_OVERLAP_AUTO, /* where it hides something and fits */
    SMP_TENSOR_OVERLAP_NO,
    SMP_TENSOR_OVERLAP_YES
} smp_tensor_overlap;

/* How a model is planned: the options of smp-partition, by their names, which `smp-partition
 * --help` explains and messages use. 0 in a count is auto. Strings and arrays belong to the caller,
 * who may free them after the call that takes the options. */
typedef struct smp_plan_options {
    const char *cluster;    /* file; NULL: the cores of this machine, or GPUs like the one that the
                            profile was measured on */
    const char *profile;    /* file; NULL: costs are estimated */
    const char *const *set; /* [n_set] "NAME=VALUE": other values for entries of the model's `let`;
                               the plan keeps them */
    int n_set;

    /* The shape of the plan. */
    int devices;             /* 0: all of the cluster, or as many as there are ranks */
    int stages;              /* pipeline ranks */
    int ddp;                 /* replicas */
    int tensor;              /* devices that compute every op together, neighbours of one node, or
                                those of several; the ranks are so many times stages x ddp.
                                SMP_DEFAULT: auto, for each stage its own where that pays */
    int tensor_overlap;      /* smp_tensor_overlap. SMP_DEFAULT: auto */
    int chunks;              /* stages per pipeline rank */
    int microbatches;        /* per replica and step */
    int64_t microbatch_size; /* samples; 0: the profile's, else any; 1 with microbatches */
    int64_t global_batch;    /* samples of a step, of all replicas, in every configuration looked
                                at; 0: what microbatches come to, else 512, or the least above
                                that the degrees divide */
    int gradient_blocks;     /* gradients are added in one tree of so many blocks of the global
                                batch: the same bits for every ddp up to it; 0: ddp */
    const char *schedule;    /* "interleaved", "zero-bubble", ...; NULL or "auto": any */
    int active_microbatches; /* most live micro-batches; 0: as the schedule has it */
    int weight_lag;          /* zero-bubble: most micro-batches that wait for W */
    int group;               /* micro-batches per group of chunked schedules; 0: stages */
    const char *placement; /* "cluster", "spread", "auto", or D, P and T in an order; NULL: auto */
    const double *speed;   /* [n_speed] of the first devices: the share of its usual speed, 0.001 to
                              1, at which each runs; NULL: as the cluster says */
    int n_speed;

    /* Which ops go where. */
    const char *const *split; /* [n_split] "PATTERN:RULE": how a group computes ops together */
    int n_split;
    const char *split_from;    /* a plan or checkpoint whose splitting is taken; NULL: none */
    const char *const *cut_at; /* [n_cut_at] patterns of ops, or several with commas between:
                                  stages begin at those alone */
    int n_cut_at;
    const char *fix;           /* a plan to plan around; NULL: none */
    const char *fix_stages;    /* those of its stages that stay, "0,3-5"; NULL: all */
    const char *schedule_from; /* a schedule of torch.distributed.pipelining; NULL: none */

    /* Replicas that hold parts of the states. */
    int shard;            /* replicas that hold one copy together; 0: 1, all, or those of a node,
                             as it suits; -1: any */
    int shard_what;       /* smp_shard_what. SMP_DEFAULT: optimizer; any unless
                             `shard` is a number */
    int prefetch;         /* runs of a chunk that weights are gathered ahead. SMP_DEFAULT: auto */
    int node_replicas;    /* of one node that sums go through first; 0: none. SMP_DEFAULT: auto */
    int64_t bucket_bytes; /* of gradients in a sum; 0: one bucket. SMP_DEFAULT: auto */
    int gradient_wire;    /* SMP_WIRE_FP32 or SMP_WIRE_BF16. SMP_DEFAULT: fp32 */

    /* Memory. */
    int64_t memory_bytes; /* limit per device; 0: the cluster's */
    smp_recompute recompute;
    smp_offload offload;         /* of what forwards keep for backwards */
    smp_offload offload_states;  /* of the optimizer */
    int loading_horizon;         /* compute actions that a transfer takes place beside */
    const char *state_precision; /* of the optimizer: "fp32" or "bf16"; NULL: fp32 */
    const char *const *freeze; /* [n_freeze] patterns of weights that no step changes: they have no
                                  gradient and no states, and what no other weight lies below has
                                  no backward */
    int n_freeze;

    /* The search. */
    smp_objective objective;
    smp_optimize optimize;
    const char *partitioner; /* NULL or "auto": the best of all */
    smp_effort effort;       /* when it is spent, the best plan so far is taken */
    double time_limit_s;     /* of the processor: a lower ceiling for the same; 0: none */
    uint64_t seed;
} smp_plan_options;

/* How weights are updated. Rates are functions of the step number, so resuming needs no other
 * state. */
typedef struct smp_optimizer_options {
    const char *name;            /* "adamw", "sgd", "lion", "lamb", "lars", "novograd" */
    float lr;                    /* peak learning rate */
    float min_lr;                /* at the end of the decay, or below which it does not go */
    int64_t warmup_steps;        /* linear warm-up from 0 */
    int64_t decay_steps;         /* length of warm-up plus decay, more than the warm-up's; 0: the
                                    schedule has no end */
    const char *lr_schedule;     /* after the warm-up "constant", "linear" or "cosine" to min_lr at
                                    decay_steps, "inverse-sqrt" (lr * sqrt(warmup_steps / step)),
                                    "step" or "exponential" (lr times gamma for every decay_every
                                    steps); NULL: cosine with decay_steps, else constant */
    int64_t decay_every;         /* of "step" and "exponential" */
    float gamma;                 /* likewise, above 0 and below 1; 0: 0.1 */
    float beta1, beta2, epsilon; /* of adamw, and others that have them */
    float momentum;              /* of sgd and lars, likewise */
    int nesterov;                /* 1: Nesterov's form of sgd's momentum */
    float trust_coefficient;     /* of lars */
    float weight_decay; /* of weights of two or more dimensions; decoupled but for lars, novograd */
    float clip_norm;    /* global gradient norm limit over all stages; 0: none */
    /* [n_weights_like] settings of single weights, "PATTERN:KEY=VALUE,...", later ones over earlier
     * ones. Patterns (* and ?) are of names as smp_weight_name gives them. Keys: lr (times the
     * step's learning rate), weight-decay (of a weight of one dimension too), and of momentum,
     * beta1, beta2, epsilon, trust-coefficient those that the optimizer has. Of the caller, for as
     * long as the call that takes the options. */
    const char *const *weights_like;
    int n_weights_like;
    /* What the gradient of the loss is multiplied by, and gradients of weights are divided by:
     * "auto" (the largest that does not overflow, looked for while training), a number, or "off".
     * NULL: auto in fp16, else off. Under auto it begins with loss_scale_init; of delayed_shift
     * overflows the last one, and every further one, halves it, down to min_scale; scale_window
     * steps in a row without one double it, and delayed_shift overflows are to come again. */
    const char *loss_scale;
    float loss_scale_init; /* 65536; not with smp_load, whose checkpoint has the scale */
    int64_t scale_window;  /* 1000 */
    float min_scale;       /* 1 */
    int delayed_shift;     /* 2 */
} smp_optimizer_options;

enum { SMP_OWN_STATE_BYTES = 1 << 20 }; /* of a program's own state, at most */

/* Where and how a job runs. */
typedef struct smp_runtime_options {
    /* "cpu", "cuda" (rank r of a machine takes GPU r modulo the number that it sees), or "auto":
     * cuda if every rank has a GPU and every operator a kernel for it, else cpu. NULL: cpu. A job
     * on a GPU is used by the thread that made it. */
    const char *device;
    int share_gpus; /* 1: ranks of a machine may share a GPU, and then exchange through its memory;
                       0: SMP_ERR_INPUT where a machine has more ranks than GPUs */
    /* "fp32", "tf32" (fp32 with matrix products of 10 bits of mantissa), "bf16" or "fp16"
     * (activations, their gradients and a copy of the weights in that; weights, their gradients
     * and the optimizer in fp32, unless state_precision says otherwise), or "fp8" (as bf16, but
     * linear layers whose widths are multiples of 16, the head apart, multiply E4M3 by E4M3, and
     * backward by E5M2). NULL: the plan's, fp32 where it is planned at start. The CPU has no tf32,
     * bf16 and fp8 where it has AVX512-BF16 or AMX, and multiplies fp16 in fp32; a GPU has fp8 from
     * compute capability 8.9 on. */
    const char *precision;
    uint64_t seed;    /* weight initialisation, dropout */
    double timeout_s; /* a wait in a step without progress for longer ends the job; 0: never. Time
                         in which the job is suspended does not count */
    /* The same until the first step has begun on all ranks, and between steps and after the last
     * one. Bytes that any rank reads or writes and operators that it prepares are progress. */
    double timeout_start_s, timeout_save_s; /* below 0: 600, or 30 times timeout_s if less */
    int max_skipped;      /* so many skipped steps in a row (see smp_step) end the job; 0: go on */
    int keep_checkpoints; /* that a folder keeps, those saved last; the best one besides; 2 */
    int keep_scheduling;  /* 1: the calling thread keeps its cores, policy and timer slack, also
                             where ranks outnumber cores; 0: see above */
    int record_trace;     /* keep start and end of every action for smp_trace_write */
    int record_costs;     /* keep what operators and messages of the last steps take for
                             smp_costs_write */
    /* Where what the plan offloads lies: a folder, in which a file without a name holds it, on the
     * CPU alone. NULL: memory of the host. */
    const char *offload_to;
    /* [n_plugins] files of operators of your own (see smp_op_register), without a slash: of the
     * current folder. They are loaded before models are read and stay; a file that a job before
     * loaded is not loaded again. */
    const char *const *plugins;
    int n_plugins;
    /* After every keep_every-th step (0: never) the state is kept in memory that outlives the
     * processes of the job: in the folder keep_in, on tmpfs, of which each machine has one of its
     * own. It takes three times what the machine's ranks have of a checkpoint, and what only the
     * machine before it has, of which it keeps a copy: any one may be lost. A thread of each rank
     * writes it beside the next step, at whose end it counts. The first smp_load of a later job
     * takes it where nothing was saved after it. smp_finalize removes the folder if the last step
     * is saved; after a failure it stays. */
    int64_t keep_every;
    const char *keep_in;
    /* The program's own state, [own_bytes], 0 to SMP_OWN_STATE_BYTES of them, as many on all ranks:
     * such as that of its sampler. It is a part of every checkpoint and kept state, as it stands on
     * rank 0 when that is taken: by smp_save and smp_save_begin, and for keep_every at the end of
     * smp_step, of a job of smp_elastic_begin in smp_elastic_step. smp_load sets it on every rank;
     * what has none leaves it as it is, what has another number of bytes is refused. The caller's
     * until smp_finalize. */
    void *own_state;
    int64_t own_bytes;
    const char *rows; /* what smp_elastic_join sets: for smp_elastic_begin; or NULL */
} smp_runtime_options;

/* What a job is. Make one with smp_options_default(), then set fields. Strings are copied by the
 * call that takes the options, unless a field says otherwise. */
typedef struct smp_options {
    size_t size; /* of this struct, as smp_options_default() sets it: a library of another version
                    refuses it */
    /* What to run: a plan file, or a model file that is planned at start. Exactly one is set. */
    const char *plan;
    const char *model;
    smp_plan_options planning; /* with model only */
    smp_optimizer_options optimizer;
    smp_runtime_options runtime;
} smp_options;

SMP_API smp_options smp_options_default(void);

/* Makes a job: reads or makes the plan, checks it against the model and the rank count, reserves
 * all memory and initialises the weights. Collective over all ranks. Jobs may follow each other,
 * also after one that could not be made.
 * Errors: SMP_ERR_INPUT (files, options, rank count), SMP_ERR_NO_FIT (no plan fits, or the plan not
 * the GPU's free memory), SMP_ERR_NO_MEMORY, SMP_ERR_FAILED (no GPU); every rank returns the same
 * status. *out is owned by the caller: smp_finalize. */
SMP_API smp_status smp_init(smp **out, const smp_options *options);

/* Frees the job; accepts NULL. Collective. After a failed step nothing waits for other ranks, and
 * memory that messages in flight may touch stays until the process ends. */
SMP_API void smp_finalize(smp *s);

SMP_API int smp_rank(const smp *s, smp_group group);
SMP_API int smp_size(const smp *s, smp_group group);
/* Among the ranks of this machine, by rising rank of the world; and how many those are. */
SMP_API int smp_local_rank(const smp *s);
SMP_API int smp_local_size(const smp *s);

/* Model inputs in the order of the model file. */
SMP_API int smp_input_count(const smp *s);
SMP_API const char *smp_input_name(const smp *s, int input);
/* Elements of one sample. */
SMP_API int64_t smp_input_elements(const smp *s, int input);
/* 1 if the input holds int32, 0 if float. */
SMP_API int smp_input_is_int(const smp *s, int input);
/* 1 if every sample of a step has its own; 0 if the model says `split: false`: a step has one array
 * of the shape of a sample, which goes for all of them. */
SMP_API int smp_input_is_split(const smp *s, int input);
/* 1 if an operator on this rank reads the input; the others may be passed as NULL. */
SMP_API int smp_input_needed(const smp *s, int input);
/* Samples in one step of this replica: its micro-batches times micro-batch size. Where replicas do
 * not divide the plan's gradient blocks the first ones have more. */
SMP_API int64_t smp_step_samples(const smp *s);
/* ... and of the replicas before it: its part of a batch begins there. */
SMP_API int64_t smp_samples_before(const smp *s);
/* ... and in a micro-batch. */
SMP_API int64_t smp_microbatch_samples(const smp *s);

/* What a job is, as its plan has it. Strings are the job's. */
typedef struct smp_job_description {
    const char *model;    /* path of the model, as the plan names it */
    int trains;           /* 0: `mode: inference` */
    int has_loss;         /* 0: losses are 0 */
    int has_perplexity;   /* the loss is a cross_entropy: the mean of -log p */
    int64_t classes;      /* that the loss chooses from; 0: none */
    int64_t tokens;       /* in a sample of the first input that is a sequence of int32; 0: none */
    int64_t global_batch; /* samples in a step of all replicas */
    int scales_loss;      /* a loss scale is in use */
} smp_job_description;

SMP_API void smp_job_describe(const smp *s, smp_job_description *out);

/* What the plan predicts (schedule/plan/README.md); 0 where a plan does not say it. */
typedef struct smp_prediction {
    double step_us, bottleneck_us, lower_bound_us; /* microseconds; a step with its waits for times
                                                      that scatter */
    double gap, bubble;                            /* shares: 0.05 is 5 % */
    double samples_per_s;                          /* of all replicas */
    int64_t peak_bytes;                            /* of this rank */
} smp_prediction;

SMP_API void smp_plan_prediction(const smp *s, smp_prediction *out);

/* Training steps done, those before the checkpoint that was loaded too. */
SMP_API int64_t smp_steps_done(const smp *s);

typedef struct smp_step_result {
    int64_t step;         /* number of the step just done, from 1; 0 for an evaluation */
    double loss;          /* mean over the global batch; the same on every rank; 0 if no loss */
    double grad_norm;     /* global norm before clipping; 0 where nothing is trained */
    double lr;            /* learning rate used */
    double step_us;       /* measured, the slowest rank; on a GPU, and where a thread of the host
                             makes the update (offload_states), until its losses are known: the
                             update of the weights counts in the next step */
    double predicted_us;  /* from the plan */
    double samples_per_s; /* global batch over measured time */
    int64_t skipped;      /* training steps of this job so far that changed nothing */
    int64_t loss_rows; /* what the loss is the mean over: targets that are not ignored, or samples
                             where none can be */
    int64_t hits;      /* without training, if the loss is a cross_entropy: of loss_rows those whose
                          largest logit, the first of equals, is the target's; else -1 */
    int64_t hits_top5; /* likewise, those whose target is among the five largest */
    double loss_scale; /* of this training step; 1 where nothing is scaled */
} smp_step_result;

/* One global batch: every micro-batch, gradient reduction, optimizer step. Collective.
 * inputs[i]: model input i of this replica, [smp_step_samples(s)][sample shape] row-major, int32 or
 * float; NULL where not needed on this rank. All ranks of a replica pass the same samples. Of an
 * input that is not split [sample shape], of any batch, the same on all ranks.
 * An index outside an embedding's rows or a loss's classes is SMP_ERR_INPUT.
 * The loss, and so the gradient, is the mean over all targets of the global batch that are not
 * ignored, however many of them a micro-batch or a replica has.
 * A step whose loss or gradient is not finite, or that has no target, is skipped: weights and
 * optimizer stay as they are, the step counts. After max_skipped in a row: SMP_ERR_FAILED. Steps
 * that overflow while a loss scale of "auto" can still fall are not counted there.
 * Handlers of a program's own signals need a stack of their own (sigaltstack, SA_ONSTACK) where the
 * backend is the CPU: inside of a product oneDNN's stack pointer lies in a buffer of the heap, and
 * a handler's frame would overwrite it.
 * After an error the job can only be finalised. */
SMP_API smp_status smp_step(smp *s, const void *const *inputs, smp_step_result *result);

/* smp_step for a batch of fewer samples, as the last one of a pass over the data may be: the first
 * `samples` of a global batch, the same number on every rank, 1 to the global batch. A replica
 * passes those from smp_samples_before(s) on: its part may be short or empty, where its arrays may
 * be NULL. Loss and gradient are the mean over what is there. */
SMP_API smp_status smp_step_short(smp *s, const void *const *inputs, int64_t samples,
                                  smp_step_result *result);

/* Forward only, dropout off, batchnorm with its running statistics, weights unchanged: the mean
 * loss of one global batch. Collective. */
SMP_API smp_status smp_evaluate(smp *s, const void *const *inputs, smp_step_result *result);

/* smp_evaluate for a batch as that of smp_step_short. Collective. */
SMP_API smp_status smp_evaluate_short(smp *s, const void *const *inputs, int64_t samples,
                                      smp_step_result *result);

/* What becomes of the micro-batches of an output. */
typedef enum smp_output {
    SMP_OUTPUT_CONCAT, /* [samples][shape], in their order */
    SMP_OUTPUT_STACK,  /* [micro-batches][samples of a micro-batch][shape] */
    SMP_OUTPUT_MEAN    /* [samples of a micro-batch][shape]: the mean over micro-batches, float */
} smp_output;

typedef struct smp_tensor_description {
    const char *name, *op; /* as the model's file calls it; what makes it. Of the job */
    int n_dim;             /* of one sample */
    int64_t dim[6];
    int64_t elements;
    int is_int;         /* int32, else float, whatever the precision */
    int per_microbatch; /* one value for each micro-batch, not for each sample: a loss */
} smp_tensor_description;

/* A tensor that the model computes, by the name of the operator that makes it, or by its own, the
 * last one of that name; NULL: what the loss reads first, without a loss what the last operator
 * makes. Errors: SMP_ERR_INPUT with the nearest name. */
SMP_API smp_status smp_tensor_describe(const smp *s, const char *tensor,
                                       smp_tensor_description *out);

/* smp_evaluate_short that brings one tensor to rank 0 of SMP_WORLD: the same bits for every plan
 * of the micro-batch size, to rounding where several devices compute its operators together.
 * tensor: as above. values: of rank 0, int32_t or float (NULL elsewhere), for so many samples as
 * `how` says; of a tensor per micro-batch one value in place of a micro-batch's samples. Stacks
 * and means take whole micro-batches. Memory for a step's micro-batches of the tensor is taken and
 * given back. Collective. Errors: SMP_ERR_INPUT (the name, the number of samples) leave the job as
 * it is. */
SMP_API smp_status smp_predict(smp *s, const void *const *inputs, int64_t samples,
                               const char *tensor, smp_output how, void *values);

/* Writes weights, optimizer state and step number to directory `path`, created if absent; the
 * newest complete checkpoint stays readable whenever the job dies. Returns when it is on the disk.
 * Independent of the plan. Weights that are not finite are SMP_ERR_FAILED and leave the directory
 * as it is. From its first save on the directory is the job's, until smp_finalize or a save
 * elsewhere: SMP_ERR_INPUT if it is another job's. A thread of rank 0 renews that claim every ten
 * seconds. Collective. */
SMP_API smp_status smp_save(smp *s, const char *path);

/* The same after the next steps: returns when the state is copied to host memory, of which every
 * rank keeps as much as its part of the checkpoint takes until smp_finalize. A thread of each rank
 * writes it; a program that initialises MPI itself asks for MPI_THREAD_FUNNELED at least. The
 * checkpoint counts once smp_save_test or smp_save_wait has completed it; the next save, smp_load
 * and smp_finalize wait for it, too. Errors as of smp_save, and of the save before. Collective. */
SMP_API smp_status smp_save_begin(smp *s, const char *path);

/* Is the last save complete, or has there been none? Does not wait for the disk: call it between
 * steps. Errors as of smp_save: the save is over, older checkpoints stay, the job can go on.
 * Collective. */
SMP_API smp_status smp_save_test(smp *s, int *done);

/* Waits until the last save is complete. Errors as of smp_save_test. Collective. */
SMP_API smp_status smp_save_wait(smp *s);

/* Restores what was saved last to directory `path`, under any plan of the same model, whatever its
 * step; or, with keep_every and until this job begins to keep a state, what an earlier one has kept
 * in memory, unless something was saved after that. In `mode: inference` the model takes the
 * weights alone, of either mode. If that is damaged, the one before is taken, and smp_load_note
 * says so. Collective. Errors: SMP_ERR_INPUT if there is no whole checkpoint, or the last is not of
 * this model. After an error that is found in the weights the job can only be finalised. */
SMP_API smp_status smp_load(smp *s, const char *path);

/* What the last smp_load passed over, why, and what it took; "" if it took what was saved last. And
 * that this had an own_state, where the job trains without one: how many bytes were not loaded. Or
 * what the last smp_load_weights did not use. The same on every rank, valid until the next load. */
SMP_API const char *smp_load_note(const smp *s);

/* A program that lives under smp-run --elastic (docs/elastic.md), as its ranks; examples/elastic.c
 * is a whole one. Without a supervisor it runs the same way, by mpirun.
 *
 *     smp_elastic_join, smp_init, smp_elastic_begin,
 *     while there are steps and none says `ends`: smp_step, smp_elastic_step;
 *     smp_elastic_end, smp_finalize; exit with its code
 *
 * Takes from the environment, where SMP_ELASTIC is set, what a supervisor has chosen: options->plan
 * in place of options->model, runtime.keep_every and keep_in, rows, and device, timeout_s,
 * timeout_start_s and timeout_save_s where they were given.
 * *checkpoint: the folder of the job's checkpoints; else NULL, and nothing has changed. Strings are
 * the environment's. From then on the process is killed when its parent ends, and SIGUSR1 asks for
 * the end of the job. Not collective. Errors: SMP_ERR_INPUT for variables of another version, or
 * that are missing or no numbers. */
SMP_API smp_status smp_elastic_join(smp_options *options, const char **checkpoint);

/* Loads the newest state, in memory or in `checkpoint`, as smp_load does, or begins where there is
 * none; smp_steps_done says how far it is. `checkpoint` is made if absent, and the job's until
 * smp_finalize; NULL: nothing is loaded or saved, and no signal taken. Until smp_finalize, which
 * leaves them their defaults, SIGUSR1 and SIGTERM ask for the end of the job; SIGTERM after the
 * death of another rank of this machine ends the process at once, with a line on standard error.
 * Under a supervisor, which prints it, rank 0's standard output goes to a file, by lines: those
 * that begin with "step N  loss " are printed once for each N, others as often as they come.
 * Collective. Errors: as of smp_load, and SMP_ERR_INPUT for a folder that is another job's, an
 * inference job, or a second call. */
SMP_API smp_status smp_elastic_begin(smp *s, const char *checkpoint);

/* Once after each smp_step, which is refused without (SMP_ERR_INPUT, and nothing has changed), with
 * its result: tells the supervisor that the step is done, and its loss, which has to have the same
 * bits whenever the step is computed, and begins to keep the state of the step, own_state included.
 * *ends: 1 once a signal has asked for the end: no further step, smp_elastic_end; the same on every
 * rank. Collective. After an error the job can only be finalised. */
SMP_API smp_status smp_elastic_step(smp *s, const smp_step_result *done, int *ends);

/* Saves the state of the last step, unless that is done, if smp_elastic_begin had a folder.
 * *exit_code: what the program is to end with: 0, or 4 after `ends`: the same command goes on.
 * After a failure it is that of smp_status_exit_code. Collective. Errors: as of smp_save. */
SMP_API smp_status smp_elastic_end(smp *s, int *exit_code);

/* Copies weight `name` ("wte.weight") to `values` on every rank, the whole of it however the ranks
 * have it in parts; `count` is its number of elements. Collective. Errors: SMP_ERR_INPUT for an
 * unknown name or wrong count. */
SMP_API smp_status smp_weight_get(smp *s, const char *name, float *values, int64_t count);

/* Sets weight `name` on every rank that holds it, or a part of it. Every rank passes the same
 * values, those of the whole weight. Collective. */
SMP_API smp_status smp_weight_set(smp *s, const char *name, const float *values, int64_t count);

/* A hash of the weights of this rank's replica, the same for every plan. Collective. */
SMP_API smp_status smp_weights_hash(smp *s, uint64_t *hash);

/* Have all replicas the same bits, of weights and of the optimizer's states? Every save looks by
 * itself. Collective. SMP_ERR_FAILED names replicas and the first weight that differs: the job can
 * go on once all of them are loaded again. */
SMP_API smp_status smp_replicas_check(smp *s);

/* The weights of the model as in its file. Running statistics (batchnorm) are among them. */
SMP_API int smp_weight_count(const smp *s);
SMP_API const char *smp_weight_name(const smp *s, int weight);
SMP_API int64_t smp_weight_elements(const smp *s, int weight);

/* Writes all weights, running statistics included, to one file in the safetensors format: fp32,
 * under their names, in the shapes and the order of the model; the same weights give the same bytes
 * under every plan. The file takes the place of an older one when it is on the disk; after an error
 * there is nothing of it, and the job can go on. No rank needs memory for more than a piece of a
 * weight. Collective; rank 0 writes. Errors: SMP_ERR_FAILED if it cannot be written. */
SMP_API smp_status smp_export_weights(smp *s, const char *path);

/* Weights in files of other programs, and under their names. Zeroed: those of the model. */
typedef struct smp_weights_options {
    const char *names; /* a family such as "hf-gpt2" (smp-run --help), or NULL */
    const char *map;   /* a file of rules (docs/weights.md), which go before those of
                          `names`; or NULL */
    /* When loading: [n_only] patterns ("h*.attn.*") of the weights to load; the others stay. None:
     * every weight of the model has to be in the file. */
    const char *const *only;
    int n_only;
    int64_t file_bytes; /* of writing a folder: a file has at most so many bytes of values, or one
                           tensor; 0: 5e9 */
} smp_weights_options;

/* Sets weights, running statistics included, to those of a file: safetensors (F32, F16, BF16, F64),
 * an index of several such files (Hugging Face's model.safetensors.index.json), or llm.c's GPT-2.
 * Under every plan each rank reads what it holds. The optimizer's state and the step stay.
 * smp_load_note says how many tensors of the file were not asked for. options: NULL as zeroed.
 * Collective. Errors: SMP_ERR_INPUT for a file that is broken, lacks a weight or has it in another
 * shape, before any weight is changed; a file that cannot be read to its end breaks the job. */
SMP_API smp_status smp_load_weights(smp *s, const char *path, const smp_weights_options *options);

/* smp_export_weights under other names. A path that ends with a slash is a folder, made if it is
 * absent: it gets model.safetensors, or several files and their index, all of them or, after a
 * failure, none: what was there stays. Collective. Errors: as there, and SMP_ERR_INPUT
 * for rules that do not fit the model. */
SMP_API smp_status smp_export_weights_as(smp *s, const char *path,
                                         const smp_weights_options *options);

/* Writes predicted and measured timelines of the last step as a Chrome trace (Perfetto). Times
 * count from where the first rank began its step; across machines, which have no clock in common,
 * from where each did, and a send ends where it began if by them its message had arrived before.
 * Needs record_trace. Collective; rank 0 writes. */
SMP_API smp_status smp_trace_write(smp *s, const char *path);

/* Writes a profile (for planning.profile, smp-partition --profile) of what operators and messages
 * took in the last steps, the slow first ones aside: medians over steps and replicas. With more
 * ranks than cores operators take the time for which their rank had a core. Messages are timed
 * inside a machine only, and neither on GPUs nor with more ranks than cores: where none is, the
 * link is the plan's if that was measured, else none; core_switch_us is passed on. SMP_ERR_INPUT
 * without record_costs or before the first step. Collective; rank 0 writes. */
SMP_API smp_status smp_costs_write(smp *s, const char *path);

/* What ranks of a group tell each other, for programs: sizes, metrics, objects of their own. It is
 * done between steps only, in host memory. Members pass the same group and, but for what an array
 * holds, the same arguments; where one does not, every member returns SMP_ERR_INPUT with the same
 * message, nothing has moved, and the job goes on. A group that is none, or a NULL job, only its
 * own rank can see. SMP_ERR_PEER: a rank failed or does not come; then the job can only be
 * finalised. An object of a size that others do not know goes in two calls, its size first. Bytes
 * may be any number. */
typedef enum smp_type { SMP_TYPE_FLOAT, SMP_TYPE_DOUBLE, SMP_TYPE_INT32, SMP_TYPE_INT64 } smp_type;
typedef enum smp_combine { SMP_COMBINE_SUM, SMP_COMBINE_MIN, SMP_COMBINE_MAX } smp_combine;

/* The same status on every rank: SMP_OK if all pass that, else that of the lowest rank that does
 * not, with its message. Collective over all ranks. */
SMP_API smp_status smp_agree(smp *s, smp_status status);
/* Returns when all members have called it. Collective over the group. */
SMP_API smp_status smp_barrier(smp *s, smp_group group);
/* [bytes] of the member `root` to the others. Collective over the group. */
SMP_API smp_status smp_broadcast(smp *s, smp_group group, int root, void *data, int64_t bytes);
/* own [bytes] of every member, by rising rank: all [size of the group][bytes]. The two arrays do
 * not overlap. Collective over the group. */
SMP_API smp_status smp_all_gather(smp *s, smp_group group, const void *own, int64_t bytes,
                                  void *all);
/* values [count] of all members, one by one added up by rising rank, or the least or the greatest
 * of them, into values: the same bits on every member. Whole numbers wrap around; what is not a
 * number in one member's is not one. Collective over the group. */
SMP_API smp_status smp_all_reduce(smp *s, smp_group group, smp_type type, smp_combine how,
                                  void *values, int64_t count);
/* [bytes] from one member to another, which calls smp_receive with as many. Each waits for the
 * other, and what the one passes wrong both return, as they do if both send or both receive. */
SMP_API smp_status smp_send(smp *s, smp_group group, int to, const void *data, int64_t bytes);
SMP_API smp_status smp_receive(smp *s, smp_group group, int from, void *data, int64_t bytes);

/* Plans without running: writes a plan file for options->model, as smp-partition does: for
 * runtime.device and precision where they are set, else what the profile was measured on, else the
 * CPU. Not collective, no MPI needed. */
SMP_API smp_status smp_plan_write(const smp_options *options, const char *path);

/* Operators of your own. An operator is described by one smp_custom_op and registered under its
 * name, for the rest of the process; models read from then on may use it as they use a built-in
 * one. It is planned, measured, recomputed, trained and saved as those are. It runs on the CPU;
 * for a GPU it can be planned, not run.
 *
 * A plugin is a shared object that defines smp_plugin_register, below. The programs load it with
 * --plugin FILE, a program of yours with runtime.plugins, or it calls smp_op_register itself before
 * smp_init. examples/plugin/ holds a whole one. It is compiled against this header and linked with
 * nothing: it finds the library in the process that loads it (a program that itself loads libsmp by
 * dlopen needs RTLD_GLOBAL, or a plugin linked with -lsmp).
 *
 * What the functions of an operator promise, or results would depend on how the model is split:
 * they give the same bits for the same arguments, whatever the address, thread, rank or time; they
 * keep nothing between calls, and allocate nothing; forward may be called again for the same
 * micro-batch (recomputation). All float tensors are fp32, row-major, [batch][sample shape], and
 * start at multiples of 64 bytes. They return SMP_OK, or what smp_op_fail returned. */
#define SMP_CUSTOM_ABI 1 /* of the structs below; fields may be added at their ends without it */

enum {
    SMP_CUSTOM_MAX_DIMS = 6,
    SMP_CUSTOM_MAX_INPUTS = 32,
    SMP_CUSTOM_MAX_OUTPUTS = 32,
    SMP_CUSTOM_MAX_ATTRS = 32,
    SMP_CUSTOM_MAX_WEIGHTS = 8,
    SMP_CUSTOM_MAX_OPS = 128 /* registered in a process */
};

typedef enum smp_custom_type {
    SMP_CUSTOM_INT, /* a number or an expression of the model's variables */
    SMP_CUSTOM_FLOAT,
    SMP_CUSTOM_BOOL
} smp_custom_type;

/* A key that a model may give the operator. */
typedef struct smp_custom_attr {
    const char *name;
    smp_custom_type type;
    int required;         /* else default_value where it is left out */
    double default_value; /* of a bool: 0 or 1 */
    double min, max;      /* inclusive; bool: not used */
} smp_custom_attr;

typedef union smp_custom_value {
    int64_t i; /* int, bool (0 or 1) */
    double f;  /* float */
} smp_custom_value;

/* One sample of a tensor, without the batch. */
typedef struct smp_custom_tensor {
    int is_int; /* int32, else float */
    int n_dim;
    int64_t dim[SMP_CUSTOM_MAX_DIMS];
    int64_t elements; /* their product, which is set for you */
} smp_custom_tensor;

typedef enum smp_custom_init {
    SMP_CUSTOM_ZERO,
    SMP_CUSTOM_ONE,
    SMP_CUSTOM_NORMAL, /* init_scale: the standard deviation */
    SMP_CUSTOM_UNIFORM /* init_scale: the bound to either side of 0 */
} smp_custom_init;

/* A trained weight, "<op's name in the model>.<name>". Of two dimensions or more it decays. */
typedef struct smp_custom_weight {
    const char *name;
    int n_dim;
    int64_t dim[SMP_CUSTOM_MAX_DIMS];
    smp_custom_init init;
    float init_scale;
} smp_custom_weight;

/* The operator at one place of a model. All memory is the library's. */
typedef struct smp_custom_node {
    const char *name;             /* in the model */
    const smp_custom_value *attr; /* [attributes] in the order of the table, defaults filled in */
    int n_in;
    const smp_custom_tensor *in;
    int n_out;

    /* What `describe` says. At first: outputs like input 0, float; no weights; backward reads all
     * inputs and no outputs; the rest 0. */
    smp_custom_tensor *out; /* [n_out] float; of a loss left as it is */
    int n_weight;
    smp_custom_weight *weight; /* [SMP_CUSTOM_MAX_WEIGHTS] */

    /* Arithmetic of a sample, for the planner's estimate. Memory traffic is known from the rest. */
    double forward_flops, backward_input_flops, backward_weight_flops;

    /* What backward reads besides gradients, bit i: input i, output i. The rest is not there then
     * (NULL), and its memory is used for other things. */
    uint32_t input_grad_in, input_grad_out, weight_grad_in;
    int64_t aux_bytes; /* of a sample: what forward saves for both of backward */
    /* Scratch of any one call: so much, and so much more for each sample. */
    int64_t workspace_bytes, workspace_sample_bytes;
} smp_custom_node;

/* One call on one micro-batch. */
typedef struct smp_custom_call {
    const smp_custom_node *node;
    int64_t batch; /* samples */
    /* The last samples, so many, only fill the micro-batch up: what goes across samples leaves them
     * out, whatever they hold. A loss writes gradients of 0 for them; other operators get such. */
    int64_t padding;
    int training;          /* 0: an evaluation, or a model in `mode: inference` */
    uint64_t random;       /* to draw random numbers from: one for each use of the operator, step
                              and micro-batch, the same in forward, forward again and backward */
    const void *const *in; /* [n_in] float or int32_t, of which any value may come */
    float *const *out;     /* [n_out] */
    const float *const *weight;
    void *aux;                    /* [batch * aux_bytes]; NULL if 0 */
    void *workspace;              /* holds anything at first; NULL if 0 */
    const float *const *out_grad; /* [n_out]; of a loss one float */
    float *const *in_grad;        /* [n_in] NULL where no gradient is wanted */
    float *const *weight_grad;
} smp_custom_call;

typedef struct smp_custom_op {
    uint32_t abi;        /* SMP_CUSTOM_ABI */
    uint32_t size;       /* sizeof(smp_custom_op) */
    const char *name;    /* `op: name` in models: small letters, digits and _, 1 to 60 of them */
    const char *summary; /* what it computes, in one line */
    int min_inputs, max_inputs;
    int outputs; /* 0: one */
    /* 1: a loss. Its one output is one float for a micro-batch, the mean over the samples that are
     * not padding, 0 if all are; every sample counts alike. */
    int loss;
    const smp_custom_attr *attrs; /* ends with a NULL name; NULL: none */
    /* Says what a node is, from its attributes and inputs. Called when the model is read and again
     * whenever that is asked for; it must say the same. NULL: what the node is at first. */
    smp_status (*describe)(smp_custom_node *node);
    smp_status (*forward)(const smp_custom_call *call); /* writes out and aux: = */
    /* Writes in_grad: =. NULL: no input may be float. */
    smp_status (*backward_input)(const smp_custom_call *call);
    /* Adds to weight_grad: +=. NULL: it has no weights. */
    smp_status (*backward_weight)(const smp_custom_call *call);
} smp_custom_op;

/* Makes an operator known. *op is copied; what it points to must stay. Not while another thread is
 * in a call of the library.
 * Errors: SMP_ERR_INPUT for another ABI, a name that is taken (built in, or registered before), a
 * description that is incomplete or out of range; SMP_ERR_NO_MEMORY. */
SMP_API smp_status smp_op_register(const smp_custom_op *op);

/* For the functions of an operator: records "model.yaml:7:5: op 'name' (kind): message" and returns
 * SMP_ERR_INPUT. */
SMP_API smp_status smp_op_fail(const smp_custom_node *node, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Defined by a plugin, not by the library: registers its operators, at least one, and returns the
 * first status that is not SMP_OK; then none of them is known. */
extern SMP_API smp_status smp_plugin_register(void);

#ifdef __cplusplus
}
#endif
#endif
