/* String builder, string-to-index map, nearest name, files, sizes with units, numbers as text. */
#ifndef SMP_GRAPH_BASE_TEXT_H
#define SMP_GRAPH_BASE_TEXT_H

#include <stdbool.h>

#include "graph/base/status.h"

/* Growing text. After an allocation failure `failed` is set and appends do nothing. */
typedef struct smp_text {
    char *data; /* NUL-terminated, NULL while empty */
    size_t length;
    size_t capacity;
    bool failed;
} smp_text;

void smp_text_append(smp_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void smp_text_append_bytes(smp_text *text, const char *bytes, size_t count);
/* Appends `value` with the fewest digits that read back equal ("0.1", "1e+20"); never locale. */
void smp_text_append_double(smp_text *text, double value);
/* Appends `value` as a YAML/JSON double-quoted string, escaped. */
void smp_text_append_quoted(smp_text *text, const char *value);
/* Appends word i of n in "a, b or c". */
void smp_text_append_choice(smp_text *text, const char *word, int i, int n);
void smp_text_free(smp_text *text);
/* SMP_ERR_INPUT: "what: got 'x', expected a, b or c". where: may be empty. */
smp_status smp_fail_choice(smp_where where, const char *what, const char *got,
                           const char *const *names, int n);

/* Map from string to int64. Keys are borrowed: they must outlive the map. */
typedef struct smp_map smp_map;
smp_map *smp_map_create(void);
void smp_map_destroy(smp_map *map);
smp_status smp_map_set(smp_map *map, const char *key, int64_t value); /* inserts or replaces */
bool smp_map_get(const smp_map *map, const char *key, int64_t *value);

/* Does the pattern, in which `*` stands for any text and `?` for any one character, make the name?
 * O(length of pattern * length of name). */
bool smp_text_like(const char *pattern, const char *name);
/* smp_nearest of a pattern without its stars. NULL without memory, too. */
const char *smp_nearest_like(const char *pattern, const char *const *candidates, size_t count);

/* The candidate with the smallest edit distance to `name`, or NULL if none is close. */
const char *smp_nearest(const char *name, const char *const *candidates, size_t count);

/* 64-bit hash (FNV-1a, finalised); seed chains calls. */
uint64_t smp_hash(uint64_t seed, const void *data, size_t bytes);
/* What it consists of: FNV-1a, for each byte a product with the prime, then murmur3's finaliser, as
 * FNV alone leaves the low bits, which index tables, poorly mixed. */
#define SMP_HASH_BEGIN UINT64_C(0xcbf29ce484222325)
#define SMP_HASH_PRIME UINT64_C(0x100000001b3)
uint64_t smp_hash_end(uint64_t h);

/* Opens a file to read; links are followed. *fd is the caller's to close. SMP_ERR_INPUT if it
 * cannot be opened, or is no regular file: a pipe, which would be waited for, a device, a
 * directory. */
smp_status smp_file_open(const char *path, int *fd, int64_t *bytes);
/* SMP_ERR_INPUT if `output`, which is there and about to be written, is the file `input` under any
 * name, matches the pattern `input`, lies in a folder of the directory `input`, or is named by
 * `input`, an index of weights; or is weights in the directory `input`; or a directory, that of
 * `input` or of the file of weights `input`. Either may be NULL. In file_spares.c. */
smp_status smp_file_spares(const char *output, const char *input);
/* Creates a file that was not there, to write; of a link nothing is followed. For all that is
 * temporary. directory: what `path` begins at, AT_FDCWD for the current one. A descriptor, or -1
 * and errno. */
int smp_file_create(int directory, const char *path);
/* Whole file as a malloc'ed NUL-terminated buffer; SMP_ERR_INPUT with the reason otherwise. */
smp_status smp_file_read(const char *path, size_t max_bytes, char **data, size_t *bytes);
/* Writes to a temporary file beside `path` and renames: readers see the old file or the new one. */
smp_status smp_file_write(const char *path, const char *data, size_t bytes);

/* The same for what comes in parts. After a failure it is still to be closed. */
typedef struct smp_writer smp_writer;
smp_status smp_writer_open(const char *path, smp_writer **out);
smp_status smp_writer_add(smp_writer *w, const void *data, size_t bytes);
/* Removes what writers of `path` left that were killed; smp_writer_open does, too. */
void smp_writer_sweep(const char *path);
/* Nothing is added from here on: it is on the disk, without its name and without a descriptor, so
 * that many can wait for each other. Close it as well. */
smp_status smp_writer_finish(smp_writer *w);
/* Frees it. With SMP_OK the file is there from now on, else nothing of it: returns `status`, or why
 * it is not there. */
smp_status smp_writer_close(smp_writer *w, smp_status status);

/* "80GB" -> 8e10, "512MiB" -> 536870912, "1024" -> 1024, "274965987328B". False: not a size. */
bool smp_parse_bytes(const char *text, int64_t *bytes);
/* "450GB/s" -> 4.5e11. */
bool smp_parse_bytes_per_s(const char *text, double *bytes_per_s);
/* "989TFLOP/s" -> 9.89e14. */
bool smp_parse_flops(const char *text, double *flops_per_s);
/* Whole text as a number, C locale; rejects NaN, infinity, trailing characters. */
bool smp_parse_double(const char *text, double *value);
bool smp_parse_int(const char *text, int64_t *value);
/* "1.5 GiB", into a caller's buffer; returns it. */
char *smp_format_bytes(char *buffer, size_t size, int64_t bytes);
/* "12.3 us", "4.56 ms", "1.2 s". */
char *smp_format_us(char *buffer, size_t size, double us);

#endif
