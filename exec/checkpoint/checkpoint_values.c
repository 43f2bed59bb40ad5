/* Weights of a checkpoint: exec/checkpoint/checkpoint_values.h. */
#include "exec/checkpoint/checkpoint_values.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "exec/checkpoint/checkpoint_file.h"
#include "graph/base/text.h"

enum { PIECES_AT_ONCE = 256 };

static smp_status choose(const char *directory, bool best, int64_t *step)
{
    smp__saved *list = NULL;
    int n = 0;
    SMP_TRY(smp__checkpoint_list(directory, &list, &n));
    if (best && n > 0 && list[0].saved == INT64_MAX) {
        char file[SMP__CHECKPOINT_PATH_BYTES];
        smp__checkpoint_path(file, directory, list[0].step);
        free(list);
        return smp_fail(SMP_ERR_INPUT, "%s: its header cannot be read, so it may be the best",
                        file);
    }
    const int at = best ? smp__checkpoint_best(list, n) : n > 0 ? 0 : -1;
    if (at >= 0)
        *step = list[at].step;
    free(list);
    return at >= 0 ? SMP_OK
                   : smp_fail(SMP_ERR_INPUT, "%s: holds no checkpoint%s", directory,
                              best ? " that was evaluated: --keep-best saves them" : "");
}

static smp_status check(const smp__checkpoint_values *from, const smp__checkpoint_header *header)
{
    const smp_graph *graph = from->graph;
    if (header->version < SMP__CHECKPOINT_OLDEST || header->version > SMP__CHECKPOINT_VERSION)
        return smp_fail(SMP_ERR_INPUT, "%s: is of version %d, this program reads versions %d to %d",
                        from->path, header->version, SMP__CHECKPOINT_OLDEST,
                        SMP__CHECKPOINT_VERSION);
    if (header->fingerprint != graph->weights_fingerprint)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: is of another model (fingerprint %016" PRIx64
                        ", this model has %016" PRIx64 ")",
                        from->path, header->fingerprint, graph->weights_fingerprint);
    return smp__checkpoint_check(from->fd, graph, header, from->path);
}

smp_status smp__checkpoint_values_open(const char *directory, bool best, const smp_graph *graph,
                                       smp__checkpoint_values *out)
{
    smp__checkpoint_header header = {0};
    out->graph = graph;
    out->fd = -1;
    SMP_TRY(choose(directory, best, &out->step));
    smp__checkpoint_path(out->path, directory, out->step);
    int64_t bytes;
    SMP_TRY(smp_file_open(out->path, &out->fd, &bytes));
    SMP_TRY(smp__checkpoint_header_read(out->fd, out->path, &header));
    SMP_TRY(check(out, &header));
    out->states = header.states;
    out->base = header.at;
    return SMP_OK;
}

smp_status smp__checkpoint_values_read(smp__checkpoint_values *from, int32_t param, float *values)
{
    const int64_t elements = from->graph->param[param].elements;
    const int64_t at = from->base + smp__checkpoint_values_at(from->graph, param, from->states, 0);
    int64_t hashes_at = from->base + smp__checkpoint_hashes_at(from->graph, param, from->states, 0);
    uint64_t hash[2][PIECES_AT_ONCE];
    SMP_TRY(smp__checkpoint_transfer(from->fd, values, elements * (int64_t)sizeof(float), at, false,
                                     from->path));
    for (int64_t begin = 0, n; begin < elements; begin += n) {
        const int64_t most = (int64_t)PIECES_AT_ONCE * SMP_PIECE_ELEMENTS;
        n = elements - begin < most ? elements - begin : most;
        const int64_t bytes = smp__checkpoint_pieces(n) * (int64_t)sizeof(uint64_t);
        SMP_TRY(smp__checkpoint_transfer(from->fd, hash[0], bytes, hashes_at, false, from->path));
        smp__checkpoint_hash(values + begin, n, hash[1]);
        if (memcmp(hash[0], hash[1], (size_t)bytes) != 0)
            return smp_fail(SMP_ERR_INPUT, "%s: weight '%s' is damaged", from->path,
                            from->graph->param[param].name);
        hashes_at += bytes;
    }
    return SMP_OK;
}

void smp__checkpoint_values_close(smp__checkpoint_values *from)
{
    if (from->fd >= 0)
        close(from->fd);
    from->fd = -1;
}
