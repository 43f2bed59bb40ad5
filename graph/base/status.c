/* Recording failures: one bounded message per thread, no allocation, and the public calls that read
 * it. The message is formatted beside the old one, so an argument may be smp_last_error()
 * itself. */
#include "graph/base/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MESSAGE_BYTES = 2048 };

static _Thread_local char message[MESSAGE_BYTES];

/* Text from files may hold anything: a control character must not reach the user's terminal. */
static bool is_control(unsigned char c)
{
    return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
}

/* Makes `text` the message; a text that filled its buffer ends in "...". */
static void record(char *text)
{
    size_t length = strlen(text);
    if (length >= MESSAGE_BYTES - 1)
        memcpy(text + length - 3, "...", 3);
    for (size_t i = 0; i < length; i++) {
        if (is_control((unsigned char)text[i]))
            text[i] = '?';
    }
    memcpy(message, text, length + 1);
}

/* Appends to `text`, which holds *used bytes; never past MESSAGE_BYTES. */
static void append(char *text, size_t *used, const char *format, va_list args)
{
    size_t room = MESSAGE_BYTES - *used;
    int n = vsnprintf(text + *used, room, format, args);
    if (n < 0)
        text[*used] = '\0';
    else
        *used += (size_t)n < room ? (size_t)n : room - 1;
}

static void append_f(char *text, size_t *used, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void append_f(char *text, size_t *used, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    append(text, used, format, args);
    va_end(args);
}

smp_status smp_fail(smp_status status, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    size_t used = 0;
    va_list args;
    va_start(args, format);
    append(text, &used, format, args);
    va_end(args);
    record(text);
    return status;
}

smp_status smp_fail_at(smp_where where, const char *format, ...)
{
    char text[MESSAGE_BYTES];
    size_t used = 0;
    text[0] = '\0';
    if (where.file && where.file[0])
        append_f(text, &used, "%s:", where.file);
    if (where.line > 0)
        append_f(text, &used, "%d:", where.line);
    if (where.line > 0 && where.column > 0)
        append_f(text, &used, "%d:", where.column);
    if (used > 0)
        append_f(text, &used, " ");
    va_list args;
    va_start(args, format);
    append(text, &used, format, args);
    va_end(args);
    record(text);
    return SMP_ERR_INPUT;
}

smp_status smp_fail_memory(size_t bytes)
{
    return smp_fail(SMP_ERR_NO_MEMORY, "out of memory: %zu bytes could not be allocated", bytes);
}

smp_status smp_fail_context(smp_status status, const char *format, ...)
{
    if (status == SMP_OK)
        return status;
    char text[MESSAGE_BYTES];
    size_t used = 0;
    va_list args;
    va_start(args, format);
    append(text, &used, format, args);
    va_end(args);
    append_f(text, &used, ": %s", message);
    record(text);
    return status;
}

const char *smp_status_name(smp_status status)
{
    switch (status) {
#define NAME_CASE(name, value, exit_code, text)                                                    \
    case name:                                                                                     \
        return #name;
        SMP_STATUS_LIST(NAME_CASE)
#undef NAME_CASE
    }
    return "unknown status";
}

int smp_status_exit_code(smp_status status)
{
    switch (status) {
#define EXIT_CASE(name, value, exit_code, text)                                                    \
    case name:                                                                                     \
        return exit_code;
        SMP_STATUS_LIST(EXIT_CASE)
#undef EXIT_CASE
    }
    return 1;
}

const char *smp_last_error(void)
{
    return message;
}

const char *smp_version(void)
{
    return SMP_VERSION_STRING;
}
