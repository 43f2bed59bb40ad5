/* An ONNX model as a model file of SMP and a file of its weights.
 *
 * Nodes are taken in their order. Each becomes operators of ours, or none: what exporters write out
 * piece by piece (heads of attention, scores, masks, rotary positions) is carried along as what it
 * stands for, until the last piece says which operator it is. Whatever does not fit becomes
 * `opaque`, with the reason beside it. */
#ifndef SMP_GRAPH_IMPORT_IMPORT_H
#define SMP_GRAPH_IMPORT_IMPORT_H

#include "graph/onnx/onnx_model.h"

typedef struct smp_import_options {
    const char *loss; /* "cross_entropy" or "mse" of the first output and an input `targets`; NULL:
                         mode: inference */
} smp_import_options;

typedef struct smp_imported_output {
    const char *name;   /* in the ONNX file */
    const char *tensor; /* in the model file; NULL: a constant */
} smp_imported_output;

typedef struct smp_import smp_import; /* graph/import/importing.h */

/* model: outlives *out, and is changed: patterns become nodes. SMP_ERR_INPUT names the node and
 * the reason, or what of the options is wrong. *out: smp_import_destroy, which takes NULL. */
smp_status smp_import_onnx(smp_onnx_model *model, const smp_import_options *options,
                           smp_import **out);
void smp_import_destroy(smp_import *import);

/* The model file. Of `import`, as is what follows. */
const char *smp_import_text(const smp_import *import);
/* Operators that are planned and not run. */
int smp_import_opaque(const smp_import *import);
const smp_imported_output *smp_import_outputs(const smp_import *import, int *n);
/* Name of the tensor that an input of the ONNX file has become; NULL: nothing reads it. */
const char *smp_import_input(const smp_import *import, const char *name);

int32_t smp_import_weights(const smp_import *import);
/* Values of a weight by the name that it has in SMP, [its elements], into `values`; false: none of
 * that name. */
bool smp_import_weight(const smp_import *import, const char *name, float *values, int64_t elements);
/* All of them, as safetensors. SMP_ERR_FAILED with the reason. */
smp_status smp_import_write_weights(const smp_import *import, const char *path);

#endif
