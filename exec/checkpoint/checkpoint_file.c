/* One checkpoint file: its header, bytes at their places, and that they are on the disk.
 *
 * A file is one of safetensors: the head of that format, then its tensors, of which the header is
 * the first, as bytes. Files of before began with the header.
 *
 * The header is text, so that `head` shows it, zeroes, and in its last eight bytes the hash of all
 * that is before. Every version from 2 on begins with its number and ends with that hash: a file of
 * another version can be told from a damaged one. The name of the model stands last: however long
 * it is, it pushes no other line out. */
#include "exec/checkpoint/checkpoint_file.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "graph/base/text.h"
#include "graph/math/hash_lanes.h"
#include "graph/safetensors/safetensors_write.h"
#include "smp.h"

/* What is kept for a whole weight, as it stands in the file. */
typedef struct kept_number {
    double value;
    uint64_t hash;
} kept_number;
_Static_assert(sizeof(kept_number) == SMP__KEPT_NUMBER_BYTES, "others count on it");

enum { TEXT_BYTES = SMP__CHECKPOINT_HEADER_BYTES - (int)sizeof(uint64_t) };

/* Tensors of a weight: values, states, hashes, as bytes, which need not be aligned. */
static void add_tensors(const smp_param *param, int states, const char *const *name,
                        smp_written_tensor *out)
{
    smp_stored_shape shape = {.n_dim = param->shape.n_dim};
    for (int d = 0; d < shape.n_dim; d++)
        shape.dim[d] = param->shape.dim[d];
    for (int k = 0; k <= states; k++)
        out[k] = (smp_written_tensor){name[k], shape, NULL};
    shape = (smp_stored_shape){
        3, {1 + states, smp__checkpoint_pieces(param->elements), (int)sizeof(uint64_t)}};
    out[1 + states] = (smp_written_tensor){name[1 + states], shape, smp_stored_dtype_find("U8")};
}

/* Of the program's own state and its hash. */
static int64_t own_length(const smp__checkpoint_header *says)
{
    return says->own_bytes > 0 ? says->own_bytes + SMP__OWN_HASH_BYTES : 0;
}

/* "fc.weight", "fc.weight#1" .., "fc.weight#hashes": names of models have no #. */
static smp_status name_tensors(const smp_graph *graph, const smp__checkpoint_header *says,
                               smp_arena *arena, smp_written_tensor *tensor)
{
    const char *name[SMP__CHECKPOINT_STATES + 2];
    const int states = says->states;
    smp_written_tensor *after = tensor + 1 + (int64_t)graph->n_param * (2 + states);
    tensor[0] = (smp_written_tensor){
        "#checkpoint", {1, {SMP__CHECKPOINT_HEADER_BYTES}}, smp_stored_dtype_find("U8")};
    for (int32_t i = 0; i < graph->n_param; i++) {
        name[0] = graph->param[i].name;
        for (int k = 1; k <= states; k++)
            name[k] = smp_arena_printf(arena, "%s#%d", name[0], k);
        name[1 + states] = smp_arena_printf(arena, "%s#hashes", name[0]);
        for (int k = 1; k <= 1 + states; k++)
            if (!name[k])
                return SMP_ERR_NO_MEMORY;
        add_tensors(&graph->param[i], states, name, tensor + 1 + (int64_t)i * (2 + states));
    }
    if (says->keeps)
        *after++ = (smp_written_tensor){
            "#kept", {2, {graph->n_param, (int)sizeof(kept_number)}}, smp_stored_dtype_find("U8")};
    if (says->own_bytes > 0)
        *after = (smp_written_tensor){"#own", {1, {own_length(says)}}, smp_stored_dtype_find("U8")};
    return SMP_OK;
}

smp_status smp__checkpoint_head(const smp_graph *graph, const smp__checkpoint_header *says,
                                const char *path, smp_text *out)
{
    const int64_t n =
        1 + (int64_t)graph->n_param * (2 + says->states) + says->keeps + (says->own_bytes > 0);
    smp_arena *arena = smp_arena_create();
    smp_status status = arena ? SMP_OK : SMP_ERR_NO_MEMORY;
    smp_written_tensor *tensor =
        arena && n < INT32_MAX ? SMP_ARENA_NEW(arena, smp_written_tensor, (size_t)n) : NULL;
    smp_text_free(out);
    if (n < INT32_MAX && !tensor)
        status = SMP_ERR_NO_MEMORY;
    if (status == SMP_OK && tensor)
        status = name_tensors(graph, says, arena, tensor);
    if (status == SMP_OK && tensor)
        status = smp_safetensors_head(path, tensor, (int32_t)n, out);
    smp_arena_destroy(arena);
    return status == SMP_ERR_FAILED ? SMP_OK : status; /* too long */
}

