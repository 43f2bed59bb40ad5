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
    return smp__token_window_bind(graph, arena, "bytes", 1, 0, source->file.bytes, source);
}

/* The part of a range of n bytes that is read at once from `done` on. */
static size_t piece_of(int64_t n, int64_t done)
{
    return (size_t)(n - done < SMP_DATA_PIECE ? n - done : SMP_DATA_PIECE);
}

static smp_status read_text(const smp_source *source, int slot, int64_t sample, void *buffer)
{
    const smp_token_window *window = source->state;
    const int64_t begin = window->offset + sample * window->length + slot;
    int32_t *to = buffer; /* (T) */
    unsigned char piece[SMP_DATA_PIECE];
    for (int64_t done = 0; done < window->length; done += SMP_DATA_PIECE) {
        size_t n = piece_of(window->length, done);
        SMP_TRY(smp__data_file_read(&source->file, begin + done, piece, n));
        for (size_t i = 0; i < n; i++)
            to[done + (int64_t)i] = piece[i];
    }
    return SMP_OK;
}

/* A place in the text, both from 1 and in bytes. */
typedef struct text_place {
    int64_t line, column;
} text_place;

static smp_where byte_where(const smp_source *source, text_place at)
{
    return (smp_where){.file = source->path,
                       .line = (int)(at.line < INT_MAX ? at.line : INT_MAX),
                       .column = (int)(at.column < INT_MAX ? at.column : INT_MAX)};
}

static smp_status check_text(const smp_source *source, int slot, const smp__index_range *range)
{
    (void)slot;
    if (range->min <= 0 && range->max >= 255)
        return SMP_OK;
    text_place at = {1, 1};
    unsigned char piece[SMP_DATA_PIECE];
    for (int64_t done = 0; done < source->file.bytes; done += SMP_DATA_PIECE) {
        size_t n = piece_of(source->file.bytes, done);
        SMP_TRY(smp__data_file_read(&source->file, done, piece, n));
        for (size_t i = 0; i < n; i++) {
            int64_t value = piece[i];
            if (value < range->min || value > range->max) {
                char text[768];
                return smp_fail_at(byte_where(source, at), "byte %lld at offset %lld: %s",
                                   (long long)value, (long long)done + (long long)i,
                                   smp__index_range_format(text, sizeof text, range, value));
            }
            at = piece[i] == '\n' ? (text_place){at.line + 1, 1}
                                  : (text_place){at.line, at.column + 1};
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
