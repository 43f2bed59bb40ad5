/* Text files as data: every byte is a token, 0 to 255. */
#include "exec/data/data_source.h"

#include <limits.h>

/* The last kind of the registry: whatever no other kind takes is a text file. */
static bool claims(const char *path, bool named)
{
    (void)path;
    return !named;
}

static smp_status open_text(const smp_graph *graph, smp_arena *arena, smp_source *source)
{
    return smp__token_window_bind(graph, arena, "bytes", source->file.data, source->file.bytes,
                                  source);
}

static void read_text(const smp_source *source, int slot, int64_t sample, void *buffer)
{
    const smp_token_window *window = source->state;
    const unsigned char *restrict from = window->token + sample * window->length + slot;
    int32_t *restrict to = buffer; /* (T) */
    for (int64_t i = 0; i < window->length; i++)
        to[i] = from[i];
}

/* Line and column of a byte, both from 1 and in bytes. */
static smp_where byte_where(const smp_source *source, int64_t at)
{
    int64_t line = 1;
    int64_t line_begin = 0;
    for (int64_t i = 0; i < at; i++) {
        if (source->file.data[i] == '\n') {
            line++;
            line_begin = i + 1;
        }
    }
    int64_t column = at - line_begin + 1;
    return (smp_where){.file = source->path,
                       .line = (int)(line < INT_MAX ? line : INT_MAX),
                       .column = (int)(column < INT_MAX ? column : INT_MAX)};
}

static smp_status check_text(const smp_source *source, int slot, const smp__index_range *range)
{
    (void)slot;
    if (range->min <= 0 && range->max >= 255)
        return SMP_OK;
    for (int64_t i = 0; i < source->file.bytes; i++) {
        int64_t value = source->file.data[i];
        if (value < range->min || value > range->max) {
            char text[768];
            return smp_fail_at(byte_where(source, i), "byte %lld at offset %lld: %s",
                               (long long)value, (long long)i,
                               smp__index_range_format(text, sizeof text, range, value));
        }
    }
    return SMP_OK;
}

const smp_source_kind smp__source_text = {
    .name = "text",
    .form = "FILE (bytes of text)",
    .claims = claims,
    .open = open_text,
    .read = read_text,
    .check = check_text,
};
