/* What this build has: the one place that looks. C files of CUDA and NCCL (folders cuda/ and nccl/,
 * names that begin with cuda_) are compiled where their libraries are; others name what is in them
 * in SMP__IF_CUDA and SMP__IF_NCCL, which keep their argument there and are nothing elsewhere. */
#ifndef SMP_GRAPH_BASE_BUILT_H
#define SMP_GRAPH_BASE_BUILT_H

#ifdef SMP_HAVE_CUDA
#define SMP__IF_CUDA(...) __VA_ARGS__
#else
#define SMP__IF_CUDA(...)
#endif

#ifdef SMP_HAVE_NCCL
#define SMP__IF_NCCL(...) __VA_ARGS__
#else
#define SMP__IF_NCCL(...)
#endif

#endif
