/* Checks that standard input is JSON (RFC 8259): one value per line with --lines, else one value.
 * Prints the byte where it is not. Exit 0 or 1. Recursive descent, linear time. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

typedef struct parser {
    const char *at;
    const char *end;
} parser;

static bool value(parser *p, int depth);

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r'))
        p->at++;
}

static bool take(parser *p, char c)
{
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

static bool word(parser *p, const char *text)
{
    size_t length = strlen(text);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, text, length) != 0)
        return false;
    p->at += length;
    return true;
}

static bool digits(parser *p)
{
    const char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9')
        p->at++;
    return p->at > start;
}

static bool number(parser *p)
{
    take(p, '-');
    if (!take(p, '0') && !digits(p))
        return false;
    if (take(p, '.') && !digits(p))
        return false;
    if (take(p, 'e') || take(p, 'E')) {
        if (!take(p, '+'))
            take(p, '-');
        return digits(p);
    }
    return true;
}

static bool escape(parser *p)
{
    if (p->at == p->end)
        return false;
    char c = *p->at++;
    if (c != 'u')
        return c != '\0' && strchr("\"\\/bfnrt", c) != NULL;
    for (int i = 0; i < 4; i++, p->at++)
        if (p->at == p->end || *p->at == '\0' || !strchr("0123456789abcdefABCDEF", *p->at))
            return false;
    return true;
}

static bool string(parser *p)
{
    if (!take(p, '"'))
        return false;
    while (p->at < p->end && *p->at != '"') {
        if ((unsigned char)*p->at < 0x20)
            return false;
        if (*p->at++ == '\\' && !escape(p))
            return false;
    }
    return take(p, '"');
}

/* Members of an object (with keys) or elements of an array, up to and with `close`. */
static bool members(parser *p, char close, bool keys, int depth)
{
    skip_space(p);
    if (take(p, close))
        return true;
    do {
        skip_space(p);
        if (keys && !string(p))
            return false;
        skip_space(p);
        if (keys && !take(p, ':'))
            return false;
        if (!value(p, depth + 1))
            return false;
    } while (take(p, ','));
    return take(p, close);
}

static bool value(parser *p, int depth)
{
    bool ok;
    if (depth > MAX_DEPTH)
        return false;
    skip_space(p);
    if (take(p, '{'))
        ok = members(p, '}', true, depth);
    else if (take(p, '['))
        ok = members(p, ']', false, depth);
    else if (p->at < p->end && *p->at == '"')
        ok = string(p);
    else
        ok = word(p, "true") || word(p, "false") || word(p, "null") || number(p);
    skip_space(p);
    return ok;
}

static bool check(const char *text, size_t length, size_t offset)
{
    parser p = {.at = text, .end = text + length};
    if (value(&p, 0) && p.at == p.end)
        return true;
    fprintf(stderr, "json_check: not JSON at byte %zu\n", offset + (size_t)(p.at - text));
    return false;
}

static bool check_lines(const char *text, size_t length)
{
    size_t begin = 0;
    while (begin < length) {
        const char *newline = memchr(text + begin, '\n', length - begin);
        size_t end = newline ? (size_t)(newline - text) : length;
        if (!check(text + begin, end - begin, begin))
            return false;
        begin = end + 1;
    }
    return length > 0;
}

/* All of standard input, malloc'ed; NULL on failure. */
static char *read_input(size_t *length)
{
    size_t capacity = 1 << 16, used = 0, got;
    char *text = malloc(capacity);
    while (text && (got = fread(text + used, 1, capacity - used, stdin)) > 0) {
        used += got;
        if (used < capacity)
            continue;
        char *grown = realloc(text, capacity *= 2);
        if (!grown)
            free(text);
        text = grown;
    }
    *length = used;
    return text;
}

int main(int argc, char **argv)
{
    size_t length;
    char *text = read_input(&length);
    if (!text)
        return 1;
    bool lines = argc > 1 && strcmp(argv[1], "--lines") == 0;
    bool ok = lines ? check_lines(text, length) : check(text, length, 0);
    free(text);
    return ok ? 0 : 1;
}
