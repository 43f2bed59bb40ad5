/* What the CPU's and the GPU's attention share: sizes, and where q, k and v lie. */
#ifndef SMP_GRAPH_MATH_ATTENTION_H
#define SMP_GRAPH_MATH_ATTENTION_H

#include "graph/model/op.h"

enum { SMP__Q, SMP__K, SMP__V };

/* Value x of head h of row t of part i: in[input[i]][offset[i] + t * stride[i] + h * width + x]. Of
 * k and v there are kv_heads heads, each read by heads / kv_heads heads of q that lie side by side. */
typedef struct smp__attention {
    int64_t queries, keys, d, heads, kv_heads, width;
    int input[3];
    int64_t offset[3];
    int64_t stride[3];
    int mask;    /* input (Tk) of int32: 0 hides a key from every query; -1: there is none */
    bool causal; /* query t sees keys 0 .. t, otherwise all */
    float scale; /* 1 / sqrt(width) */
} smp__attention;

/* The head of part i that head `head` of the queries reads. */
static inline int64_t smp__attention_head(const smp__attention *at, int part, int64_t head)
{
    return part == SMP__Q ? head : head / (at->heads / at->kv_heads);
}

smp__attention smp__attention_of(const smp_graph *graph, const smp_op *op);

#endif
