/* The exporters, for the registry, and what several of them share. */
#ifndef SMP_SCHEDULE_EXPORT_EXPORT_KINDS_H
#define SMP_SCHEDULE_EXPORT_EXPORT_KINDS_H

#include "schedule/export/export.h"

extern const smp_exporter smp__export_torch_csv;
extern const smp_exporter smp__export_torch_stages;
extern const smp_exporter smp__export_megatron;
extern const smp_exporter smp__export_deepspeed;
extern const smp_exporter smp__export_dot;
extern const smp_exporter smp__export_json;

/* The model as a line of layers, as frameworks cut it: the embedding (all ops before the first
 * layer), the layers, the head (all ops after the last one). An op belongs to a layer if its name up
 * to the first '.' ends in a digit ("h0.attn": layer "h0"), or if it stands between layers. */
typedef struct smp__units {
    int32_t n;               /* embedding, layers, head */
    int32_t n_layer;         /* 0: the model has no layers, and every op is a unit */
    bool embedding, head;    /* the first / last unit is one */
    const char *const *name; /* [n] */
    const int32_t *stage;    /* [n] rising */
    smp_arena *arena;
} smp__units;

/* SMP_ERR_INPUT if the ops of a unit lie in several stages, or units and stages disagree in order.
 * format: for the message. Freed by destroying units->arena. O(ops). */
smp_status smp__export_units(const smp_plan *plan, const smp_graph *graph, const char *format,
                             smp__units *units);

#endif
