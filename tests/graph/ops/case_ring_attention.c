/* ring_attention of one device, which is attention without a learned bias. */
#define ATTENTION_KIND "ring_attention"
#define ATTENTION_LEARNS 0
#include "tests/graph/ops/attention_cases.h"

/* As attention; backward makes the scores and their exponentials again. */
static reference_flops flops(const reference_call *c)
{
    const sizes s = sizes_of(c);
    const double scores = scores_made(c), width = (double)s.width;
    const int terms = (c->op->n_in % 2 == 0) + s.alibi;
    return (reference_flops){scores * (2 * width + REF_FUNCTION + 2 * width + terms),
                             scores * (5 * 2 * width + REF_FUNCTION + 2 + terms), 0};
}

static const large_case LARGE[] = {
    {1, 1.5, "a: float32 [130, 384]", "heads: 2, causal: true"},
    {1, 3, "a: float32 [70, 240]", "heads: 1, causal: false"},
    {1, 3, "a: float32 [65, 384]", "heads: 1, causal: true"},
    {1, 1.5, "a: float32 [40, 96]; b: float32 [75, 96]; c: float32 [75, 96]",
     "in: [a, b, c], heads: 3, causal: false"},
    {2, 1.5, "a: float32 [150, 128]; b: float32 [150, 32]; c: float32 [150, 32]",
     "in: [a, b, c], heads: 8, kv_heads: 2, causal: true"},
    {1, 1.5, "a: float32 [33, 105]; b: float32 [70, 35]; c: float32 [70, 35]",
     "in: [a, b, c], heads: 3, kv_heads: 1"},
    {1, 1.5, "a: float32 [130, 384]; m: int32 [130]", "in: [a, m], heads: 2"},
    {2, 1.5, "a: float32 [70, 240]; m: int32 [70]", "in: [a, m], heads: 1, causal: true"},
    {2, 1.5, "a: float32 [40, 288]; b: float32 [75, 144]; c: float32 [75, 144]; m: int32 [75]",
     "in: [a, b, c, m], heads: 2, kv_heads: 1"},
    {1, 1.5, "a: float32 [200, 96]", "heads: 1, causal: true, window: 20"},
    {2, 1.5, "a: float32 [130, 144]; m: int32 [130]",
     "in: [a, m], heads: 3, causal: true, window: 67, alibi: true"},
    {1, 1.5, "a: float32 [97, 480]", "heads: 2, alibi: true"},
    {0},
};

OP_CASE(ring_attention) = {.make = make,
                           .reference = reference,
                           .flops = flops,
                           .tolerance = 2e-5,
                           .multiplies = true,
                           .gradient_scale = gradient_scale,
                           .large = LARGE};
