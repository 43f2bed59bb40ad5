/* States of the optimizer in bf16. An update computes with floats, and what it leaves is rounded at
 * random: up with a probability that is the part of a unit cut off, so that the mean is the value
 * itself. To the nearest would not do: a moment that changes by less than half a unit of its last
 * place, as a slow mean does in most steps, would stand still for ever.
 *
 * The random bits are a function of the job's seed, the weight, the element's place in the whole
 * weight, the number of the state and the step alone (Philox4x32-10, as smp_random_philox), so that
 * no way to spread weights over ranks shows in the bits:
 *   key = mix(seed ^ mix(weight's number)), counter = (place / 4, 2^63 | step);
 * word place % 4 has 16 bits for each of two states, the lower ones for state 0. */
#ifndef SMP_EXEC_OPTIMIZER_BF16_STATES_H
#define SMP_EXEC_OPTIMIZER_BF16_STATES_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* How the states of one update are rounded. Of its elements, `first` on of a device's part of a
 * weight, the parts being `count` runs that follow each other in the whole, `run` elements each, of
 * which this one has number `index`; in `blocks` of them, of two the second backwards
 * (smp_split_part). A whole weight is one run of one. */
typedef struct smp_state_rounding {
    uint64_t key, counter_high;
    int64_t first, run;
    int index, count, blocks;
    bool nearest; /* no random bits: to see what they are good for */
} smp_state_rounding;

/* Key and upper half of the counter. number: of the weight in the whole model. */
void smp_state_rounding_seed(smp_state_rounding *rounding, uint64_t seed, int32_t number,
                             int64_t step);

#ifdef __CUDACC__
#define SMP_HOST_DEVICE __host__ __device__
#else
#define SMP_HOST_DEVICE
#endif

/* Where element i of the update stands in the whole weight. */
SMP_HOST_DEVICE static inline int64_t smp_state_place(smp_state_rounding r, int64_t i)
{
    const int64_t at = r.first + i, turn = at / r.run, block = turn % r.blocks;
    const int own = r.blocks == 2 && block == 1 ? r.count - 1 - r.index : r.index;
    return ((turn - block) * r.count + block * r.count + own) * r.run + at % r.run;
}

/* A float's bits, rounded by 16 random ones; what is not finite stays so. */
SMP_HOST_DEVICE static inline uint32_t smp_state_round(uint32_t bits, uint32_t random)
{
    const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
    const uint32_t quiet = (bits & 0x007fffffu) != 0 ? 0x00400000u : 0u;
    return (finite ? bits + random : bits | quiet) >> 16;
}

/* What stands for them, to round to the nearest, ties to even. */
SMP_HOST_DEVICE static inline uint32_t smp_state_nearest(uint32_t bits)
{
    return 0x7fffu + (bits >> 16 & 1);
}

/* Rounds n values of a state to the nearest, without random bits: what is a bf16 number stays what
 * it is. */
void smp_states_to_nearest(uint16_t *state, const float *value, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
