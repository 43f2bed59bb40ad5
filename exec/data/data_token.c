/* Streams of tokens cut into windows: what text files and token files share.
 *
 * Windows of T tokens do not overlap, but for the one token that a window's last target borrows
 * from the next: n tokens hold (n - 1) / T samples. A tail shorter than a window is not used. */
#include "exec/data/data_source.h"

#include "graph/model/op.h"

/* Both inputs are int32 of one dimension, of the same length. */
static smp_status check_input(const smp_graph *graph, const smp_source *source, int input,
                              int64_t length)
{
    const smp_tensor *tensor = &graph->tensor[input];
    char shape[128];
    smp_shape_format(shape, sizeof shape, &tensor->shape);
    if (tensor->dtype != SMP_I32)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: input '%s' is float32, a text or token file feeds int32", source->path,
                        tensor->name);
    if (tensor->shape.n_dim != 1 || tensor->shape.dim[0] < 1)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: input '%s' has shape %s, a text or token file feeds shape [T]",
                        source->path, tensor->name, shape);
    if (tensor->shape.dim[0] != length)
        return smp_fail(SMP_ERR_INPUT, "%s: input '%s' has shape %s, expected [%lld] like 'tokens'",
                        source->path, tensor->name, shape, (long long)length);
    return SMP_OK;
}

smp_status smp__token_window_bind(const smp_graph *graph, smp_arena *arena, const char *unit,
                                  int width, int64_t offset, int64_t n_token, smp_source *source)
{
    int tokens = smp__input_find(graph, "tokens");
    int targets = smp__input_find(graph, "targets");
    if (tokens < 0) {
        char list[512];
        return smp_fail(SMP_ERR_INPUT,
                        "%s: a text or token file feeds the inputs 'tokens' and 'targets', model "
                        "'%s' has %s; arrays are given as input=file.npy",
                        source->path, graph->name, smp__input_list(list, sizeof list, graph));
    }
    int64_t length = graph->tensor[tokens].shape.dim[0];
    SMP_TRY(check_input(graph, source, tokens, length));
    if (targets >= 0)
        SMP_TRY(check_input(graph, source, targets, length));
    if (n_token <= length)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %lld %s are too few: one sample of 'tokens' [%lld] and its targets "
                        "need %lld",
                        source->path, (long long)n_token, unit, (long long)length,
                        (long long)length + 1);

    smp_token_window *window = SMP_ARENA_NEW(arena, smp_token_window, 1);
    if (!window)
        return SMP_ERR_NO_MEMORY;
    *window =
        (smp_token_window){.length = length, .n_token = n_token, .width = width, .offset = offset};
    source->state = window;
    source->samples = (n_token - 1) / length;
    source->feed[source->n_feed++] = tokens;
    if (targets >= 0)
        source->feed[source->n_feed++] = targets;
    return SMP_OK;
}
