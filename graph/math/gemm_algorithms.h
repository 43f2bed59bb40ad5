/* How the matrix products of a device are computed. A library of products has several algorithms
 * for one, which add in other orders: which is taken decides bits, so every rank of a job has to
 * take the same, and a later run again. The list of a device says for each product that kernels
 * were prepared for which algorithms there are, best first, and which is taken; the texts are the
 * device's own (graph/cuda/cuda_gemm.cuh has those of cuBLASLt). The products of an attention's
 * backward are one entry, ours or a library's, and so is a call of a convolution
 * (graph/ops/dnn_choice.cuh). */
#ifndef SMP_GRAPH_MATH_GEMM_ALGORITHMS_H
#define SMP_GRAPH_MATH_GEMM_ALGORITHMS_H

#include "graph/base/arena.h"
#include "graph/model/graph.h"

struct smp_text; /* graph/base/text.h */

enum {
    SMP_GEMM_NAME_BYTES = 256,
    SMP_ALGORITHM_BYTES = 208,
    SMP_GEMM_ALGORITHMS = 10,
    SMP_GEMMS_FORMAT = 1 /* of names and of texts, as profiles and plans keep them */
};

/* An algorithm's text: the epilogue is not part of the product, kernels of ours do it. */
#define SMP_GEMM_APART "apart"

typedef struct smp_gemm {
    char name[SMP_GEMM_NAME_BYTES]; /* a pure function of shape, types and epilogue */
    char algorithm[SMP_GEMM_ALGORITHMS][SMP_ALGORITHM_BYTES]; /* best first */
    int n_algorithm;
    int chosen;          /* which is taken; those before it were refused, unless it was measured */
    int version;         /* another one: the list is another */
    bool here;           /* kernels of this device were prepared for it */
    bool listed;         /* smp_gemms_take has been here */
    bool asked;          /* the first is what `choices` ask for */
    int64_t runs;        /* since somebody set it to 0 */
    bool used;           /* it has run, here or on another rank */
    double us, first_us; /* see smp_gemm_choice */
    char refusal[96];    /* why the first was refused, here or elsewhere; empty: it was not */
} smp_gemm;

typedef struct smp_gemms {
    char library[64];                /* "cuBLASLt 13.1.0" */
    const smp_gemm_choices *choices; /* to be asked for, not owned; NULL: none */
    int64_t workspace_bytes;         /* of calls, where they are measured; 0: as graphs say */
    bool settled;                    /* a refusal is an error from now on */
    int n;
    size_t capacity;
    smp_gemm **product; /* [n], in the order in which they were first asked for */
} smp_gemms;

void smp_gemms_free(smp_gemms *products); /* what it owns */
/* The entry of that name, made if there is none; what `choices` ask for is its first algorithm. */
smp_status smp_gemms_get(smp_gemms *products, const char *name, smp_gemm **out);
/* As its last, unless it is there or there is no room (false). */
bool smp_gemm_add(smp_gemm *product, const char *algorithm);
bool smp_gemm_is_apart(const smp_gemm *product);

/* What was chosen for those that are used, for `device`, whose name is copied as all else. */
smp_status smp_gemms_choices(const smp_gemms *products, const char *device, smp_arena *arena,
                             smp_gemm_choices *out);
smp_status smp_gemm_choices_copy(const smp_gemm_choices *choices, smp_arena *arena,
                                 smp_gemm_choices *out);
/* What is chosen for a product; NULL: nothing. */
const smp_gemm_choice *smp_gemm_choices_find(const smp_gemm_choices *choices, const char *product);
/* A copy, as `products` of the graph, and of what is split from it. */
smp_status smp_gemm_choices_give(const smp_gemm_choices *choices, smp_graph *graph);

/* The same without those that need workspaces of their own, as a library's backward of attention
 * does, which are ours then. *n: how many. */
smp_status smp_gemm_choices_give_lean(const smp_gemm_choices *choices, smp_graph *graph, int *n);

/* A line for each product that is here, "name<TAB>algorithm<TAB>..." */
void smp_gemms_list(const smp_gemms *products, struct smp_text *text);
/* Takes the first line for each name out of the texts of all ranks, which it changes, as the list
 * of that product, here or not: where it is another the first algorithm is taken again. */
smp_status smp_gemms_take(smp_gemms *products, char *lines);
/* A line for each product that has run, "name<TAB>chosen<TAB>refusal". */
void smp_gemms_say(const smp_gemms *products, struct smp_text *text);
/* The greatest choice for each name out of the texts of all ranks, which it changes: all
 * of them are used. Returns whether one that has run here is another now. */
bool smp_gemms_agree(smp_gemms *products, char *lines);
/* "41 matrix products by cuBLASLt 13.1.0, 39 as the plan says, 2 not by ..."; empty if none. */
void smp_gemms_describe(const smp_gemms *products, char *text, size_t size);

#endif