static smp_status check_head(int fd, const smp_text *head, const char *path)
{
    char bytes[4096];
    for (size_t at = 0, n; at < head->length; at += n) {
        n = head->length - at < sizeof bytes ? head->length - at : sizeof bytes;
        SMP_TRY(smp__checkpoint_transfer(fd, bytes, (int64_t)n, (int64_t)at, false, path));
        if (memcmp(bytes, head->data + at, n) != 0)
            return smp_fail(SMP_ERR_INPUT, "%s: the list of tensors is damaged", path);
    }
    return SMP_OK;
}

smp_status smp__checkpoint_check(int fd, const smp_graph *graph,
                                 const smp__checkpoint_header *header, const char *path)
{
    const int64_t length = lseek(fd, 0, SEEK_END);
    const int64_t bytes = header->at + smp__checkpoint_length(graph, header);
    smp_text head = {0};
    if (length != bytes)
        return smp_fail(SMP_ERR_INPUT, "%s: has %" PRId64 " bytes, expected %" PRId64, path, length,
                        bytes);
    if (header->at == 0)
        return SMP_OK;
    smp_status status = smp__checkpoint_head(graph, header, path, &head);
    if (status == SMP_OK && (int64_t)head.length != header->at)
        status = smp_fail(SMP_ERR_INPUT, "%s: the list of tensors is damaged", path);
    if (status == SMP_OK)
        status = check_head(fd, &head, path);
    smp_text_free(&head);
    return status;
}

int64_t smp__checkpoint_offset(const smp_graph *graph, int32_t param, int states)
{
    int64_t bytes = 0;
    for (int32_t i = 0; i < param; i++)
        bytes += graph->param[i].elements * (int64_t)sizeof(float) +
                 smp__checkpoint_pieces(graph->param[i].elements) * (int64_t)sizeof(uint64_t);
    return SMP__CHECKPOINT_HEADER_BYTES + bytes * (1 + states);
}

/* Where the program's own state stands. */
static int64_t own_offset(const smp_graph *graph, const smp__checkpoint_header *says)
{
    return smp__checkpoint_offset(graph, graph->n_param, says->states) +
           (says->keeps ? graph->n_param * (int64_t)sizeof(kept_number) : 0);
}

int64_t smp__checkpoint_length(const smp_graph *graph, const smp__checkpoint_header *says)
{
    return own_offset(graph, says) + own_length(says);
}

int64_t smp__checkpoint_values_at(const smp_graph *graph, int32_t param, int states, int k)
{
    return smp__checkpoint_offset(graph, param, states) +
           k * graph->param[param].elements * (int64_t)sizeof(float);
}

int64_t smp__checkpoint_hashes_at(const smp_graph *graph, int32_t param, int states, int k)
{
    return smp__checkpoint_values_at(graph, param, states, states + 1) +
           k * smp__checkpoint_pieces(graph->param[param].elements) * (int64_t)sizeof(uint64_t);
}

void smp__checkpoint_hash(const float *values, int64_t elements, uint64_t *hash)
{
    const int64_t whole = elements / SMP_PIECE_ELEMENTS, left = elements % SMP_PIECE_ELEMENTS;
    smp_hash_each(values, SMP_PIECE_ELEMENTS * sizeof(float), (size_t)whole, hash);
    if (left > 0)
        hash[whole] =
            smp_hash(0, values + whole * SMP_PIECE_ELEMENTS, (size_t)left * sizeof(float));
}

smp_status smp__checkpoint_transfer(int fd, void *data, int64_t bytes, int64_t offset, bool writing,
                                    const char *path)
{
    char *at = data;
    while (bytes > 0) {
        size_t piece = bytes > (1 << 30) ? (size_t)1 << 30 : (size_t)bytes;
        ssize_t done = writing ? pwrite(fd, at, piece, offset) : pread(fd, at, piece, offset);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return smp_fail(SMP_ERR_FAILED, "%s: cannot %s: %s", path, writing ? "write" : "read",
                            done < 0 ? strerror(errno) : "the file ends early");
        at += done;
        offset += done;
        bytes -= done;
    }
    return SMP_OK;
}

