/* Token files as data: little-endian tokens, bare or after the header of llm.c (256 int32 words:
 * magic, version, number of tokens, zeroes; dev/data/data_common.py there). A file is taken to have
 * the header if it starts with a magic number: 20240520 with version 1 says uint16, 20240801 with
 * version 7 uint32. Bare tokens are uint16, where the name ends in .u32.bin uint32. */
#include "exec/data/data_source.h"

enum { HEADER_WORDS = 256, HEADER_BYTES = 4 * HEADER_WORDS };
enum { PIECE_TOKENS = SMP_DATA_PIECE / 4 };

static const struct header_form {
    uint32_t magic, version;
    int width; /* bytes of a token */
} header_forms[] = {{20240520, 1, 2}, {20240801, 7, 4}};

static const struct header_form *find_form(uint32_t magic)
{
    for (size_t i = 0; i < sizeof header_forms / sizeof *header_forms; i++)
        if (header_forms[i].magic == magic)
            return &header_forms[i];
    return NULL;
}

static bool claims(const char *path, bool named)
{
    return !named && smp__ends_with(path, ".bin");
}

/* Checks the header, if there is one; *offset is where the tokens begin. */
static smp_status parse_header(const smp_source *source, int64_t *offset, int *width)
{
    const smp_data_file *file = &source->file;
    unsigned char word[12] = {0};
    *offset = 0;
    *width = smp__ends_with(source->path, ".u32.bin") ? 4 : 2;
    SMP_TRY(smp__data_file_read(file, 0, word, file->bytes < 12 ? (size_t)file->bytes : 12));
    const struct header_form *form = file->bytes < 4 ? NULL : find_form(smp__load_u32(word));
    if (!form)
        return SMP_OK;
    if (file->bytes < HEADER_BYTES)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: %lld bytes: starts with the magic number of a token file with header, "
                        "whose header alone has %d bytes",
                        source->path, (long long)file->bytes, HEADER_BYTES);
    uint32_t version = smp__load_u32(word + 4);
    if (version != form->version)
        return smp_fail(
            SMP_ERR_INPUT, "%s: header: got token file version %lu, expected %lu (uint%d tokens)",
            source->path, (unsigned long)version, (unsigned long)form->version, 8 * form->width);
    int64_t stated = smp__load_u32(word + 8), bytes = file->bytes - HEADER_BYTES;
    if (stated * form->width != bytes)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: header: promises %lld tokens (%lld bytes after the header), the file "
                        "has %lld bytes there",
                        source->path, (long long)stated, (long long)stated * form->width,
                        (long long)bytes);
    *offset = HEADER_BYTES;
    *width = form->width;
    return SMP_OK;
}

static smp_status open_bin(const smp_graph *graph, smp_arena *arena, smp_source *source)
{
    int64_t offset;
    int width;
    SMP_TRY(parse_header(source, &offset, &width));
    if ((source->file.bytes - offset) % width)
        return smp_fail(SMP_ERR_INPUT,
                        "%s: got %lld bytes, expected a multiple of %d: uint%d tokens",
                        source->path, (long long)source->file.bytes, width, 8 * width);
    return smp__token_window_bind(graph, arena, "tokens", width, offset,
                                  (source->file.bytes - offset) / width, source);
}

static int64_t load_token(const unsigned char *at, int width)
{
    return width == 2 ? smp__load_u16(at) : smp__load_u32(at);
}

/* Tokens begin .. end-1 of the file, PIECE_TOKENS at most, as they stand there. */
static smp_status read_tokens(const smp_source *source, int64_t begin, int64_t end,
                              unsigned char *tokens)
{
    const smp_token_window *window = source->state;
    return smp__data_file_read(&source->file, window->offset + window->width * begin, tokens,
                               (size_t)(window->width * (end - begin)));
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
            to[i] = (int32_t)load_token(piece + window->width * (i - begin), window->width);
    }
    return SMP_OK;
}

static smp_status check_bin(const smp_source *source, int slot, const smp__index_range *range)
{
    const smp_token_window *window = source->state;
    const int width = window->width;
    (void)slot;
    if (width == 2 && range->min <= 0 && range->max >= UINT16_MAX)
        return SMP_OK;
    unsigned char piece[SMP_DATA_PIECE];
    for (int64_t i = 0; i < window->n_token; i++) {
        int64_t end = i + PIECE_TOKENS < window->n_token ? i + PIECE_TOKENS : window->n_token;
        if (i % PIECE_TOKENS == 0)
            SMP_TRY(read_tokens(source, i, end, piece));
        int64_t value = load_token(piece + width * (i % PIECE_TOKENS), width);
        if (value < range->min || value > range->max) {
            char text[768];
            return smp_fail(SMP_ERR_INPUT, "%s: token %lld (byte offset %lld) is %lld: %s",
                            source->path, (long long)i, (long long)window->offset + width * i,
                            (long long)value,
                            smp__index_range_format(text, sizeof text, range, value));
        }
    }
    return SMP_OK;
}

const smp_source_kind smp__source_bin = {
    .name = "bin",
    .form = "FILE.bin (tokens: uint16; uint32 if its header says so, or as FILE.u32.bin)",
    .claims = claims,
    .open = open_bin,
    .read = read_bin,
    .check = check_bin,
};
