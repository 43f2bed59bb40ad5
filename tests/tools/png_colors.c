/* What a screenshot shows: png_colors FILE RRGGBB... prints a line per colour: the colour, how many
 * pixels have it (to within 2 per channel), and in how many bands of rows it stands: runs of at
 * least 4 rows that hold 8 such pixels or more. Reads 8-bit RGB and RGBA PNG without interlacing (ISO/IEC
 * 15948) with a decoder for deflate (RFC 1951) of its own, so that tests need no library. Linear. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what)
{
    fprintf(stderr, "png_colors: %s\n", what);
    exit(1);
}

static void *room(size_t bytes)
{
    void *data = calloc(bytes + 1, 1);
    if (!data)
        die("out of memory");
    return data;
}

/* ---- deflate ---- */

typedef struct bits {
    const uint8_t *data;
    size_t n, at;
    uint32_t hold;
    int held;
} bits;

static uint32_t take(bits *b, int count)
{
    while (b->held < count) {
        if (b->at == b->n)
            die("compressed data ends early");
        b->hold |= (uint32_t)b->data[b->at++] << b->held;
        b->held += 8;
    }
    uint32_t value = b->hold & ((1u << count) - 1);
    b->hold >>= count;
    b->held -= count;
    return value;
}

enum { MAX_CODE_BITS = 15, MAX_SYMBOLS = 288 };

/* A canonical Huffman code: how many codes of each length, symbols by rising code. */
typedef struct huffman {
    int count[MAX_CODE_BITS + 1];
    int symbol[MAX_SYMBOLS];
} huffman;

static void huffman_make(huffman *h, const uint8_t *length, int n)
{
    int offset[MAX_CODE_BITS + 2] = {0};
    memset(h, 0, sizeof *h);
    for (int i = 0; i < n; i++)
        h->count[length[i]]++;
    h->count[0] = 0;
    for (int k = 1; k <= MAX_CODE_BITS; k++)
        offset[k + 1] = offset[k] + h->count[k];
    for (int i = 0; i < n; i++)
        if (length[i])
            h->symbol[offset[length[i]]++] = i;
}

static int huffman_take(bits *b, const huffman *h)
{
    int code = 0, first = 0, index = 0;
    for (int k = 1; k <= MAX_CODE_BITS; k++) {
        code |= (int)take(b, 1);
        if (code - first < h->count[k])
            return h->symbol[index + code - first];
        index += h->count[k];
        first = (first + h->count[k]) << 1;
        code <<= 1;
    }
    die("not a code of its table");
    return 0;
}

static void read_tables(bits *b, huffman *literals, huffman *distances)
{
    static const uint8_t order[] = {16, 17, 18, 0, 8,  7, 9,  6, 10, 5,
                                    11, 4,  12, 3, 13, 2, 14, 1, 15};
    uint8_t length[MAX_SYMBOLS + 32] = {0};
    int n_literal = (int)take(b, 5) + 257, n_distance = (int)take(b, 5) + 1;
    int n_code = (int)take(b, 4) + 4;
    huffman codes;
    if (n_literal > 286 || n_distance > 30)
        die("too many codes");
    for (int i = 0; i < n_code; i++)
        length[order[i]] = (uint8_t)take(b, 3);
    huffman_make(&codes, length, 19);
    memset(length, 0, sizeof length);
    for (int i = 0; i < n_literal + n_distance;) {
        int symbol = huffman_take(b, &codes), times = 1;
        uint8_t value = (uint8_t)symbol;
        if (symbol >= 16) {
            value = symbol == 16 && i > 0 ? length[i - 1] : 0;
            times = symbol == 16   ? 3 + (int)take(b, 2)
                    : symbol == 17 ? 3 + (int)take(b, 3)
                                   : 11 + (int)take(b, 7);
        }
        if (i + times > n_literal + n_distance)
            die("too many code lengths");
        while (times-- > 0)
            length[i++] = value;
    }
    huffman_make(literals, length, n_literal);
    huffman_make(distances, length + n_literal, n_distance);
}

static void fixed_tables(huffman *literals, huffman *distances)
{
    uint8_t length[MAX_SYMBOLS];
    for (int i = 0; i < MAX_SYMBOLS; i++)
        length[i] = i < 144 ? 8 : i < 256 ? 9 : i < 280 ? 7 : 8;
    huffman_make(literals, length, MAX_SYMBOLS);
    memset(length, 5, 30);
    huffman_make(distances, length, 30);
}

static size_t inflate_block(bits *b, const huffman *literals, const huffman *distances,
                            uint8_t *out, size_t n, size_t at)
{
    static const int length_base[] = {3,  4,  5,  6,   7,   8,   9,   10,  11, 13,
                                      15, 17, 19, 23,  27,  31,  35,  43,  51, 59,
                                      67, 83, 99, 115, 131, 163, 195, 227, 258};
    for (;;) {
        int symbol = huffman_take(b, literals);
        if (symbol == 256)
            return at;
        if (symbol < 256) {
            if (at == n)
                die("more pixels than the header says");
            out[at++] = (uint8_t)symbol;
            continue;
        }
        int k = symbol - 257, extra = k < 8 || k == 28 ? 0 : (k - 4) / 4;
        if (k > 28)
            die("bad length");
        size_t length = (size_t)length_base[k] + take(b, extra);
        int d = huffman_take(b, distances);
        if (d > 29)
            die("bad distance");
        int d_extra = d < 4 ? 0 : d / 2 - 1;
        size_t distance = d < 4 ? (size_t)d + 1 : ((size_t)(2 + d % 2) << d_extra) + 1;
        distance += take(b, d_extra);
        if (distance > at || at + length > n)
            die("a copy from outside");
        for (; length > 0; length--, at++)
            out[at] = out[at - distance];
    }
}