int64_t smp__checkpoint_kept_at(const smp__checkpoint_header *header, const smp_graph *graph,
                                int32_t param)
{
    return header->at + smp__checkpoint_offset(graph, graph->n_param, header->states) +
           param * (int64_t)sizeof(kept_number);
}

smp_status smp__checkpoint_kept_write(int fd, const smp__checkpoint_header *header,
                                      const smp_graph *graph, int32_t param, double kept,
                                      const char *path)
{
    kept_number number = {kept, smp_hash(0, &kept, sizeof kept)};
    return smp__checkpoint_transfer(fd, &number, sizeof number,
                                    smp__checkpoint_kept_at(header, graph, param), true, path);
}

smp_status smp__checkpoint_kept_read(int fd, const smp__checkpoint_header *header,
                                     const smp_graph *graph, int32_t param, double *kept,
                                     const char *path)
{
    kept_number number;
    SMP_TRY(smp__checkpoint_transfer(fd, &number, sizeof number,
                                     smp__checkpoint_kept_at(header, graph, param), false, path));
    if (number.hash != smp_hash(0, &number.value, sizeof number.value))
        return smp_fail(SMP_ERR_INPUT, "%s: weight '%s' is damaged", path,
                        graph->param[param].name);
    *kept = number.value;
    return SMP_OK;
}

int64_t smp__checkpoint_own_at(const smp__checkpoint_header *header, const smp_graph *graph)
{
    return header->at + own_offset(graph, header);
}

smp_status smp__checkpoint_add_range(int64_t values_at, int64_t hashes_at, int64_t begin,
                                     int64_t end, smp__spans *out)
{
    const int64_t hash = (int64_t)sizeof(uint64_t), first = begin / SMP_PIECE_ELEMENTS;
    if (begin >= end)
        return SMP_OK;
    SMP_TRY(smp__spans_add(out, values_at + 4 * begin, values_at + 4 * end));
    return smp__spans_add(out, hashes_at + hash * first,
                          hashes_at + hash * (first + smp__checkpoint_pieces(end - begin)));
}

smp_status smp__checkpoint_add_kept(const smp__checkpoint_header *header, const smp_graph *graph,
                                    int32_t param, smp__spans *out)
{
    const int64_t at = smp__checkpoint_kept_at(header, graph, param);
    return header->keeps ? smp__spans_add(out, at, at + SMP__KEPT_NUMBER_BYTES) : SMP_OK;
}

smp_status smp__checkpoint_add_own(const smp__checkpoint_header *header, const smp_graph *graph,
                                   smp__spans *out)
{
    const int64_t at = smp__checkpoint_own_at(header, graph);
    return smp__spans_add(out, at, at + own_length(header));
}

smp_status smp__checkpoint_own_write(int fd, const smp__checkpoint_header *header,
                                     const smp_graph *graph, const void *own, const char *path)
{
    const int64_t at = smp__checkpoint_own_at(header, graph), bytes = header->own_bytes;
    uint64_t hash = smp_hash(0, own, (size_t)bytes);
    if (bytes == 0)
        return SMP_OK;
    SMP_TRY(smp__checkpoint_transfer(fd, (void *)own, bytes, at, true, path));
    return smp__checkpoint_transfer(fd, &hash, sizeof hash, at + bytes, true, path);
}

smp_status smp__checkpoint_own_read(int fd, const smp__checkpoint_header *header,
                                    const smp_graph *graph, void *own, const char *path)
{
    const int64_t at = smp__checkpoint_own_at(header, graph), bytes = header->own_bytes;
    uint64_t hash;
    if (bytes == 0)
        return SMP_OK;
    SMP_TRY(smp__checkpoint_transfer(fd, own, bytes, at, false, path));
    SMP_TRY(smp__checkpoint_transfer(fd, &hash, sizeof hash, at + bytes, false, path));
    return hash == smp_hash(0, own, (size_t)bytes)
               ? SMP_OK
               : smp_fail(SMP_ERR_INPUT, "%s: the program's own state is damaged", path);
}

smp_status smp__checkpoint_sync(int fd, const char *path)
{
    if (fsync(fd) != 0 && errno != EINVAL) /* EINVAL: of what the file system cannot sync */
        return smp_fail(SMP_ERR_FAILED, "%s: cannot sync: %s", path, strerror(errno));
    return SMP_OK;
}

