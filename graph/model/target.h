/* What a graph is executed on, and in which number format: decides the bytes of activations and
 * what the kernels save. A graph as read is for the CPU in fp32; smp_graph_set_target changes that.
 * The fingerprint does not depend on it. */
#ifndef SMP_GRAPH_MODEL_TARGET_H
#define SMP_GRAPH_MODEL_TARGET_H

#include <stdbool.h>

#include "graph/base/status.h"
#include "graph/model/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Each once; plans that name none are for the first. */
#define SMP_BACKENDS(X) X(CPU, cpu) X(CUDA, cuda)
#define SMP__BACKEND_ENTRY(ID, name) SMP_BACKEND_##ID,
#define SMP__BACKEND_WORD(ID, name) "|" #name
#define SMP_BACKEND_WORDS (&(SMP_BACKENDS(SMP__BACKEND_WORD))[1]) /* "cpu|cuda" */
typedef enum smp_backend { SMP_BACKENDS(SMP__BACKEND_ENTRY) SMP_N_BACKEND } smp_backend;

/* What a plan has to know of a backend: a row in target.c. */
typedef struct smp_backend_traits {
    const char *title;  /* in messages: "CPU" */
    bool own_memory;    /* its devices compute in it, while the host is free; else cores compute */
    bool cpu_kernels;   /* the CPU's; operators without any in 16 bits compute in copies in fp32 */
    bool fuses;         /* neighbouring operators may share a kernel, as kinds say */
    bool sends_halves;  /* in operators 16 bits travel between devices as they are, else as fp32 */
    bool has_tf32;      /* --help of smp-partition and smp-profile says so of cuda alone */
    bool channels_last; /* images may lie as [H, W, C] (graph/model/channels_last.c) */
    bool captures;      /* its launches of a step can be made at once, as graphs */
    bool picks_gemms;   /* its library has several GEMM algorithms: plans say which are taken */
} smp_backend_traits;

/* Weights and their gradients are fp32 in all of them. */
typedef enum smp_precision {
    SMP_PRECISION_FP32,
    SMP_PRECISION_TF32, /* as fp32, but matrix products round their factors to 10 bits of
                           mantissa */
    SMP_PRECISION_BF16, /* activations, their gradients and a copy of the weights in bf16; sums in
                           fp32 */
    SMP_PRECISION_FP16, /* the same in fp16 */
    SMP_PRECISION_FP8,  /* as bf16, but products of `linear` round their factors to 8 bits
                           (graph/ops/matmul/README.md) */
    SMP_N_PRECISION
} smp_precision;

typedef struct smp_target {
    smp_backend backend;
    smp_precision precision;
    bool bf16_states; /* states of the optimizer in bf16, rounded stochastically; else in fp32 */
} smp_target;

/* What activations and their gradients are in: SMP_F32, or the format of 16 bits, in which there
 * are copies of the weights then. */
static inline smp_dtype smp_precision_dtype(smp_precision precision)
{
    return precision == SMP_PRECISION_BF16 || precision == SMP_PRECISION_FP8 ? SMP_BF16
           : precision == SMP_PRECISION_FP16                                 ? SMP_F16
                                                                             : SMP_F32;
}

static inline bool smp_precision_is_half(smp_precision precision)
{
    return smp_dtype_is_half(smp_precision_dtype(precision));
}

/* Bytes of one element of an optimizer state. */
static inline int smp_target_state_bytes(smp_target target)
{
    return target.bf16_states ? 2 : 4;
}

static inline bool smp_target_equal(smp_target a, smp_target b)
{
    return a.backend == b.backend && a.precision == b.precision && a.bf16_states == b.bf16_states;
}

/* What was chosen for one of a device's products (graph/math/gemm_algorithms.h), as files keep
 * it. */
typedef struct smp_gemm_choice {
    const char *product, *algorithm;
    double us; /* of the operator's part that it was measured in; 0: not measured */
    /* The same by the product's first algorithm, which is taken where nothing is chosen, if another
     * one is chosen here; 0: it is that, or was not measured. */
    double first_us;
} smp_gemm_choice;

typedef struct smp_gemm_choices {
    const char *device, *library; /* they hold for; NULL: there are none */
    int n;
    const smp_gemm_choice *choice; /* [n] */
} smp_gemm_choices;

const smp_backend_traits *smp_backend_of(smp_target target);
const char *smp_backend_name(smp_backend backend);         /* "cpu", "cuda" */
const char *smp_precision_name(smp_precision precision);   /* "fp32", "tf32", "bf16", .. */
bool smp_backend_find(const char *name, smp_backend *out); /* false if unknown */
bool smp_precision_find(const char *name, smp_precision *out);
/* Of a device as profiles call it: the backend that it is called, alone or before a colon ("cpu",
 * "cuda: a card"); else it is a card of CUDA, by its own name. */
smp_backend smp_backend_of_device(const char *device);
const char *smp_backend_with(smp_precision precision); /* the name of the first that has it */
/* "fp32" for "float32", "bf16" for "bfloat16", and so on; any other name as it is. */
const char *smp_precision_word(const char *name);

/* The same of what a user gave; SMP_ERR_INPUT lists the names. where: may be empty. */
smp_status smp_backend_read(smp_where where, const char *what, const char *name, smp_backend *out);
smp_status smp_precision_read(smp_where where, const char *what, const char *name,
                              smp_precision *out);

/* "fp32 only" and the like: SMP_ERR_INPUT if the backend lacks the precision. */
smp_status smp_target_check(smp_target target);
/* May several devices compute an op together there? In fp8 each would know the largest value of its
 * part alone, and a scale is of whole tensors. */
static inline bool smp_target_splits(smp_target target)
{
    return target.precision != SMP_PRECISION_FP8;
}
/* SMP_ERR_INPUT if so many may not. */
smp_status smp_target_check_devices(smp_target target, int devices);

#ifdef __cplusplus
}
#endif

#endif
