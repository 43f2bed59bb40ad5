/* Every operator, one line each: CUDA(name) if kernels for a GPU lie in <name>.cu beside <name>.c,
 * or are made of its row in a table of its family; HOST(name) if not. The line makes the operator's
 * declaration and its places in the registries; of names that are nearly what was asked for, the
 * first one listed is suggested. */
#ifndef SMP_GRAPH_OPS_OP_LIST_H
#define SMP_GRAPH_OPS_OP_LIST_H

#define SMP__OPS(CUDA, HOST)                                                                       \
    CUDA(embedding)                                                                                \
    CUDA(position_embedding)                                                                       \
    CUDA(parameter)                                                                                \
    CUDA(rope)                                                                                     \
    CUDA(linear)                                                                                   \
    CUDA(ring_linear)                                                                              \
    CUDA(conv2d)                                                                                   \
    CUDA(layernorm)                                                                                \
    CUDA(batchnorm)                                                                                \
    CUDA(rmsnorm)                                                                                  \
    CUDA(groupnorm)                                                                                \
    CUDA(gelu)                                                                                     \
    CUDA(silu)                                                                                     \
    CUDA(relu)                                                                                     \
    CUDA(tanh)                                                                                     \
    CUDA(sigmoid)                                                                                  \
    CUDA(softmax)                                                                                  \
    CUDA(attention)                                                                                \
    CUDA(ring_attention)                                                                           \
    CUDA(add)                                                                                      \
    CUDA(sub)                                                                                      \
    CUDA(mul)                                                                                      \
    CUDA(mul_rows)                                                                                 \
    CUDA(scale)                                                                                    \
    CUDA(dropout)                                                                                  \
    CUDA(flatten)                                                                                  \
    CUDA(reshape)                                                                                  \
    CUDA(concat)                                                                                   \
    CUDA(split)                                                                                    \
    CUDA(slice)                                                                                    \
    CUDA(transpose)                                                                                \
    CUDA(sum)                                                                                      \
    CUDA(mean)                                                                                     \
    CUDA(upsample)                                                                                 \
    CUDA(global_avg_pool)                                                                          \
    CUDA(max_pool)                                                                                 \
    CUDA(avg_pool)                                                                                 \
    CUDA(patchify)                                                                                 \
    CUDA(mean_pool)                                                                                \
    CUDA(cross_entropy)                                                                            \
    CUDA(linear_cross_entropy)                                                                     \
    CUDA(mse)                                                                                      \
    CUDA(bce_with_logits)                                                                          \
    CUDA(load_balance)                                                                             \
    CUDA(expert_dispatch)                                                                          \
    CUDA(expert_linear)                                                                            \
    CUDA(expert_combine)                                                                           \
    CUDA(expert_send)                                                                              \
    CUDA(expert_return)                                                                            \
    CUDA(bias)                                                                                     \
    CUDA(all_reduce)                                                                               \
    CUDA(all_gather)                                                                               \
    CUDA(reduce_scatter)                                                                           \
    CUDA(all_to_all)                                                                               \
    HOST(opaque)

#endif