smp_status smp__checkpoint_header_write(int fd, const smp__checkpoint_header *header,
                                        const char *model, const char *path)
{
    char bytes[SMP__CHECKPOINT_HEADER_BYTES] = "", evaluated[64] = "", scale[96] = "";
    char receipt[32] = "", own[40] = "";
    const bool later = header->keeps || header->receipt[0] != '\0';
    const int version = header->own_bytes > 0 ? SMP__CHECKPOINT_VERSION : later ? 6 : 5;
    if (header->evaluated) /* as many digits as bring back every bit */
        snprintf(evaluated, sizeof(evaluated), "evaluated %.17g\n", header->eval_loss);
    if (header->scaled)
        snprintf(scale, sizeof(scale), "loss-scale %.9g good %" PRId64 " left %d\n",
                 (double)header->loss_scale.scale, header->loss_scale.good,
                 header->loss_scale.left);
    if (header->receipt[0] != '\0')
        snprintf(receipt, sizeof(receipt), "receipt %zu\n", strlen(header->receipt));
    if (header->own_bytes > 0)
        snprintf(own, sizeof own, "own %" PRId64 "\n", header->own_bytes);
    snprintf(bytes, TEXT_BYTES,
             "SMP checkpoint %d\nfingerprint %016" PRIx64 "\nstep %" PRId64 "\nsamples %" PRId64
             "\nsaved %" PRId64 "\norder %d seed %" PRIu64 " held-out %" PRId64
             " shuffled %d drop-last %d\n%s%s%s%soptimizer %s\nstates %d\n%s%smodel %s\n",
             version, header->fingerprint, header->step, header->samples, header->saved,
             header->order.known, header->order.seed, header->order.held_out, header->order.shuffle,
             header->order.drop_last, evaluated, scale, receipt, header->receipt, header->optimizer,
             header->states, header->keeps ? "kept 1\n" : "", own, model);
    uint64_t hash = smp_hash(0, bytes, TEXT_BYTES);
    memcpy(bytes + TEXT_BYTES, &hash, sizeof(hash));
    return smp__checkpoint_transfer(fd, bytes, SMP__CHECKPOINT_HEADER_BYTES, header->at, true,
                                    path);
}

/* The line `order` of version 4, after which *at is then. */
static bool parse_order(const char **at, smp__sample_order *order)
{
    int known, shuffle, drop_last, used = 0;
    if (sscanf(*at, " order %d seed %" SCNu64 " held-out %" SCNd64 " shuffled %d drop-last %d%n",
               &known, &order->seed, &order->held_out, &shuffle, &drop_last, &used) != 5)
        return false;
    order->known = known == 1;
    order->shuffle = shuffle == 1;
    order->drop_last = drop_last == 1;
    *at += used;
    return (known | shuffle | drop_last) >> 1 == 0;
}

/* The line `evaluated`, which need not be there; *at is then after it. */
static bool parse_evaluated(const char **at, smp__checkpoint_header *h)
{
    int used = 0;
    if (strncmp(*at, "\nevaluated ", 11) != 0)
        return true;
    h->evaluated = sscanf(*at, " evaluated %lf%n", &h->eval_loss, &used) == 1;
    *at += used;
    return h->evaluated && isfinite(h->eval_loss);
}

/* The line `loss-scale` of version 5, likewise. */
static bool parse_loss_scale(const char **at, smp__checkpoint_header *h)
{
    smp_loss_scale *scale = &h->loss_scale;
    int used = 0;
    if (strncmp(*at, "\nloss-scale ", 12) != 0)
        return true;
    h->scaled = sscanf(*at, " loss-scale %f good %" SCNd64 " left %d%n", &scale->scale,
                       &scale->good, &scale->left, &used) == 3;
    *at += used;
    return h->scaled && isfinite(scale->scale) && scale->scale > 0.0f && scale->good >= 0 &&
           scale->left >= 1;
}

/* The line `receipt` of version 6, likewise, which says how many bytes of lines follow. */
static bool parse_receipt(const char **at, smp__checkpoint_header *h)
{
    int used = 0;
    size_t bytes;
    if (strncmp(*at, "\nreceipt", 8) != 0)
        return true;
    if (sscanf(*at, " receipt %zu%n", &bytes, &used) != 1 || (*at)[used] != '\n' ||
        bytes >= sizeof h->receipt || strlen(*at + used) <= bytes)
        return false;
    memcpy(h->receipt, *at + used + 1, bytes);
    *at += (size_t)used + bytes; /* the last of its line ends, or the first, is left */
    return **at == '\n';
}

