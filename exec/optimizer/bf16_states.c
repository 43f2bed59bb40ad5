/* States in bf16 on the CPU: an update goes block by block, whose states are floats while it works
 * on them, so that optimizers need not know. A block is small enough to stay in the first cache:
 * what goes to and from memory is 2 bytes for each state instead of 4. */
#include "exec/optimizer/bf16_states.h"

#include <string.h>

#include "exec/optimizer/optimizer.h"
#include "graph/base/random.h"
#include "graph/math/half.h"
#include "graph/math/philox_lanes.h"

enum { BLOCK = 2048, GROUP = SMP__PHILOX_GROUP, WORDS = SMP__PHILOX_WORDS };

void smp_state_rounding_seed(smp_state_rounding *rounding, uint64_t seed, int32_t number,
                             int64_t step)
{
    rounding->key = smp_random_mix(seed ^ smp_random_mix((uint64_t)number));
    rounding->counter_high = UINT64_C(1) << 63 | (uint64_t)step;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

SMP_VECTOR static void to_nearest(uint16_t *restrict state, const float *restrict value, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t bits = bits_of(value[i]);
        state[i] = (uint16_t)smp_state_round(bits, smp_state_nearest(bits));
    }
}

void smp_states_to_nearest(uint16_t *state, const float *value, int64_t n)
{
    to_nearest(state, value, n);
}

static inline uint16_t rounded_by(float value, uint32_t word, int k)
{
    return (uint16_t)smp_state_round(bits_of(value), word >> 16 * k & 0xffff);
}

/* Elements that follow each other in the whole weight from `place` on, of one state. */
typedef struct rounded {
    uint16_t *state;
    const float *value;
} rounded;

typedef uint32_t lanes __attribute__((vector_size(4 * SMP_LANES)));

static inline void zip(const lanes *a, const lanes *b, lanes *low, lanes *high)
{
    *low = __builtin_shufflevector(*a, *b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    *high = __builtin_shufflevector(*a, *b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30,
                                    15, 31);
}

/* random[4 l + w] = word[w][l], in registers: as a loop it took as long as all else. */
static inline void by_element(uint32_t random[GROUP], uint32_t word[WORDS][SMP_LANES])
{
    lanes from[WORDS], even[2], odd[2], to[WORDS];
    memcpy(from, word, sizeof from);
    zip(&from[0], &from[2], &even[0], &even[1]);
    zip(&from[1], &from[3], &odd[0], &odd[1]);
    for (int i = 0; i < 2; i++)
        zip(&even[i], &odd[i], &to[2 * i], &to[2 * i + 1]);
    memcpy(random, to, sizeof to);
}

SMP_VECTOR static void round_run(const rounded *of, int states, uint64_t key, uint64_t counter_high,
                                 int64_t place, int64_t n)
{
    uint32_t word[WORDS][SMP_LANES], random[GROUP] = {0};
    for (int64_t begin = 0, width; begin < n; begin += width) {
        const int64_t skip = (place + begin) % GROUP;
        width = n - begin < GROUP - skip ? n - begin : GROUP - skip;
        smp__philox_group(key, counter_high, (uint64_t)(place + begin) / GROUP, word);
        by_element(random, word);
        for (int k = 0; k < states; k++) {
            uint16_t *restrict state = of[k].state + begin;
            const float *restrict value = of[k].value + begin;
            if (width == GROUP)
                for (int i = 0; i < GROUP; i++)
                    state[i] = rounded_by(value[i], random[i], k);
            else
                for (int i = 0; i < width; i++)
                    state[i] = rounded_by(value[i], random[(skip + i) % GROUP], k);
        }
    }
}

/* Elements begin .. begin + n - 1 of the update, run by run. */
static void round_block(const smp_update *u, int states, float (*value)[BLOCK], int64_t begin,
                        int64_t n)
{
    const smp_state_rounding *r = &u->rounding;
    for (int64_t at = 0, m; at < n; at += m) {
        const int64_t left = r->run - (r->first + begin + at) % r->run;
        m = n - at < left ? n - at : left;
        rounded of[SMP_MAX_OPTIMIZER_STATES];
        for (int k = 0; k < states; k++)
            of[k] = (rounded){u->state16[k] + begin + at, value[k] + at};
        if (!r->nearest)
            round_run(of, states, r->key, r->counter_high, smp_state_place(*r, begin + at), m);
        for (int k = 0; k < states && r->nearest; k++)
            smp_states_to_nearest(of[k].state, of[k].value, m);
    }
}

void smp_optimizer_apply(const smp_optimizer *optimizer, const smp_update *u)
{
    void (*call)(const smp_update *) = u->direction ? optimizer->measure : optimizer->update;
    const bool touches = u->direction || !optimizer->measure; /* else the measurement did it */
    float value[SMP_MAX_OPTIMIZER_STATES][BLOCK];
    if (!u->state16[0] || !touches) {
        call(u);
        return;
    }
    for (int64_t begin = 0; begin < u->elements; begin += BLOCK) {
        smp_update part = *u;
        part.elements = u->elements - begin < BLOCK ? u->elements - begin : BLOCK;
        part.weight += begin;
        part.grad += begin;
        part.direction = u->direction ? u->direction + begin : NULL;
        for (int k = 0; k < optimizer->states; k++) {
            part.state[k] = value[k];
            smp__from_bf16(value[k], u->state16[k] + begin, part.elements);
        }
        call(&part);
        round_block(u, optimizer->states, value, begin, part.elements);
    }
}
