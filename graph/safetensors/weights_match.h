/* Which tensors of a file make which weights of a model, by rules of names: for reading, with the
 * values; for writing, the list of tensors. */
#ifndef SMP_GRAPH_SAFETENSORS_WEIGHTS_MATCH_H
#define SMP_GRAPH_SAFETENSORS_WEIGHTS_MATCH_H

#include "graph/safetensors/name_rules.h"
#include "graph/safetensors/weights_file.h"

/* A weight of the model, whole. */
typedef struct smp_matched_weight {
    const char *name;
    smp_stored_shape shape;
} smp_matched_weight;

/* Elements [begin, end) of a weight come from a tensor. */
typedef struct smp_weight_source {
    int32_t tensor;
    bool transposed;
    int64_t begin, end;
    int64_t first; /* the element of the tensor, if need be transposed, that `begin` is */
} smp_weight_source;

typedef struct smp_weight_sources {
    int32_t n;                 /* 0: the weight is not wanted */
    smp_weight_source *source; /* [n], of the file's arena */
} smp_weight_sources;

/* Fills in sources[n_weight]. only: patterns of the weights that are wanted; without one all of
 * them are. *unused: tensors of the file that no weight is made of.
 * SMP_ERR_INPUT: a weight whose tensors the file lacks, of another shape, or of no floats; a
 * pattern like no weight. */
smp_status smp_weights_match(const smp_weights_file *file, const smp_name_rules *rules,
                             const smp_matched_weight *weight, int32_t n_weight,
                             const char *const *only, int n_only, smp_weight_sources *sources,
                             int32_t *unused);

/* Are elements that follow each other read as such? Else one is to read many at once: of a
 * transposed tensor it takes an access for every column. */
bool smp_weight_in_order(const smp_weight_sources *sources);
/* Elements [begin, begin + n) of a weight that is wanted. scratch: [n], for what is transposed, so
 * that with half of a model read no memory is wanting. */
smp_status smp_weight_read(smp_weights_file *file, const smp_weight_sources *sources, int64_t begin,
                           int64_t n, float *values, float *scratch);

/* A tensor to be written: elements [begin, end) of weights, stacked; as a matrix of `rows` rows
 * transposed. */
typedef struct smp_written_piece {
    int32_t weight;
    int64_t begin, end;
} smp_written_piece;

typedef struct smp_written_source {
    const char *name;
    smp_stored_shape shape;
    int64_t elements;
    bool transposed;
    int n_piece, parts; /* equal in the end */
    smp_written_piece *piece;
    int32_t weight; /* the first that it is made of */
} smp_written_source;

/* *out: [*n] in the arena, in the order of the weights. SMP_ERR_INPUT: rules that do not fit the
 * weights' shapes, or call two weights alike; with a family, weights that no rule names. */
smp_status smp_weights_written(const smp_name_rules *rules, const smp_matched_weight *weight,
                               int32_t n_weight, smp_arena *arena, smp_written_source **out,
                               int32_t *n);

/* Shared with weights_written.c. What tensors of a rule make: the weight, or, so many times, an
 * item of its first dimension. */
typedef struct smp_rule_items {
    int64_t n;
    smp_stored_shape shape;
} smp_rule_items;
smp_rule_items smp__rule_items(const smp_name_rule *rule, const smp_stored_shape *weight);
/* What `shaped` says of a weight; false: nothing that has as many
 * elements. */
bool smp__shaped(const char *text, const smp_stored_shape *weight, smp_stored_shape *out);

#endif