/* data: a zlib stream (RFC 1950). */
static void inflate(const uint8_t *data, size_t n, uint8_t *out, size_t n_out)
{
    bits b = {.data = data, .n = n, .at = 2};
    size_t at = 0;
    bool last = false;
    while (!last) {
        huffman literals, distances;
        last = take(&b, 1);
        uint32_t kind = take(&b, 2);
        if (kind == 0) {
            b.hold = 0;
            b.held = 0;
            size_t length = take(&b, 16);
            take(&b, 16);
            if (length > b.n - b.at || length > n_out - at)
                die("a stored block is too long");
            memcpy(out + at, b.data + b.at, length);
            b.at += length;
            at += length;
            continue;
        }
        if (kind == 1)
            fixed_tables(&literals, &distances);
        else if (kind == 2)
            read_tables(&b, &literals, &distances);
        else
            die("a block of unknown kind");
        at = inflate_block(&b, &literals, &distances, out, n_out, at);
    }
    if (at != n_out)
        die("fewer pixels than the header says");
}

/* ---- PNG ---- */

typedef struct picture {
    uint32_t width, height;
    int channels;
    uint8_t *pixels; /* [height][1 + width * channels], a filter byte before each row */
} picture;

static uint32_t big_endian(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int paeth(int a, int b, int c)
{
    int p = a + b - c, pa = abs(p - a), pb = abs(p - b), pc = abs(p - c);
    return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
}

static void unfilter(picture *p)
{
    size_t bytes = (size_t)p->width * (size_t)p->channels, step = bytes + 1;
    size_t back = (size_t)p->channels;
    for (uint32_t y = 0; y < p->height; y++) {
        uint8_t *row = p->pixels + y * step + 1, *above = y > 0 ? row - step : NULL;
        for (size_t i = 0; i < bytes; i++) {
            int a = i >= back ? row[i - back] : 0, b = above ? above[i] : 0;
            int c = above && i >= back ? above[i - back] : 0;
            switch (row[-1]) {
            case 0:
                break;
            case 1:
                row[i] = (uint8_t)(row[i] + a);
                break;
            case 2:
                row[i] = (uint8_t)(row[i] + b);
                break;
            case 3:
                row[i] = (uint8_t)(row[i] + (a + b) / 2);
                break;
            case 4:
                row[i] = (uint8_t)(row[i] + paeth(a, b, c));
                break;
            default:
                die("unknown filter");
            }
        }
    }
}

static picture decode(const uint8_t *data, size_t n)
{
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    picture p = {0};
    uint8_t *packed = room(n);
    size_t n_packed = 0;
    if (n < 8 || memcmp(data, signature, 8) != 0)
        die("not a PNG file");
    for (size_t at = 8; at + 12 <= n;) {
        uint32_t length = big_endian(data + at);
        const uint8_t *type = data + at + 4, *content = data + at + 8;
        if (length > n - at - 12)
            die("a chunk is too long");
        if (memcmp(type, "IHDR", 4) == 0 && length == 13) {
            p.width = big_endian(content);
            p.height = big_endian(content + 4);
            p.channels = content[9] == 2 ? 3 : content[9] == 6 ? 4 : 0;
            if (content[8] != 8 || !p.channels || content[12] != 0)
                die("expected 8-bit RGB or RGBA without interlacing");
        } else if (memcmp(type, "IDAT", 4) == 0) {
            memcpy(packed + n_packed, content, length);
            n_packed += length;
        }
        at += (size_t)length + 12;
    }
    if (p.width < 1 || p.height < 1 || p.width > 20000 || p.height > 20000)
        die("no size");
    size_t bytes = (size_t)p.height * (1 + (size_t)p.width * (size_t)p.channels);
    p.pixels = room(bytes);
    inflate(packed, n_packed, p.pixels, bytes);
    unfilter(&p);
    free(packed);
    return p;
}

static bool near(int a, int b)
{
    return abs(a - b) <= 2;
}

static void count(const picture *p, const char *color)
{
    unsigned rgb = (unsigned)strtoul(color, NULL, 16);
    long total = 0;
    int bands = 0, run = 0;
    for (uint32_t y = 0; y < p->height; y++) {
        const uint8_t *row =
            p->pixels + (size_t)y * (1 + (size_t)p->width * (size_t)p->channels) + 1;
        long found = 0;
        for (uint32_t x = 0; x < p->width; x++) {
            const uint8_t *at = row + (size_t)x * (size_t)p->channels;
            found += near(at[0], rgb >> 16 & 255) && near(at[1], rgb >> 8 & 255) &&
                     near(at[2], rgb & 255);
        }
        run = found >= 8 ? run + 1 : 0;
        bands += run == 4;
        total += found;
    }
    printf("%s %ld %d\n", color, total, bands);
}

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0)
        die("cannot open the file");
    long size = ftell(file);
    if (size < 0 || fseek(file, 0, SEEK_SET) != 0)
        die("cannot read the file");
    uint8_t *data = room((size_t)size);
    *n = fread(data, 1, (size_t)size, file);
    fclose(file);
    return data;
}

int main(int argc, char **argv)
{
    size_t n = 0;
    if (argc < 2)
        die("usage: png_colors FILE RRGGBB...");
    uint8_t *data = read_file(argv[1], &n);
    picture p = decode(data, n);
    for (int i = 2; i < argc; i++)
        count(&p, argv[i]);
    free(p.pixels);
    free(data);
    return 0;
}
