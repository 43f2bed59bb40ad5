/* The operator interface: one static smp_op_kind per file of graph/ops/<family>/, listed in
 * graph/ops/op_list.h, or one that graph/ops/custom_op.c makes of a user's own. Nothing else knows
 * an operator by name.
 *
 * Life of an operator: `infer` once while the model is read; `work` when costs are estimated;
 * `prepare` once per rank before the first step; then `forward`, `backward_input`,
 * `backward_weight` any number of times; `release`.
 *
 * Semantics of a call: outputs and input gradients are overwritten (=), weight gradients are
 * accumulated (+=), but for the first one of a block, which may be written (fresh). Fan-out is
 * summed by the executor, or by an operator that is given the sum so far (plus); dout may be the
 * array of other gradients too, and is only read. An output that adds nothing to the loss has a
 * gradient of zeroes, which the executor provides. Int32 outputs are together the values of the
 * int32 inputs, rearranged; some may be left out. Results depend on the values passed alone: not on
 * addresses (all buffers are 64-byte aligned), threads or ranks. */
#ifndef SMP_GRAPH_MODEL_OP_H
#define SMP_GRAPH_MODEL_OP_H

#include "graph/model/graph.h"
#define SMP_ROUNDED_ON_GPU(bits) ((uint32_t)(bits) << SMP_OP_MAX_PARAM) /* in smp_op_kind.rounded */
enum { SMP_OP_MAX_PARAM = 8, SMP_OP_MAX_OUT = 32 };
enum { SMP_OP_MAX_IN = 32 }; /* of runnable operators; opaque: no limit */

typedef enum smp_attr_type {
    SMP_ATTR_INT, /* expression */
    SMP_ATTR_FLOAT,
    SMP_ATTR_BOOL,
    SMP_ATTR_CHOICE, /* one of `choices`; value: its index */
    SMP_ATTR_STRING,
    SMP_ATTR_INT_LIST, /* list of expressions */
    SMP_ATTR_INTS,     /* one expression, or a list of them; a list either way */
    SMP_ATTR_FLOAT_LIST
} smp_attr_type;

typedef struct smp_attr_desc {
    const char *name;
    smp_attr_type type;
    bool required;
    double default_value;       /* INT, FLOAT, BOOL, CHOICE; STRING and lists: NULL/empty */
    double min, max;            /* INT, FLOAT and list items, inclusive */
    const char *const *choices; /* NULL-terminated */
} smp_attr_desc;

static inline bool smp_attr_is_list(const smp_attr_desc *desc)
{
    return desc->type == SMP_ATTR_INT_LIST || desc->type == SMP_ATTR_INTS ||
           desc->type == SMP_ATTR_FLOAT_LIST;
}

/* A weight that `infer` declares. */
typedef struct smp_param_decl {
    const char *role; /* "weight", "bias": the name is "<op>.<role>" */
    smp_shape shape;
    smp_init_kind init;
    float init_scale;
    const char *tied_to; /* name of an earlier op's weight of the same shape, as an attribute of the
                            kind gives it, or NULL; `tie:` of a model file does it for any kind */
    /* Not trained: a running statistic, which a step changes by what backward_weight added to its
     * accumulator. Norm, clipping, learning rate and weight decay do not know it; checkpoints
     * do. */
    bool running;
} smp_param_decl;

/* What backward needs besides gradients. Masks are over inputs (bit i: value of input i), that of
 * outputs likewise; `true` is the only output. */
typedef struct smp_op_needs {
    uint32_t input_grad_in;  /* backward_input reads these inputs */
    uint32_t weight_grad_in; /* backward_weight reads these inputs */
    uint32_t input_grad_out; /* backward_input reads these outputs */
    bool input_grad_aux;     /* backward_input reads aux */
    bool weight_grad_aux;    /* backward_weight reads aux */
    /* aux is what backward_input leaves to backward_weight, which then comes behind it and alone
     * reads it: forward has none, nor has backward_input where no weight is trained. An op whose
     * input takes no gradient must not ask for it. */
    bool aux_of_backward;
    /* backward_input of an op with one input adds the gradient, rounded to its type, to `plus`,
     * and rounds the sum: the bits of two passes. Not of one with backward_input_begin. */
    bool input_grad_adds;
    int64_t aux_bytes;       /* saved by forward, per sample (layernorm statistics, ...) */
    int64_t workspace_bytes; /* scratch of any one call, per micro-batch (batch already in) */
    /* The same where calls take whichever way they can, not the one that graph->products name: what
     * measures has so much. 0: no other. */
    int64_t measured_workspace_bytes;
    /* Values that a call adds up over the replicas (smp_op_joint): of a training forward, of
     * backward_input. backward_weight adds up none, so that it may be put off. */
    int64_t forward_joint, input_grad_joint;
} smp_op_needs;

