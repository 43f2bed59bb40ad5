/* Attributes of rope, and the frequencies that its scalings make. */
#ifndef SMP_GRAPH_OPS_ROPE_H
#define SMP_GRAPH_OPS_ROPE_H

#include "graph/math/attention.h"
#include "graph/ops/ops.h"

enum {
    SMP__ROPE_HEADS,
    SMP__ROPE_BASE,
    SMP__ROPE_ROTATED,
    SMP__ROPE_INTERLEAVED,
    SMP__ROPE_DEVICES,
    SMP__ROPE_AXIS,
    SMP__ROPE_BLOCKS,
    SMP__ROPE_SCALING,
    SMP__ROPE_FACTOR,
    SMP__ROPE_ORIGINAL,
    SMP__ROPE_LOW,
    SMP__ROPE_HIGH,
    SMP__ROPE_SLOW,
    SMP__ROPE_FAST,
    SMP__ROPE_MAGNITUDE,
    SMP__ROPE_FACTORS
};

enum { SMP__ROPE_MOST_FACTORS = 128 };

typedef enum smp__rope_kind {
    SMP__ROPE_PLAIN,
    SMP__ROPE_LINEAR,
    SMP__ROPE_LLAMA3,
    SMP__ROPE_YARN,
    SMP__ROPE_LONG
} smp__rope_kind;

/* How frequencies are scaled for longer texts than a model was trained with first. */
typedef struct smp__rope_scaling {
    smp__rope_kind kind;
    double factor;
    double slow, fast; /* llama3: turns in `original` positions; yarn: pairs, between which it fades
                        */
    double original;   /* positions */
    double magnitude;  /* cosines and sines are multiplied with it */
    double by_pair[SMP__ROPE_MOST_FACTORS]; /* longrope: the factor of each */
} smp__rope_scaling;

#ifdef __cplusplus
extern "C" {
#endif
/* rope.c; attr: of the operator. width: of a head. */
smp__rope_scaling smp__rope_scaling_of(const smp_attr_value *attr, int64_t width);
#ifdef __cplusplus
}
#endif

/* The frequency of a pair, which is base^(-2 pair / width) without scaling. As transformers has
 * them (modeling_rope_utils.py): linear; Llama 3.1's; YaRN (Peng et al. 2023); LongRoPE (Ding et
 * al. 2024). */
static inline SMP__ANYWHERE double smp__rope_frequency(const smp__rope_scaling *s, double plain,
                                                       int64_t pair)
{
    double kept = 0; /* 1: as it is, 0: divided by the factor */
    if (s->kind == SMP__ROPE_PLAIN)
        return plain;
    if (s->kind == SMP__ROPE_LONG)
        return plain / s->by_pair[pair];
    if (s->kind == SMP__ROPE_LLAMA3)
        kept = (s->original * plain / 6.283185307179586 - s->slow) / (s->fast - s->slow);
    else if (s->kind == SMP__ROPE_YARN)
        kept = 1 - ((double)pair - s->fast) / (s->slow - s->fast);
    kept = kept < 0 ? 0 : kept > 1 ? 1 : kept;
    return plain * kept + plain / s->factor * (1 - kept);
}

#endif
