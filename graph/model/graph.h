/* The operator graph: what is computed. Read from a model file, immutable afterwards.
 *
 * Ops stand in file order, which is a topological order: an op reads only tensors made by earlier
 * ops or model inputs. Every op makes one tensor or more. A name that an op rebinds is a new
 * tensor. Everything is an index into flat arrays; adjacency is CSR. */
#ifndef SMP_GRAPH_MODEL_GRAPH_H
#define SMP_GRAPH_MODEL_GRAPH_H

#include <stdbool.h>

#include "graph/base/arena.h"
#include "graph/base/status.h"
#include "graph/model/dtype.h"
#include "graph/model/split_rule.h"
#include "graph/model/target.h"

enum {
    SMP_MAX_DIMS = 6,
    SMP_MAX_OPS = 10000000, /* after repeats are unrolled */
    SMP_MAX_NAME = 255
};

/* Shape of one sample: the batch dimension is implicit. */
typedef struct smp_shape {
    int n_dim;
    int64_t dim[SMP_MAX_DIMS];
} smp_shape;

typedef struct smp_op_kind smp_op_kind; /* graph/model/op.h */

typedef struct smp_tensor {
    const char *name; /* as written; not unique where a name is rebound */
    smp_dtype dtype;
    bool batched;    /* one value per sample; false for a loss: one per micro-batch */
    bool known;      /* shape is known; false for an opaque op without `shape` */
    bool planned;    /* of a type that the file says and no kernel takes, whatever the target */
    bool unsplit;    /* a model input of which a step has one, the same for all its samples */
    bool needs_grad; /* training, has weights that are trained upstream, and reaches the loss (if
                         there is one) */
    smp_shape shape;
    bool channels_last; /* an image [C, H, W] that lies as [H, W, C], as graph->target decides */
    int64_t elements;   /* of one sample; 0 if not known */
    int64_t bytes;    /* of a micro-batch, as the file says, where the shape is not known; else 0 */
    int32_t producer; /* op, or -1 for a model input */
} smp_tensor;

typedef enum smp_init_kind {
    SMP_INIT_ZERO,
    SMP_INIT_ONE,
    SMP_INIT_NORMAL,
    SMP_INIT_UNIFORM
} smp_init_kind;

typedef struct smp_param {
    const char *name; /* "wte.weight": first op's name, dot, role */
    smp_shape shape;
    int64_t elements;
    smp_init_kind init;
    float init_scale;  /* normal: standard deviation; uniform: bound */
    bool decay;        /* weight decay applies (two or more dimensions) */
    bool running;      /* a statistic, see smp_param_decl */
    bool frozen;       /* a step leaves it as it is: smp_graph_freeze */
    bool idle;         /* frozen, and so is all that its ops have: no backward makes a gradient of
                          it, so it has neither accumulators nor states of the optimizer */
    int32_t number;    /* its index in the graph as read: what initial values go by */
    smp_part part;     /* of the weight so named, in the graph of one of several devices */
    int32_t use_begin; /* uses use_begin .. use_end-1 of smp_graph.use, in op order */
    int32_t use_end;
} smp_param;

/* One op reading one weight. A tied weight has several uses; each keeps its own gradient
 * accumulator, added in this order at the reduction. */
typedef struct smp_use {
    int32_t param;
    int32_t op;
    int32_t slot; /* index into op->param */
} smp_use;

typedef union smp_attr_value {
    int64_t i; /* int, bool (0/1), choice (index) */
    double f;
    struct {
        const char *text; /* string */
    } s;
    struct {
        const int64_t *items;
        int64_t count;
    } list; /* list of ints */
    struct {
        const double *items;
        int64_t count;
    } floats;
} smp_attr_value;

/* `cost:` of an op, per micro-batch; NaN / -1 where a key is absent. Bytes are there only where
 * shapes do not say them. */
typedef struct smp_op_cost_override {
    double forward_us, backward_us;
    int64_t weight_bytes, stash_bytes, output_bytes;
} smp_op_cost_override;

typedef struct smp_op {
    const smp_op_kind *kind;
    const char *name;                 /* unique */
    const int32_t *in;                /* tensors */
    const int32_t *param;             /* weights, in the kind's order */
    const int32_t *use;               /* for each weight: its index in smp_graph.use */
    const smp_attr_value *attr;       /* one per kind->attrs entry, defaults filled in */
    const smp_op_cost_override *cost; /* NULL without `cost:` */
    int32_t n_in;
    int32_t n_param;
    int32_t n_out;      /* at least 1 */
    bool hides_weights; /* of a kind without kernels, and the file does not say which it has */
    bool no_gradient;   /* the file says so: none goes into or through it */
    bool statistics;    /* only frozen weights lie upstream, its own too, but running statistics of
                           its own go on: a backward of zero gradients, which passes none */
    int32_t out;        /* tensors out .. out + n_out - 1; those of all ops stand in op order */
    int32_t number;     /* its index in the graph as read: what random numbers go by */
    uint8_t summands;   /* bit i: every device has a summand of the gradient of weight i */
    int32_t pin;        /* stage, or -1 */
    int32_t group;      /* index into smp_graph.group, or -1 */
    int32_t line;       /* in the model file */
    int32_t column;
} smp_op;

typedef struct smp_consumer {
    int32_t op;
    int32_t slot; /* index into op->in */
} smp_consumer;

/* Other values for entries of a model's `let`. */
enum { SMP_MAX_SETTINGS = 64 };
typedef struct smp_settings {
    int n;                   /* at most SMP_MAX_SETTINGS */
    const char *const *text; /* [n] "NAME=VALUE", as `let` has it after a colon; of two with one
                                name the later counts */
} smp_settings;