/* An output of an operator with several: their shapes are always known. */
typedef struct smp_out_decl {
    smp_dtype dtype; /* default SMP_F32 */
    bool batched;    /* default true */
    smp_shape shape;
} smp_out_decl;

/* Builder handed to `infer`: inputs in, outputs and weights out. */
typedef struct smp_infer {
    /* given */
    const smp_op *op; /* attributes are set; in, param, out not yet usable */
    const smp_attr_value *attr;
    int n_in;
    const smp_tensor *const *in; /* known shapes, unless the kind says accepts_unknown */
    smp_where where;
    int n_out; /* names that `out` gives; 1 unless the kind's max_out is larger */
    /* to fill: the output, */
    smp_dtype out_dtype;
    smp_shape out_shape;
    bool out_batched; /* default true */
    bool out_known;   /* default true */
    /* or, of a kind whose max_out is larger than 1, all of them; */
    smp_out_decl *out; /* [n_out] */
    /* weights */
    int n_param;
    smp_param_decl param[SMP_OP_MAX_PARAM];
} smp_infer;

/* Records "file:line:column: op 'name' (kind): message", returns SMP_ERR_INPUT. */
smp_status smp_infer_fail(const smp_infer *infer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* "[64, 128]" into a buffer; returns it. */
char *smp_shape_format(char *buffer, size_t size, const smp_shape *shape);
bool smp_shape_equal(const smp_shape *a, const smp_shape *b);
/* Product of dimensions, -1 on overflow of 2^40 elements. */
int64_t smp_shape_elements(const smp_shape *shape);
/* Common checks with good messages: input i is float; has n dims (or at least). */
smp_status smp_infer_float(const smp_infer *infer, int input);
smp_status smp_infer_dims(const smp_infer *infer, int input, int min_dims, int max_dims);

/* What a device sends the others of its group in a call: one message after the other, of which
 * each is as long on every device. */
typedef struct smp_op_exchange {
    int64_t messages, bytes; /* of each; 0, 0: nothing */
    /* So many of the messages are each begun before one of `beside` + 1 equal pieces of the call's
     * compute and awaited behind it; the other messages and one piece run alone. */
    int64_t beside;
} smp_op_exchange;

typedef enum smp_op_part {
    SMP_OP_FORWARD,
    SMP_OP_BACKWARD_INPUT,
    SMP_OP_BACKWARD_WEIGHT
} smp_op_part;

/* What an op's arithmetic is made of: products have rates of their own. */
typedef enum smp_op_arithmetic { SMP_OP_PLAIN, SMP_OP_PRODUCT, SMP_OP_ATTENTION } smp_op_arithmetic;

/* So many products at once of (m, k) by (k, n), as forward makes them; of attention, heads of width
 * k with m queries and n keys. */
typedef struct smp_op_product {
    int64_t count, m, n, k;
} smp_op_product;

/* Arithmetic and memory traffic of one micro-batch, for the roofline, and what devices of a group
 * exchange. backward_weight exchanges nothing, so that it may be put off. */
typedef struct smp_op_work {
    double forward_flops, backward_input_flops, backward_weight_flops;
    double forward_bytes, backward_input_bytes, backward_weight_bytes;
    /* bytes besides, which no arithmetic hides */
    double forward_moved, backward_input_moved, backward_weight_moved;
    smp_op_arithmetic kind;
    bool fp8; /* the factors of the product are: where a device has that, its rate is another */
    smp_op_product product; /* unless it is plain */
    double blocks;          /* of attention's rows by keys, where cores take one after the other */
    smp_op_exchange forward_exchange, backward_input_exchange;
} smp_op_work;

/* Micro-batch m of all replicas as one, for a training call of an operator whose `needs` say that
 * it adds up over them. Every replica makes the call, with samples or without, and so the same
 * sums in the same order. */
typedef struct smp_op_joint {
    int64_t replicas;  /* so many make it up */
    int64_t samples;   /* in all of them, without padding */
    int64_t following; /* as in smp_op_step, of micro-batches that have samples in any replica */
    void *context;     /* of sum */
    /* Adds up, in place, what the replicas have, by rising replica: all get the same bits. */
    smp_status (*sum)(void *context, double *values, int64_t count);
} smp_op_joint;

typedef enum smp_group_call {
    SMP_GROUP_ALL_REDUCE,
    SMP_GROUP_ALL_GATHER,
    SMP_GROUP_REDUCE_SCATTER,
    SMP_GROUP_ALL_TO_ALL
} smp_group_call;

enum { SMP_GROUP_READ = 64 };

/* The devices that compute an operator together (graph/split). All of them make the same calls in
 * the same order; a call returns when it is done, and sums have one order: by rising index. */
typedef struct smp_op_group {
    int32_t size, index; /* of this device */
    void *context;
    /* values [n]: their sums, in place. */
    smp_status (*all_reduce)(void *context, float *values, int64_t n);
    /* own [n]; all [size][n]: what each device has. */
    smp_status (*all_gather)(void *context, const float *own, float *all, int64_t n);
    /* all [size][n]; own [n]: the sum of what the devices have in row `index`. */
    smp_status (*reduce_scatter)(void *context, const float *all, float *own, int64_t n);
    /* all [size][n], got [size][n]: row i is that device i has in row `index`. */
    smp_status (*all_to_all)(void *context, const float *all, float *got, int64_t n);
    /* Starts to bring own [n] to the device `by` further on (after the last comes the first), and
     * into got [n] what comes from as far back; until `shifted`, which waits for both, own is only
     * read, got left alone, and nothing else of the group called but `look`. */
    smp_status (*shift)(void *context, const float *own, float *got, int64_t n, int32_t by);
    smp_status (*shifted)(void *context);
    /* One of the calls above, begun; `finish` ends it, if there is one. Until then `from` and `to`
     * are the group's, whose other calls finish first what is under way. all_reduce: of `to`, from
     * is NULL. Ask for it by smp__group_begin: a group that lacks both makes the whole call. */
    smp_status (*begin)(void *context, smp_group_call call, const float *from, float *to,
                        int64_t n);
    smp_status (*finish)(void *context);
    /* Moves on what is under way; for who computes for long. NULL: it moves by itself. */
    smp_status (*look)(void *context);
    /* A GPU has the same devices again, and a device (of smp_op_call), for a call that runs beside
     * what is enqueued from now on, after what was before; `finish` has what comes then wait for
     * it. NULL: nothing runs beside. */
    smp_status (*beside)(void *context, const struct smp_op_group **group, void **device);
    /* A GPU hands the host so many bytes of its memory, at most SMP_GROUP_READ, once what is
     * enqueued before is done: until `have_read`, which waits for that alone and gives them, no
     * other call is made, but kernels may be enqueued. */
    smp_status (*read)(void *context, const void *from, int64_t bytes);
    smp_status (*have_read)(void *context, void *host, int64_t bytes);
} smp_op_group;

/* What that sends, of so many devices: all_gather, reduce_scatter and all_to_all of n values of
 * each device, or for each; and all_reduce of n values, which is a reduce_scatter and an
 * all_gather. */
smp_op_exchange smp_op_exchange_each(int64_t devices, int64_t n);
smp_op_exchange smp_op_exchange_sum(int64_t devices, int64_t n);

enum {
    SMP_TOP = 5,    /* a right answer among so many first ones */
    SMP_OP_HITS = 2 /* counts of right answers: the first one, one of the first SMP_TOP */
};

/* Where in the job a micro-batch stands: the same for all calls on it. */
typedef struct smp_op_step {
    bool training;   /* false: dropout is the identity */
    uint64_t seed;   /* of the job; random numbers depend on it, */
    uint64_t turn;   /* on this (smp_op_turn; of a kind that is `random`) and on the operator */
    int64_t samples; /* of all micro-batches and replicas of the step, without padding */
    /* For backward_weight of running statistics: how many micro-batches with samples in them stand
     * behind this one in the step, those of later replicas too. */
    int64_t following;
} smp_op_step;

/* step: from 1; microbatch: index in the global batch. */
static inline uint64_t smp_op_turn(int64_t step, int64_t microbatch)
{
    return (uint64_t)step << 32 ^ (uint64_t)microbatch;
}

/* One call of an operator on one micro-batch: what is computed, where the arrays are, where in the
 * job it stands, and who else takes part. Tensors are [batch][sample shape] row-major, but those
 * that are channels_last, and gradients are as their tensors. Where
 * the target is bf16 or fp16, float activations and their gradients are that, whatever the
 * pointer's type says; losses, weights and weight gradients are fp32. On a GPU all pointers are
 * device memory, and the call returns when its kernels are enqueued. */
typedef struct smp_op_call {
    const smp_graph *graph;
    const smp_op *op;
    int64_t batch; /* samples in the micro-batch */
    /* The last of them, so many, only fill it up: a mean over the batch leaves them out, whatever
     * they hold (0 if nothing is left), and their gradients are 0. */
    int64_t padding;
    void *state;                /* from prepare */
    const void *const *in;      /* [n_in]; in backward only those that needs names, else NULL */
    void *const *out;           /* [n_out]; likewise */
    void *device;               /* the device's context: NULL on the CPU, smp_cuda on a GPU */
    const float *const *param;  /* [n_param] */
    const void *const *param16; /* [n_param] copies of the weights in bf16 or fp16; else NULL */
    void *aux;                  /* [batch * aux_bytes], NULL if none */
    void *workspace;            /* [workspace_bytes], NULL if none */
    const float *const *dout;   /* [n_out] gradients of the outputs, NULL of int32 ones */
    float *const *din;          /* [n_in], NULL where no gradient is wanted */
    const float *plus;          /* where needs say input_grad_adds: din[0] is this and the gradient;
                                   NULL: the gradient alone. May be din[0] */
    float *const *dparam;       /* [n_param] accumulators of this use */
    bool fresh;                 /* backward_weight: they hold nothing yet, and are written (=) */
    /* For forward of a kind that counts hits: [SMP_OP_HITS] where it writes how many there are;
     * NULL: not wanted. */
    int64_t *hits;
    smp_op_step step;
    const smp_op_joint *joint; /* NULL: there is one replica, or nothing is added up over them */
    const smp_op_group *group; /* NULL: one device computes it alone */
} smp_op_call;

/* How the images of an op may lie where the target has channels_last: its inputs and outputs of
 * three dimensions [C, H, W], and their gradients like them. */
typedef enum smp_image_layout {
    SMP_LAYOUT_PLAIN, /* row-major */
    SMP_LAYOUT_ALIKE, /* all of them row-major, or all channels last */
    SMP_LAYOUT_EACH   /* each of them one or the other: the op converts what it must */
} smp_image_layout;

/* Kernels of one backend. All NULL: the kind can be planned, not run. */
typedef struct smp_op_kernels {
    /* Makes library primitives for this op and batch; NULL if none are needed. device: as in
     * smp_op_call. */
    smp_status (*prepare)(const smp_graph *graph, const smp_op *op, int64_t batch, void *device,
                          void **state);
    void (*release)(void *state);
    smp_status (*forward)(const smp_op_call *call);
    /* NULL: no float input, or passes_dout */
    smp_status (*backward_input)(const smp_op_call *call);
    smp_status (*backward_weight)(const smp_op_call *call); /* of ops with weights; NULL: none */
    /* Optional: the forward calls of this op and of `next`, which reads its output at slot 0, as
     * one kernel; both outputs are written. For the ops of smp_op_fused, and no others. */
    smp_status (*forward_fused)(const smp_op_call *call, const smp_op_call *next);
    /* backward_input in two calls, of an operator that does nothing but exchange: between them
     * others run, while its arrays, the workspace too, are left alone. Both or none; a backend
     * without them makes the whole call at its beginning. */
    smp_status (*backward_input_begin)(const smp_op_call *call);
    smp_status (*backward_input_end)(const smp_op_call *call);
    /* backward_weight heeds `fresh`; else who calls it fills accumulators with zeroes first. */
    bool writes_fresh;
    /* Optional, of ops with weights: backward_weight and backward_input as one call with all that
     * both get, where both are wanted at once; the bits are those of two. */
    smp_status (*backward)(const smp_op_call *call);
    /* Optional, and there for a kind that pairs_alike: the backward_input calls of this op and of
     * `before`, whose output it reads at slot 0, as one kernel: din[0] of `before` is written, that
     * of this op may hold anything. A kind that pairs_alike does not get in[0], which the kernel
     * makes again. For the ops of smp_op_fused_backward, and no others. */
    smp_status (*backward_input_fused)(const smp_op_call *call, const smp_op_call *before);
} smp_op_kernels;

/* Static description of memory, after the graph is complete. */
typedef void smp_op_needs_of(const smp_graph *graph, const smp_op *op, int64_t batch,
                             smp_op_needs *needs);

struct smp_op_kind {
    const char *name;
    const char *summary;  /* what it computes, in one line */
    const char *sample;   /* `inputs:` and `ops:` of a small model whose last op is of this
                                   kind: how it is written, and what its tests start from; NULL of
                                   registered ones */
    bool registered;      /* a user's own (smp_op_register), not one of graph/ops/ */
    int min_in, max_in;   /* max_in -1: any number */
    int max_out;          /* at most SMP_OP_MAX_OUT; 0: one */
    uint32_t chooses_by;  /* inputs, a bit each, whose largest values decide who computes: what
                             makes them is not rounded to fp8 */
    bool accepts_unknown; /* inputs of unknown shape are fine (opaque) */
    bool random;          /* its calls draw random numbers: they differ from step to step */
    /* The gradient of every input is dout, value for value: there is no backward_input, and who
     * reads the one may read the other. */
    bool passes_dout;
    const smp_attr_desc *attrs; /* terminated by a NULL name */
    smp_status (*infer)(smp_infer *infer);
    /* By backend. NULL: that of the CPU holds there too; for the CPU itself: nothing. */
    smp_op_needs_of *needs[SMP_N_BACKEND];
    /* What the whole of backward_input may be in a device's list of products
     * (graph/math/gemm_algorithms.h): its name, or "". Is it by another algorithm than the first,
     * as graph->products say? NULL: never. */
    bool (*product)(const smp_graph *graph, const smp_op *op, int64_t batch, char *name,
                    size_t size);
    /* NULL: no arithmetic. */
    void (*work)(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work);
    /* NULL: SMP_LAYOUT_PLAIN. */
    smp_image_layout (*layout)(const smp_graph *graph, const smp_op *op);
    /* How several devices may compute it together, ended by a NULL name; NULL: each all of it. */
    const smp_split_rule *split;
    /* Do this op and `next`, the one that stands after it in the graph, run forward as one
     * kernel on a GPU? Then no stage may end between them, unless the kind pairs_alike: results
     * would depend on the split. `next` neither exchanges nor draws random numbers. It reads the
     * graph alone, so a plan does not depend on what is built in. Asked for through smp_op_fused.
     * NULL: never. */
    bool (*fuses)(const smp_graph *graph, const smp_op *op, const smp_op *next);
    /* Likewise: do backward_input of this op and of `before`, the one that stands before it, run as
     * one kernel on a GPU? Each is the only reader of its inputs, so that nothing is added up
     * between the two calls; `before` has no weights, its output is as large as its input, and it
     * can work in place; neither exchanges or leaves anything to backward_weight. Asked for through
     * smp_op_fused_backward. */
    bool (*fuses_backward)(const smp_graph *graph, const smp_op *op, const smp_op *before);
    /* Does backward of this op on a GPU, given the gradient of what `next` makes, do as if it had
     * been given that of its own output? `next` stands after it and alone reads that. Given that of
     * its own it does the same, so a stage may end between the two. Then `next` passes its dout,
     * and its backward_input is not called. Asked for through smp_op_absorbs. */
    bool (*absorbs)(const smp_graph *graph, const smp_op *op, const smp_op *next);
    /* Those kernels have the bits of two calls: a stage may end between the ops, and forward of one
     * may be repeated without the other. */
    bool pairs_alike;
    /* Of a model that is trained: the kind of the one op that does what `before` and this op do,
     * which alone reads what that makes, as its input 0; NULL: they stay two. It has the weights
     * and inputs of `before`, then the other inputs of this op, and the attributes of both. The
     * sizes of a sample decide. NULL: always two. See smp_graph_join. */
    const smp_op_kind *(*joins)(const smp_graph *graph, const smp_op *op, const smp_op *before);
    smp_op_kernels cpu;
    /* The same for bf16, with what `needs` says. NULL, and always in fp16: the fp32 ones, widened.
     * Of `rounded` weights, these or ON_GPU, kernels of a GPU in 16 bits read param16 alone. */
    const smp_op_kernels *cpu16;
    uint32_t rounded; /* weights, a bit each, that these multiply as rounded to 16 bits */
    /* Bound of the values an int32 input may take, for checking data: input `slot` must lie in
     * [min, max]. False: no bound. NULL: none. */
    bool (*index_range)(const smp_graph *graph, const smp_op *op, int slot, int64_t *min,
                        int64_t *max);
    /* How many of `n` values count, of int32 input `rows_in` of a loss that is a mean over the rows
     * that these let count. The loss of a batch is then the mean over the rows that count in
     * all of its micro-batches. NULL: every sample counts alike. */
    int64_t (*rows_counted)(const int32_t *values, int64_t n);
    int rows_in;
    /* forward of such a loss says on request (`hits` of the call) of how many of those rows the
     * input has the right answer first, and of how many among the first SMP_TOP, padding left out.
     * A class stands before another if its logit is larger, or equal and its index lower. */
    bool counts_hits;
};

/* Do inputs get gradients? A kind without kernels is planned as if all of them did. */
static inline bool smp_op_kind_passes_gradients(const smp_op_kind *kind)
{
    return !kind->cpu.forward || kind->cpu.backward_input || kind->passes_dout;
}

/* NULL if unknown. */
const smp_op_kind *smp_op_kind_find(const char *name);
/* All kinds, NULL-terminated: those built in, then the registered ones. */
const smp_op_kind *const *smp_op_kinds(void);
/* Is it a key that every op of a model may have, such as `in`? Then it is no attribute. */
bool smp_op_key_is_common(const char *key);
/* Index of attribute `name` in kind->attrs, -1 if none. */
int smp_op_attr_index(const smp_op_kind *kind, const char *name);

/* Are there kernels of the kind for a backend, built into this library or not? */
bool smp_op_kind_runs(const smp_op_kind *kind, smp_backend backend);
/* The CUDA kernels of a kind; NULL if it has none or this library was built without CUDA. */
const smp_op_kernels *smp_op_cuda_kernels(const smp_op_kind *kind);

/* The CPU kernels of a kind for a precision; NULL if it has none. */
const smp_op_kernels *smp_op_cpu_kernels(const smp_op_kind *kind, smp_precision precision);
/* The workspace of an op on the CPU in bf16 or fp16, with what is widened there. */
int64_t smp_op_half_workspace(const smp_graph *graph, const smp_op *op, int64_t batch,
                              const smp_op_needs *needs);

/* Has it one reader, and is it not the loss? */
bool smp_tensor_is_read_once(const smp_graph *graph, int32_t tensor);
/* Are ops `index` and index + 1 one forward kernel on the graph's target? */
bool smp_op_fused(const smp_graph *graph, int32_t index);
/* Then do bits depend on it, so that one of the two is not repeated without the other? */
bool smp_op_tied_forward(const smp_graph *graph, int32_t index);
/* Are backward_input of ops index + 1 and index one kernel there? */
bool smp_op_fused_backward(const smp_graph *graph, int32_t index);
/* Does backward of the op do that of the next one, too, on the graph's target? */
bool smp_op_absorbs(const smp_graph *graph, const smp_op *op);
/* Is the gradient of each input that of the output, or may be taken for it: nothing is computed? */
bool smp_op_passes_dout(const smp_graph *graph, const smp_op *op);
/* Do results depend on whether a stage ends between the two, forward or backward? */
bool smp_op_tied(const smp_graph *graph, int32_t index);
/* Which of the inputs that backward_input of an op needs it reads where it is one kernel with that
 * of the op before, if it is. */
uint32_t smp_op_fused_reads(const smp_graph *graph, int32_t index, uint32_t needed);

/* needs (of the graph's target) and work, with zeroes where the kind has none. */
void smp_op_needs_get(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_needs *needs);
void smp_op_work_get(const smp_graph *graph, const smp_op *op, int64_t batch, smp_op_work *work);

#endif
