/* What attention on the CPU does with a row of scores, in fp32 and between products in bf16. */
#ifndef SMP_GRAPH_OPS_ATTENTION_ROWS_H
#define SMP_GRAPH_OPS_ATTENTION_ROWS_H

#include "graph/math/attention.h"

enum { SMP__ATTENTION_ROWS = 64 }; /* queries of a block */

/* Attributes of attention, and of the kinds that it becomes. */
enum {
    SMP__HEADS,
    SMP__CAUSAL,
    SMP__KV_HEADS,
    SMP__WINDOW,
    SMP__ALIBI,
    SMP__BUCKETS,
    SMP__MAX_DISTANCE,
    SMP__WEIGHT,
    SMP__INIT_STD,
    SMP__SCALE,
    SMP__DEVICES,
    SMP__AXIS,
    SMP__BLOCKS,
    SMP__SOFTCAP
};
extern const smp_attr_desc smp__attention_attrs[];
/* query_parts, key_parts: devices that each have a part of the queries, of the keys. */
smp_status smp__infer_attention(smp_infer *infer, int64_t query_parts, int64_t key_parts);

/* The rows of q begin .. end-1 may look at the keys from the first to before the last. */
static inline int64_t smp__attention_first(const smp__attention *at, int64_t begin)
{
    const int64_t position = at->before + begin;
    return position < at->window ? 0 : position + 1 - at->window;
}

static inline int64_t smp__attention_end(const smp__attention *at, int64_t end)
{
    return at->causal ? at->before + end : at->keys;
}

static inline int64_t smp__attention_block(const smp__attention *at, int64_t begin)
{
    const int64_t left = at->queries - begin;
    return left < SMP__ATTENTION_ROWS ? left : SMP__ATTENTION_ROWS;
}

/* Blocks of rows by keys: a GPU takes them at once. */
static inline void smp__work_blocks(const smp_graph *graph, double blocks, smp_op_work *work)
{
    work->blocks = smp_backend_of(graph->target)->own_memory ? 0 : blocks;
}

/* Elements of the sample's part that head h of the queries reads lie at in[input[part]] from here
 * on. */
int64_t smp__attention_place(const smp_op_call *call, const smp__attention *at, int part,
                             int64_t sample, int64_t h);

/* What scores are besides products. NULL: nothing. */
typedef struct smp__attention_terms {
    const int32_t *mask; /* (Tk) of the sample */
    const float *bias;   /* (Tq + Tk - 1) of the head, by distance of key and query, rising */
} smp__attention_terms;

/* Every value of the micro-batch's mask is 0 or 1. */
smp_status smp__attention_check_mask(const smp_op_call *call, const smp__attention *at);

/* The bias of head h: Tq + Tk - 1 values. */
void smp__attention_fill_bias(const smp_op_call *call, const smp__attention *at, int64_t h,
                              float *bias);

/* Scores s become cap tanh(s / cap). */
void smp__attention_cap(float *scores, float cap, int64_t n);
/* ds, the gradient of capped scores, becomes that of the scores before, which are overwritten. */
void smp__attention_cap_gradient(float *ds, float *scores, float cap, int64_t n);

/* Scores of query t become probabilities, in place: zeros where it must not look, and everywhere if
 * no key counts. row: of the keys low .. high-1. */
void smp__attention_softmax(const smp__attention *at, const smp__attention_terms *terms, float *row,
                            int64_t t, int64_t low, int64_t high);

/* dp, the gradient of these probabilities, becomes that of the scores. */
void smp__attention_gradient(const smp__attention *at, float *dp, const float *p, int64_t t,
                             int64_t low, int64_t high);

extern const smp_op_kernels smp__attention_half; /* of arrays in bf16 */
void smp__attention_half_needs(const smp__attention *at, int64_t batch, smp_op_needs *needs);

#endif