/* The line `kept` of version 6, likewise. */
static bool parse_kept(const char **at, smp__checkpoint_header *h)
{
    int kept = 0, used = 0;
    if (strncmp(*at, "\nkept ", 6) != 0)
        return true;
    h->keeps = sscanf(*at, " kept %d%n", &kept, &used) == 1 && kept == 1;
    *at += used;
    return h->keeps;
}

/* The line `own` of version 7, likewise. */
static bool parse_own(const char *at, smp__checkpoint_header *h)
{
    if (strncmp(at, "\nown ", 5) != 0)
        return true;
    return sscanf(at, " own %" SCNd64, &h->own_bytes) == 1 && h->own_bytes > 0 &&
           h->own_bytes <= SMP_OWN_STATE_BYTES;
}

/* The lines that versions from 3 on have. */
static bool parse_lines(const char *at, smp__checkpoint_header *h)
{
    int used = 0;
    if (sscanf(at,
               " fingerprint %" SCNx64 " step %" SCNd64 " samples %" SCNd64 " saved %" SCNd64 "%n",
               &h->fingerprint, &h->step, &h->samples, &h->saved, &used) != 4)
        return false;
    at += used;
    if ((h->version > 3 && !(parse_order(&at, &h->order) && parse_evaluated(&at, h))) ||
        (h->version > 4 && !parse_loss_scale(&at, h)) ||
        (h->version > 5 && !parse_receipt(&at, h)) ||
        sscanf(at, " optimizer %63s states %d%n", h->optimizer, &h->states, &used) != 2)
        return false;
    at += used;
    return (h->version < 6 || parse_kept(&at, h)) && (h->version < 7 || parse_own(at, h));
}

static bool parse(const char *bytes, smp__checkpoint_header *h)
{
    int used = 0;
    if (sscanf(bytes, "SMP checkpoint %d%n", &h->version, &used) != 1 || bytes[used] != '\n')
        return false;
    if (h->version == 1)
        return true; /* it had no hash */
    uint64_t hash;
    memcpy(&hash, bytes + TEXT_BYTES, sizeof(hash));
    if (hash != smp_hash(0, bytes, TEXT_BYTES))
        return false;
    return h->version < SMP__CHECKPOINT_OLDEST || h->version > SMP__CHECKPOINT_VERSION ||
           parse_lines(bytes + used, h);
}

/* What no job gets to is damage that a hash does not see; sums of the others do not overflow. */
static bool in_range(const smp__checkpoint_header *h)
{
    const int64_t most = INT64_C(1) << 53;
    return h->step >= 0 && h->step <= most && h->samples >= -1 && h->samples <= most &&
           h->saved >= 0 && h->saved <= most && h->states >= 0 &&
           h->states <= SMP__CHECKPOINT_STATES && h->order.held_out >= 0 &&
           h->order.held_out < SMP__WHOLE;
}

/* Where the header begins: at once, or after a head with its length. */
static smp_status read_place(int fd, int64_t length, const char *path, int64_t *at)
{
    uint64_t head = 0;
    char first[sizeof head];
    SMP_TRY(smp__checkpoint_transfer(fd, first, sizeof first, 0, false, path));
    memcpy(&head, first, sizeof head);
    if (strncmp(first, "SMP chec", sizeof first) != 0 && head < (uint64_t)length)
        *at = (int64_t)head + (int64_t)sizeof head;
    return SMP_OK;
}

smp_status smp__checkpoint_header_read(int fd, const char *path, smp__checkpoint_header *header)
{
    char bytes[SMP__CHECKPOINT_HEADER_BYTES + 1] = "";
    smp__checkpoint_header h = {.samples = -1};
    const off_t length = lseek(fd, 0, SEEK_END);
    if (length < 0)
        return smp_fail(SMP_ERR_FAILED, "%s: cannot read: %s", path, strerror(errno));
    if (length >= SMP__CHECKPOINT_HEADER_BYTES)
        SMP_TRY(read_place(fd, length, path, &h.at));
    if (length - h.at >= SMP__CHECKPOINT_HEADER_BYTES)
        SMP_TRY(
            smp__checkpoint_transfer(fd, bytes, SMP__CHECKPOINT_HEADER_BYTES, h.at, false, path));
    if (!parse(bytes, &h) || !in_range(&h))
        return smp_fail(SMP_ERR_INPUT, "%s: the header is damaged", path);
    *header = h;
    return SMP_OK;
}
