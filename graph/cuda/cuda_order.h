/* Sizes of the index sort in graph/cuda/cuda_order.cuh, which `cuda_needs` asks for too. */
#ifndef SMP_GRAPH_CUDA_CUDA_ORDER_H
#define SMP_GRAPH_CUDA_CUDA_ORDER_H

#include <stdint.h>

enum { SMP__ORDER_DIGITS = 256, SMP__ORDER_TILE = 512, SMP__ORDER_MAX_CHUNKS = 256 };

/* Positions that one block sorts: whole tiles, so that there are not too many blocks. */
static inline int64_t smp__order_chunk(int64_t n)
{
    int64_t tiles = (n + SMP__ORDER_TILE - 1) / SMP__ORDER_TILE;
    int64_t each = (tiles + SMP__ORDER_MAX_CHUNKS - 1) / SMP__ORDER_MAX_CHUNKS;
    return (each > 0 ? each : 1) * SMP__ORDER_TILE;
}

static inline int64_t smp__order_chunks(int64_t n)
{
    return (n + smp__order_chunk(n) - 1) / smp__order_chunk(n);
}

/* Positions twice, and how often each digit occurs in each chunk. */
static inline int64_t smp__order_bytes(int64_t n)
{
    return (2 * n + smp__order_chunks(n) * SMP__ORDER_DIGITS) * (int64_t)sizeof(int32_t);
}

#endif
