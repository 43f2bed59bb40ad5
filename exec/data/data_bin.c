/* Token files as data: little-endian uint16 tokens, bare or behind the header of llm.c (256 int32
 * words: magic 20240520, version 1, number of tokens, zeroes; llm.c/llmc/dataloader.h). A file is
 * taken to have the header if it starts with the magic number. */
#include "exec/data/data_source.h"

enum { HEADER_WORDS = 256, HEADER_BYTES = 4 * HEADER_WORDS, MAGIC = 20240520, VERSION = 1 };
enum { PIECE_TOKENS = SMP_DATA_PIECE / 2 };

static bool claims(const char *path, bool named)
{
    return !named && smp__ends_with(path, ".bin");
}

/* Checks the header, if there is one; *offset is where the tokens begin. */
static smp_status parse_header(const smp_source *source, int64_t *offset)
{
    const smp_data_file *file = &source->file;
    unsigned char word[12] = {0};
    *offset = 0;
    SMP_TRY(smp__data_file_read(file, 0, word, file->bytes < 12 ? (size_t)file->bytes : 12));
    if (file->bytes < 4 || smp__load_u32(word) != MAGIC)
        return SMP_OK;
    if (file->bytes < HEADER_BYTES)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %lld bytes: starts with the magic number of a token file with header, "
                        "whose header alone has %d bytes",
                        source->path, (long long)file->bytes, HEADER_BYTES);
    uint32_t version = smp__load_u32(word + 4);
    if (version != VERSION)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: header: got token file version %lu, expected %d (uint16 tokens)",
                        source->path, (unsigned long)version, VERSION);
    int64_t stated = smp__load_u32(word + 8);
    int64_t present = (file->bytes - HEADER_BYTES) / 2;
    if (stated != present || (file->bytes - HEADER_BYTES) % 2)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: header: promises %lld tokens (%lld bytes after the header), the file "
                        "has %lld bytes there",
                        source->path, (long long)stated, (long long)stated * 2,
                        (long long)(file->bytes - HEADER_BYTES));
    *offset = HEADER_BYTES;
    return SMP_OK;
}

static smp_status open_bin(const smp_graph *graph, smp_arena *arena, smp_source *source)
{
    int64_t offset;
    SMP_TRY(parse_header(source, &offset));
    if (source->file.bytes % 2)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got %lld bytes, expected a multiple of 2: uint16 tokens", source->path,
                        (long long)source->file.bytes);
    return smp__token_window_bind(graph, arena, "tokens", offset, (source->file.bytes - offset) / 2,
                                  source);
}

/* Tokens begin .. end-1 of the file, PIECE_TOKENS at most, as they stand there. */
static smp_status read_tokens(const smp_source *source, int64_t begin, int64_t end,
                              unsigned char *tokens)
{
    const smp_token_window *window = source->state;
    return smp__data_file_read(&source->file, window->offset + 2 * begin, tokens,
                               (size_t)(2 * (end - begin)));
}

static smp_status read_bin(const smp_source *source, int slot, int64_t sample, void *buffer)
{
    const smp_token_window *window = source->state;
    const int64_t first = sample * window->length + slot;
    int32_t *to = buffer; /* (T) */
    unsigned char piece[SMP_DATA_PIECE];
    for (int64_t begin = 0, end; begin < window->length; begin = end) {
        end = begin + PIECE_TOKENS < window->length ? begin + PIECE_TOKENS : window->length;
        SMP_TRY(read_tokens(source, first + begin, first + end, piece));
        for (int64_t i = begin; i < end; i++)
            to[i] = smp__load_u16(piece + 2 * (i - begin));
    }
    return SMP_OK;
}

static smp_status check_bin(const smp_source *source, int slot, const smp__index_range *range)
{
    const smp_token_window *window = source->state;
    (void)slot;
    if (range->min <= 0 && range->max >= UINT16_MAX)
        return SMP_OK;
    unsigned char piece[SMP_DATA_PIECE];
    for (int64_t i = 0; i < window->n_token; i++) {
        int64_t end = i + PIECE_TOKENS < window->n_token ? i + PIECE_TOKENS : window->n_token;
        if (i % PIECE_TOKENS == 0)
            SMP_TRY(read_tokens(source, i, end, piece));
        int64_t value = smp__load_u16(piece + 2 * (i % PIECE_TOKENS));
        if (value < range->min || value > range->max) {
            char text[768];
            return smp_fail(SMP_ERR_INPUT, "%s: token %lld (byte offset %lld) is %lld: %s",
                            source->path, (long long)i,
                            (long long)window->offset + 2 * (long long)i, (long long)value,
                            smp__index_range_format(text, sizeof text, range, value));
        }
    }
    return SMP_OK;
}

const smp_source_kind smp__source_bin = {
    .name = "bin",
    .form = "FILE.bin (uint16 tokens)",
    .claims = claims,
    .open = open_bin,
    .read = read_bin,
    .check = check_bin,
};
