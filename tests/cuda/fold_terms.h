/* What a sum over ranks makes of their terms, as exec/transport/transport.h says. */
#ifndef SMP_TESTS_CUDA_FOLD_TERMS_H
#define SMP_TESTS_CUDA_FOLD_TERMS_H

#include <string.h>

#include "exec/transport/transport.h"

static inline float to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* How many neighbours add up first, what they have then goes on; all members if none do. */
static inline int first_hop(const smp_transport *transport, const smp_comm *comm,
                            const smp_sum *sum, int members)
{
    const smp_reach reach = sum->gather ? SMP_REACH_ALL : SMP_REACH_GROUP;
    int near = 0, far = 0;
    if (strcmp(transport->name, "staged") == 0 || comm->near == MPI_COMM_NULL ||
        comm->far == MPI_COMM_NULL || sum->reach != reach)
        return members;
    MPI_Comm_size(comm->near, &near);
    MPI_Comm_size(comm->far, &far);
    return near * far == members ? near : members;
}

/* The sum in value[0]: neighbours in pairs, those in pairs and so on. hop: 0, or in bf16 how many
 * add up in the first hop: terms and what a hop ends with are rounded. */
static inline void fold_terms(float *value, int members, int hop)
{
    for (int m = 0; m < members && hop > 0 && members > 1; m++)
        value[m] = to_bf16(value[m]);
    for (int width = 1; width < members; width *= 2)
        for (int m = 0; m + width < members; m += 2 * width) {
            value[m] += value[m + width];
            if (hop > 0 && (2 * width == hop || 2 * width >= members))
                value[m] = to_bf16(value[m]);
        }
}

#endif
