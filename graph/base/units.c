/* Numbers with units, both ways. Independent of the locale. */
#include "graph/base/text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "graph/base/c_locale.h"

enum { MAX_NUMBER = 64 };

bool smp_parse_int(const char *text, int64_t *value)
{
    bool negative = text[0] == '-';
    const char *c = text + (text[0] == '-' || text[0] == '+');
    if (*c == '\0')
        return false;
    int64_t sum = 0; /* negative, so that INT64_MIN can be read */
    for (; *c; c++) {
        if (*c < '0' || *c > '9' || __builtin_mul_overflow(sum, (int64_t)10, &sum) ||
            __builtin_sub_overflow(sum, (int64_t)(*c - '0'), &sum))
            return false;
    }
    if (!negative && sum == INT64_MIN)
        return false;
    *value = negative ? sum : -sum;
    return true;
}

bool smp_parse_double(const char *text, double *value)
{
    size_t length = strspn(text, "0123456789+-.eE"); /* no blanks, hexadecimal, inf, nan */
    if (length == 0 || text[length] != '\0')
        return false;
    char *end;
    smp__c_locale locale = smp__c_locale_enter();
    double parsed = strtod(text, &end);
    smp__c_locale_leave(locale);
    if (*end != '\0' || !isfinite(parsed))
        return false;
    *value = parsed;
    return true;
}

/* Splits "12.5 GB" into number and unit; *unit points into `text`. */
static bool split_number(const char *text, char number[MAX_NUMBER], const char **unit)
{
    size_t length = strspn(text, "0123456789.+-");
    /* An exponent: "1e9", but not the E of "1EB". */
    if (length > 0 && (text[length] == 'e' || text[length] == 'E')) {
        size_t sign = text[length + 1] == '+' || text[length + 1] == '-';
        size_t digits = strspn(text + length + 1 + sign, "0123456789");
        if (digits > 0)
            length += 1 + sign + digits;
    }
    if (length == 0 || length >= MAX_NUMBER)
        return false;
    memcpy(number, text, length);
    number[length] = '\0';
    *unit = text + length + strspn(text + length, " ");
    return true;
}

/* The factor of a prefix ("G", "Gi", "") that is followed by exactly `rest`. */
static bool unit_factor(const char *unit, const char *rest, bool binary_allowed, int64_t *factor)
{
    static const char prefixes[] = "KMGTPE";
    *factor = 1;
    if (strcmp(unit, rest) == 0)
        return true;
    if (unit[0] == '\0')
        return false;
    const char *p = strchr(prefixes, unit[0] == 'k' ? 'K' : unit[0]);
    if (!p)
        return false;
    unit++;
    bool binary = binary_allowed && unit[0] == 'i';
    for (int64_t power = p - prefixes; power >= 0; power--)
        *factor *= binary ? 1024 : 1000;
    return strcmp(unit + binary, rest) == 0;
}

bool smp_parse_bytes(const char *text, int64_t *bytes)
{
    char number[MAX_NUMBER];
    const char *unit;
    int64_t factor = 1;
    if (!split_number(text, number, &unit) ||
        (unit[0] != '\0' && !unit_factor(unit, "B", true, &factor)))
        return false;
    int64_t whole;
    if (smp_parse_int(number, &whole)) { /* exact beyond 2^53 */
        int64_t product;
        if (whole < 0 || __builtin_mul_overflow(whole, factor, &product))
            return false;
        *bytes = product;
        return true;
    }
    double value;
    if (!smp_parse_double(number, &value))
        return false;
    value = round(value * (double)factor);
    if (value < 0 || value >= 0x1p63)
        return false;
    *bytes = (int64_t)value;
    return true;
}

static bool parse_rate(const char *text, const char *rest, const char *other_rest, double *rate)
{
    char number[MAX_NUMBER];
    const char *unit;
    int64_t factor = 1;
    bool binary = rest[0] == 'B';
    if (!split_number(text, number, &unit))
        return false;
    if (unit[0] != '\0' && !unit_factor(unit, rest, binary, &factor) &&
        !(other_rest && unit_factor(unit, other_rest, binary, &factor)))
        return false;
    double value;
    if (!smp_parse_double(number, &value))
        return false;
    value *= (double)factor;
    if (value < 0 || !isfinite(value))
        return false;
    *rate = value;
    return true;
}

bool smp_parse_bytes_per_s(const char *text, double *bytes_per_s)
{
    return parse_rate(text, "B/s", NULL, bytes_per_s);
}

bool smp_parse_flops(const char *text, double *flops_per_s)
{
    return parse_rate(text, "FLOP/s", "FLOPS", flops_per_s);
}

/* `value` with at most `decimals` digits after the point and no trailing zeros. */
static void format_short(char *buffer, size_t size, double value, int decimals)
{
    smp__c_locale locale = smp__c_locale_enter();
    int n = snprintf(buffer, size, "%.*f", decimals, value);
    smp__c_locale_leave(locale);
    if (n < 0 || (size_t)n >= size || decimals == 0)
        return;
    while (buffer[n - 1] == '0')
        buffer[--n] = '\0';
    if (buffer[n - 1] == '.')
        buffer[--n] = '\0';
}

char *smp_format_bytes(char *buffer, size_t size, int64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    /* 1023.96 would be printed as 1024.0: move on before. */
    while (fabs(value) >= (unit == 0 ? 1024 : 1023.95) && unit < 6) {
        value /= 1024;
        unit++;
    }
    char number[32];
    format_short(number, sizeof number, value, 1);
    snprintf(buffer, size, "%s %s", number, units[unit]);
    return buffer;
}

char *smp_format_us(char *buffer, size_t size, double us)
{
    static const char *const units[] = {"us", "ms", "s"};
    if (!isfinite(us)) {
        snprintf(buffer, size, "%s", isnan(us) ? "-" : us > 0 ? "inf" : "-inf");
        return buffer;
    }
    int unit = 0;
    while (fabs(us) >= 999.5 && unit < 2) {
        us /= 1000;
        unit++;
    }
    double magnitude = fabs(us);
    char number[512];
    format_short(number, sizeof number, us, magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0);
    snprintf(buffer, size, "%s %s", number, units[unit]);
    return buffer;
}
