/* All weights in one file, in the format of safetensors (huggingface.co/docs/safetensors): eight
 * bytes with the length of the header, the header in JSON, and the values without a gap.
 *
 * Rank 0 writes them in the order of the model, which decides every byte, so that the plan does not
 * show. What others have comes to it piece by piece: each rank needs memory for two. */
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
    SMP_TRY(make_header(smp_graph_whole(s->graph), &header));
    const uint64_t length = header.length;
    smp_status status = SMP_OK;
    if (length > MOST_HEADER_BYTES)
        status = smp_fail(SMP_ERR_FAILED,
                          "%s: cannot write: %" PRId32 " weights take a header of %" PRIu64
                          " bytes, safetensors has at most %d",
                          path, smp_graph_whole(s->graph)->n_param, length, MOST_HEADER_BYTES);
    if (status == SMP_OK)
        status = smp_writer_add(file, &length, LENGTH_BYTES);
    if (status == SMP_OK)
        status = smp_writer_add(file, header.data, header.length);
    smp_text_free(&header);
    return status;
}

/* What a rank needs, from the first weight to the last. */
typedef struct exporter {
    smp *s;
    smp_writer *file;      /* rank 0's */
    smp__holding *holding; /* [n] of the weight in progress */
    int n;
    float *window;     /* rank 0's: PIECE_ELEMENTS of the whole weight */
    float *slice;      /* ... or fewer of them that one rank has */
    smp_status status; /* what failed here. It does not stop it: others count on every piece */
} exporter;

/* What a holding has of elements [begin, end) of the whole weight, into the window of rank 0. */
static smp_status hand_slice(exporter *e, int32_t param, const smp__holding *h, int64_t begin,
                             int64_t end)
{
    smp *s = e->s;
    const smp__range part = smp__holding_slice(h, begin, end);
    const int64_t n = part.end - part.begin, bytes = n * (int64_t)sizeof(float);
    if (n == 0)
        return SMP_OK;
    if (s->comm.world_rank == h->rank && e->status == SMP_OK)
        e->status = smp__copy_out(
            s, e->slice, smp__weight_at(s, smp__job_find_param(s, param), part.begin), bytes);
    SMP_TRY(smp__comm_hand(&s->comm, e->slice, bytes, h->rank, 0));
    if (s->comm.world_rank == 0)
        smp__runs_put(h->runs, e->slice, part.begin, n, e->window, begin);
    return SMP_OK;
}

static smp_status write_weight(exporter *e, int32_t param)
{
    smp *s = e->s;
    const int64_t elements = smp__runs_whole(&s->graph->param[param]);
    SMP_TRY(smp__find_holdings(s, param, e->holding, &e->n));
    for (int64_t at = 0, end; at < elements; at = end) {
        end = elements - at < PIECE_ELEMENTS ? elements : at + PIECE_ELEMENTS;
        for (int i = 0; i < e->n; i++)
            SMP_TRY(hand_slice(e, param, &e->holding[i], at, end));
        if (s->comm.world_rank == 0 && e->status == SMP_OK)
            e->status = smp_writer_add(e->file, e->window, (size_t)(end - at) * sizeof(float));
    }
    return smp__comm_agree(&s->comm, e->status);
}

static smp_status write_weights(smp *s, smp_writer *file)
{
    const size_t holdings = (size_t)smp__most_holdings(s) * sizeof(smp__holding);
    const size_t bytes = holdings + 2 * PIECE_ELEMENTS * sizeof(float);
    const smp_graph *whole = smp_graph_whole(s->graph);
    void *memory = malloc(bytes);
    exporter e = {.s = s, .file = file, .holding = memory};
    smp_status status = smp__comm_agree(&s->comm, memory ? SMP_OK : smp_fail_memory(bytes));
    if (status == SMP_OK) {
        e.window = (float *)(void *)((char *)memory + holdings);
        e.slice = e.window + PIECE_ELEMENTS;
    }
    for (int32_t i = 0; i < whole->n_param && status == SMP_OK; i++)
        status = write_weight(&e, smp_graph_find_param(s->graph, whole->param[i].name));
    free(memory);
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
