/* All weights in one file, in the format of safetensors (huggingface.co/docs/safetensors): eight
 * bytes with the length of the header, the header in JSON, and the values without a gap.
 *
 * Rank 0 writes them in the order of the model, which decides every byte, so that the plan does not
 * show. What others have comes to it piece by piece: each rank needs memory for one. */
#include <inttypes.h>
#include <stdlib.h>

#include "exec/state/device_wait.h"
#include "exec/state/handle.h"
#include "exec/state/shards.h"
#include "graph/base/text.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format's order is the machine's");

enum { PIECE_ELEMENTS = 1 << 18, LENGTH_BYTES = 8 };
enum { MOST_HEADER_BYTES = 100000000 }; /* that readers of the format accept */

/* One weight's entry; *at: bytes of the weights before it. */
static void append_entry(smp_text *text, const smp_param *param, int64_t *at)
{
    const int64_t begin = *at;
    *at += param->elements * (int64_t)sizeof(float);
    smp_text_append_bytes(text, ",", 1);
    smp_text_append_quoted(text, param->name);
    smp_text_append(text, ":{\"dtype\":\"F32\",\"shape\":[");
    for (int i = 0; i < param->shape.n_dim; i++)
        smp_text_append(text, "%s%" PRId64, i == 0 ? "" : ",", param->shape.dim[i]);
    smp_text_append(text, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, *at);
}

static smp_status make_header(const smp_graph *graph, smp_text *out)
{
    smp_text text = {0};
    int64_t at = 0;
    smp_text_append(&text, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int32_t i = 0; i < graph->n_param; i++)
        append_entry(&text, &graph->param[i], &at);
    smp_text_append_bytes(&text, "}", 1);
    while (!text.failed && text.length % LENGTH_BYTES != 0) /* so that the values are aligned */
        smp_text_append_bytes(&text, " ", 1);
    if (text.failed) {
        smp_text_free(&text);
        return smp_fail_memory(text.length);
    }
    *out = text;
    return SMP_OK;
}

static smp_status write_header(const smp *s, const char *path, smp_writer *file)
{
    smp_text header = {0};
    SMP_TRY(make_header(s->graph, &header));
    const uint64_t length = header.length;
    smp_status status = SMP_OK;
    if (length > MOST_HEADER_BYTES)
        status = smp_fail(SMP_ERR_FAILED,
                          "%s: cannot write: %" PRId32 " weights take a header of %" PRIu64
                          " bytes, safetensors has at most %d",
                          path, s->graph->n_param, length, MOST_HEADER_BYTES);
    if (status == SMP_OK)
        status = smp_writer_add(file, &length, LENGTH_BYTES);
    if (status == SMP_OK)
        status = smp_writer_add(file, header.data, header.length);
    smp_text_free(&header);
    return status;
}

/* Elements [begin, end) of a weight, all of which one rank has. */
typedef struct part {
    int32_t param;
    int64_t begin, end;
    int rank; /* of the world */
} part;

/* The part that begins at p->begin: how far it goes, and which rank of the first shard group hands
 * it over. Nothing else in here knows how weights are spread. Collective. */
static smp_status find_part(smp *s, part *p)
{
    const int32_t held = smp__job_find_param(s, p->param);
    smp__range own = {0, 0};
    if (held >= 0 && s->memory->param[held].owner && s->comm.replica < s->comm.shard_size)
        own = smp__own_range(s, held);
    p->end = own.end;
    p->rank = own.begin <= p->begin && p->begin < own.end ? s->comm.world_rank : -1;
    SMP_TRY(smp__comm_max(&s->comm, &p->rank));
    return smp__comm_share(&s->comm, &p->end, sizeof(p->end), p->rank);
}

static smp_status copy_piece(smp *s, const part *p, int64_t at, float *piece, int64_t bytes)
{
    return smp__copy_out(s, piece, smp__weight_at(s, smp__job_find_param(s, p->param), at), bytes);
}

/* `file` is rank 0's. What fails on one of the two ranks goes to *status and does not stop it: the
 * other one counts on every piece. */
static smp_status write_part(smp *s, const part *p, float *piece, smp_writer *file,
                             smp_status *status)
{
    for (int64_t at = p->begin, n; at < p->end; at += n) {
        n = p->end - at < PIECE_ELEMENTS ? p->end - at : PIECE_ELEMENTS;
        const int64_t bytes = n * (int64_t)sizeof(*piece);
        if (s->comm.world_rank == p->rank && *status == SMP_OK)
            *status = copy_piece(s, p, at, piece, bytes);
        SMP_TRY(smp__comm_hand(&s->comm, piece, bytes, p->rank, 0));
        if (s->comm.world_rank == 0 && *status == SMP_OK)
            *status = smp_writer_add(file, piece, (size_t)bytes);
    }
    return SMP_OK;
}

static smp_status write_weight(smp *s, int32_t param, float *piece, smp_writer *file)
{
    smp_status status = SMP_OK;
    for (part p = {.param = param}; p.begin < s->graph->param[param].elements; p.begin = p.end) {
        SMP_TRY(find_part(s, &p));
        SMP_TRY(write_part(s, &p, piece, file, &status));
    }
    return smp__comm_agree(&s->comm, status);
}

static smp_status write_weights(smp *s, smp_writer *file)
{
    const size_t bytes = PIECE_ELEMENTS * sizeof(float);
    float *piece = malloc(bytes);
    smp_status status = smp__comm_agree(&s->comm, piece ? SMP_OK : smp_fail_memory(bytes));
    for (int32_t i = 0; i < s->graph->n_param && status == SMP_OK; i++)
        status = write_weight(s, i, piece, file);
    free(piece);
    return status;
}

static smp_status open_file(const smp *s, const char *path, smp_writer **file)
{
    if (s->comm.world_rank != 0)
        return SMP_OK;
    SMP_TRY(smp_writer_open(path, file));
    return write_header(s, path, *file);
}

smp_status smp_export_weights(smp *s, const char *path)
{
    if (!s || !path)
        return smp_fail(SMP_ERR_INPUT, "smp_export_weights: a NULL argument");
    SMP_TRY(smp__job_usable(s));
    smp_writer *file = NULL;
    s->doing = "exporting the weights";
    smp_status status = smp__comm_agree(&s->comm, open_file(s, path, &file));
    if (status == SMP_OK)
        status = write_weights(s, file);
    if (file)
        status = smp_writer_close(file, status);
    return smp__job_leave(s, smp__comm_agree(&s->comm, status));
}
