/* A tensor of the model, where it is made and how it lies over the devices of a group. */
#ifndef SMP_EXEC_PREDICT_WHOLE_TENSOR_H
#define SMP_EXEC_PREDICT_WHOLE_TENSOR_H

#include "exec/state/handle.h"

typedef struct smp__whole_tensor {
    int32_t whole;  /* tensor of the model's graph */
    int32_t here;   /* ... of the rank's, which holds it or a part of it */
    smp_spread way; /* WHOLE or SPLIT, */
    int devices;    /* over so many */
} smp__whole_tensor;

/* name: of an op (its first output), or of a tensor as the model's file calls it, the last one of
 * that name; NULL: what the loss reads first, without a loss what the last op makes. SMP_ERR_INPUT
 * suggests the nearest name; also of a model input, and of what only lies in summands. */
smp_status smp__whole_tensor_find(const smp *s, const char *name, smp__whole_tensor *out);

/* Puts what device `device` has of `count` samples, [count][its part], where it belongs in
 * [count][whole]; of elements of four bytes. */
void smp__whole_tensor_put(const smp *s, const smp__whole_tensor *tensor, int device, int64_t count,
                           const char *part, char *whole);

#endif
