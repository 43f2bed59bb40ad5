/* The JSON that safetensors files begin with; see the header. */
#include "graph/safetensors/safetensors_write.h"

#include <inttypes.h>

#include "graph/safetensors/weights_format.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format's order is the machine's");

/* One tensor's entry; *at: bytes of those before it. */
static void append_entry(smp_text *text, const smp_written_tensor *tensor, int64_t *at)
{
    const smp_stored_shape *shape = &tensor->shape;
    const int64_t begin = *at;
    const smp_stored_dtype *dtype = tensor->dtype ? tensor->dtype : &smp_stored_f32;
    int64_t elements = 0;
    smp_stored_elements(shape, &elements);
    *at += elements * dtype->bytes;
    smp_text_append_bytes(text, ",", 1);
    smp_text_append_quoted(text, tensor->name);
    smp_text_append(text, ":{\"dtype\":\"%s\",\"shape\":[", dtype->name);
    for (int i = 0; i < shape->n_dim; i++)
        smp_text_append(text, "%s%" PRId64, i == 0 ? "" : ",", shape->dim[i]);
    smp_text_append(text, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", begin, *at);
}

static smp_status finish(smp_text *text, smp_text *out)
{
    if (text->failed) {
        smp_text_free(text);
        return smp_fail_memory(text->length);
    }
    *out = *text;
    return SMP_OK;
}

smp_status smp_safetensors_head(const char *path, const smp_written_tensor *tensor, int32_t n,
                                smp_text *out)
{
    smp_text json = {0}, text = {0};
    int64_t at = 0;
    smp_text_append(&json, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int32_t i = 0; i < n; i++)
        append_entry(&json, &tensor[i], &at);
    smp_text_append_bytes(&json, "}", 1);
    while (!json.failed && json.length % SMP__SAFETENSORS_LENGTH_BYTES != 0)
        smp_text_append_bytes(&json, " ", 1);
    const uint64_t length = json.length;
    if (!json.failed && length > SMP__SAFETENSORS_MOST_HEADER) {
        smp_text_free(&json);
        return smp_fail(SMP_ERR_FAILED,
                        "%s: cannot write: %" PRId32 " weights take a header of %" PRIu64
                        " bytes, safetensors has at most %d",
                        path, n, length, SMP__SAFETENSORS_MOST_HEADER);
    }
    smp_text_append_bytes(&text, (const char *)&length, sizeof length);
    if (json.data)
        smp_text_append_bytes(&text, json.data, json.length);
    text.failed = text.failed || json.failed;
    smp_text_free(&json);
    return finish(&text, out);
}

smp_status smp_safetensors_index(const smp_written_tensor *tensor, const char *const *file,
                                 int32_t n, smp_text *out)
{
    smp_text text = {0};
    int64_t bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        int64_t elements = 0;
        smp_stored_elements(&tensor[i].shape, &elements);
        bytes += elements * (int64_t)sizeof(float);
    }
    smp_text_append(&text, "{\n  \"metadata\": {\"total_size\": %" PRId64 "},\n", bytes);
    smp_text_append(&text, "  \"weight_map\": {");
    for (int32_t i = 0; i < n; i++) {
        smp_text_append(&text, "%s\n    ", i == 0 ? "" : ",");
        smp_text_append_quoted(&text, tensor[i].name);
        smp_text_append(&text, ": ");
        smp_text_append_quoted(&text, file[i]);
    }
    smp_text_append(&text, "\n  }\n}\n");
    return finish(&text, out);
}