typedef struct smp_graph {
    const char *name;
    const char *path;      /* as given */
    smp_settings settings; /* those that count */
    bool training;         /* mode: training */
    bool freezes;          /* smp_graph_freeze was called; of the whole graph */
    smp_target target;
    int32_t n_input; /* model inputs are tensors 0 .. n_input-1 */
    int32_t n_tensor;
    int32_t n_op;
    int32_t n_param;
    int32_t n_use;
    int32_t n_group;
    int32_t loss;            /* tensor, or -1 */
    int32_t device, devices; /* of so many that compute the graph together, this one's: 0 of 1 */
    bool overlap; /* exchanges run beside weight gradients (graph/split/overlap.h): a plan's choice,
                     which changes no value */
    /* What a profile or a plan says of how the device computes, which may decide what workspace an
     * op needs; NULL: nothing. smp_gemm_choices_give sets it. */
    const smp_gemm_choices *products;
    const struct smp_graph *whole; /* what it was split from; NULL: it is whole itself */
    const smp_tensor *tensor;
    const smp_op *op;
    const smp_param *param;
    const smp_use *use;
    const char *const *group;      /* names */
    const int64_t *consumer_begin; /* [n_tensor + 1] */
    const smp_consumer *consumer;  /* in op order, then slot order */
    uint64_t fingerprint;          /* of what is computed: ops, attributes, shapes, ties, inputs,
                                     loss, mode; not of pins, groups, costs or layout of the file */
    uint64_t weights_fingerprint;  /* the same without the mode (the one it has when it is trained):
                                     what values of the weights belong to */
    smp_arena *arena;
} smp_graph;

/* Reads and checks a model file: names, shapes, types, ties, limits. Errors: SMP_ERR_INPUT with
 * file:line:column. *out is freed with smp_graph_destroy. */
smp_status smp_graph_read(const char *path, smp_graph **out);
smp_status smp_graph_read_with(const char *path, smp_settings settings, smp_graph **out);
smp_status smp_graph_parse(const char *path, const char *text, size_t bytes, smp_graph **out);
void smp_graph_destroy(smp_graph *graph);

/* The graph that the model's file says: what weights, checkpoints and samples belong to. */
static inline const smp_graph *smp_graph_whole(const smp_graph *graph)
{
    return graph->whole ? graph->whole : graph;
}

/* What trains a model, or plans that, does so of this: pairs of ops that are better computed as one
 * (`joins` of smp_op_kind: a head and its cross_entropy whose logits are too large to be there at
 * once) become that. The one op has the name of the second, weights keep theirs, fingerprints stay.
 * The graph is as it was read; one for inference is left so. */
smp_status smp_graph_join(smp_graph *graph);
/* smp_graph_read_with and smp_graph_join. */
smp_status smp_graph_read_joined(const char *path, smp_settings settings, smp_graph **out);

/* What the graph, and the whole that it owns, is executed on from now on: float tensors
 * other than the loss change their type.
 * SMP_ERR_INPUT if the backend lacks the precision. Whether every op has a kernel there:
 * smp_graph_check_runnable. */
smp_status smp_graph_set_target(smp_graph *graph, smp_target target);

/* From now on no step changes the weights that `frozen` [n_param] names, as with PyTorch's
 * requires_grad=False: only tensors with another weight upstream need a gradient. Running
 * statistics go on, named or not. The graph is whole, nothing is split from it yet. It keeps its
 * fingerprints: what is frozen is a plan's choice. SMP_ERR_INPUT, naming the model's file, if the
 * model is trained and nothing would be. */
smp_status smp_graph_freeze(smp_graph *graph, const bool *frozen);

/* SMP_ERR_INPUT naming the first op that has no kernel for the graph's target (built in or not), or
 * if there is no loss in a training model. */
smp_status smp_graph_check_runnable(const smp_graph *graph);

/* SMP_ERR_INPUT naming the first op that has kernels elsewhere but none for the graph's target. Ops
 * that run nowhere (opaque) are fine, and so are registered ones, which have none for a GPU: what
 * is only planned. A training model whose ops all run somewhere needs a loss. */
smp_status smp_graph_check_kernels(const smp_graph *graph);

/* Bytes of a tensor for a micro-batch of `batch` samples, exactly; if the shape is not known, what
 * the file says of any micro-batch, 0 without. */
int64_t smp_tensor_bytes(const smp_graph *graph, int32_t tensor, int64_t batch);

/* -1 if there is none. */
int32_t smp_graph_find_op(const smp_graph *graph, const char *name); /* hash lookup */
int32_t smp_graph_find_param(const smp_graph *graph, const char *name);
/* A tensor that an op makes: by the name of that op, else by its own, the last of that name; NULL:
 * what the loss reads first, without a loss the last of all. SMP_ERR_INPUT names the nearest. */
smp_status smp_graph_find_made(const smp_graph *graph, const char *name, int32_t *out);

smp_where smp_op_where(const smp_graph *graph, const smp_op *op);

/* Has it weights that a backward changes something of: trained ones, or running statistics? */
static inline bool smp_op_has_trained(const smp_graph *graph, const smp_op *op)
{
    for (int32_t k = 0; k < op->n_param; k++)
        if (!graph->param[op->param[k]].frozen)
            return true;
    return false;
}

/* Has one of its outputs a gradient? */
static inline bool smp_op_has_gradient(const smp_graph *graph, const smp_op *op)
{
    for (int32_t t = op->out; t < op->out + op->n_out; t++)
        if (graph->tensor[t].needs_grad)
            return true;
    return false;
}

/* Names and shapes of the weights of a graph that is whole, as files of weights are matched with
 * them. *out: [n_param], malloc'ed; names are the graph's. */
struct smp_matched_weight;
smp_status smp_graph_list_weights(const smp_graph *whole, struct smp_matched_weight **out);

#endif
