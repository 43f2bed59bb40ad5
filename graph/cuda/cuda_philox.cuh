/* Philox4x32-10 (Salmon et al., SC 2011) on a GPU: the words of smp_random_philox, bit for bit. */
#ifndef SMP_GRAPH_CUDA_CUDA_PHILOX_CUH
#define SMP_GRAPH_CUDA_CUDA_PHILOX_CUH

#include "graph/cuda/cuda_kernel.cuh"

struct smp_words {
    uint32_t v[4];
};

__device__ __forceinline__ smp_words smp_philox(uint64_t key, uint64_t low, uint64_t high)
{
    uint32_t key0 = (uint32_t)key, key1 = (uint32_t)(key >> 32);
    smp_words x = {{(uint32_t)low, (uint32_t)(low >> 32), (uint32_t)high, (uint32_t)(high >> 32)}};
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * x.v[0];
        const uint64_t b = (uint64_t)0xCD9E8D57u * x.v[2];
        x = {{(uint32_t)(b >> 32) ^ x.v[1] ^ key0, (uint32_t)b, (uint32_t)(a >> 32) ^ x.v[3] ^ key1,
              (uint32_t)a}};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return x;
}

#endif
