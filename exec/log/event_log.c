/* A log as an event file of TensorBoard, in the public format that TensorFlow documents:
 *
 * - framing (tensorflow.org, "TFRecord and tf.train.Example"): length as uint64, masked CRC of the
 *   length, data, masked CRC of the data, all little-endian; masked is rotated by 15 bits plus a
 *   constant; the CRC is CRC-32C (RFC 3720, B.4), here bit by bit: rows are short;
 * - data (tensorflow/core/util/event.proto, framework/summary.proto; protobuf wire format):
 *   Event {1 double wall_time, 2 int64 step, 3 string file_version, 5 Summary summary},
 *   Summary {1 repeated Value}, Value {1 string tag, 2 float simple_value}.
 *
 * The file has one fixed name, so that a run that resumes finds it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "exec/log/step_log.h"

enum { LENGTH_BYTES = 8, CRC_BYTES = 4, FRAME_BYTES = LENGTH_BYTES + 2 * CRC_BYTES };
enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5 };
enum { MOST_BYTES = 2048 }; /* of the data of a row */

static const char file_name[] = "events.out.tfevents.1.smp";

typedef struct message {
    unsigned char data[MOST_BYTES];
    size_t n;
} message;

static uint32_t masked_crc(const void *data, size_t n)
{
    const unsigned char *byte = data;
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < n; i++) {
        crc ^= byte[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static void put_bytes(message *m, const void *data, size_t n)
{
    if (n > sizeof(m->data) - m->n)
        return; /* a row fits: its columns are a table of this tree */
    memcpy(m->data + m->n, data, n);
    m->n += n;
}

static void put_little(message *m, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)(value >> 8 * i);
        put_bytes(m, &byte, 1);
    }
}

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_little(m, (value & 0x7f) | 0x80, 1);
    put_little(m, value, 1);
}

static void put_key(message *m, int field, int wire)
{
    put_varint(m, (uint64_t)(field << 3 | wire));
}

static void put_part(message *m, int field, const void *data, size_t n)
{
    put_key(m, field, WIRE_BYTES);
    put_varint(m, n);
    put_bytes(m, data, n);
}

static void put_time(message *m)
{
    struct timespec now;
    uint64_t bits;
    clock_gettime(CLOCK_REALTIME, &now);
    const double seconds = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    memcpy(&bits, &seconds, sizeof(bits));
    put_key(m, EVENT_TIME, WIRE_64);
    put_little(m, bits, 8);
}

static void put_value(message *summary, const char *tag, double value)
{
    message m = {.n = 0};
    const float rounded = (float)value;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof(bits));
    put_part(&m, 1, tag, strlen(tag));
    put_key(&m, 2, WIRE_32);
    put_little(&m, bits, 4);
    put_part(summary, 1, m.data, m.n);
}

static void put_record(smp_text *out, const message *m)
{
    message head = {.n = 0}, tail = {.n = 0};
    put_little(&head, m->n, LENGTH_BYTES);
    put_little(&head, masked_crc(head.data, LENGTH_BYTES), CRC_BYTES);
    put_little(&tail, masked_crc(m->data, m->n), CRC_BYTES);
    smp_text_append_bytes(out, (const char *)head.data, head.n);
    smp_text_append_bytes(out, (const char *)m->data, m->n);
    smp_text_append_bytes(out, (const char *)tail.data, tail.n);
}

static smp_status locate(const char *name, char **path)
{
    const size_t n = strlen(name) + sizeof(file_name) + 1;
    struct stat there;
    if (mkdir(name, 0777) != 0 && errno != EEXIST)
        return smp_fail(SMP_ERR_INPUT, "%s: cannot make the folder of the log: %s", name,
                        strerror(errno));
    if (stat(name, &there) != 0 || !S_ISDIR(there.st_mode))
        return smp_fail(SMP_ERR_INPUT,
                        "--log: got the file '%s', expected FILE.csv, or a folder for TensorBoard",
                        name);
    *path = malloc(n);
    if (!*path)
        return smp_fail_memory(n);
    snprintf(*path, n, "%s/%s", name, file_name);
    return SMP_OK;
}

static void begin(smp_text *out)
{
    static const char version[] = "brain.Event:2";
    message m = {.n = 0};
    put_time(&m);
    put_part(&m, EVENT_VERSION, version, sizeof(version) - 1);
    put_record(out, &m);
}

static void put_row(const smp__log_row *row, smp_text *out)
{
    message m = {.n = 0}, summary = {.n = 0};
    for (int i = 0; i < SMP__LOG_N_COLUMNS; i++)
        if (row->known[i])
            put_value(&summary, smp__log_columns[i].tag, row->value[i]);
    put_time(&m);
    put_key(&m, EVENT_STEP, WIRE_VARINT);
    put_varint(&m, (uint64_t)row->step);
    put_part(&m, EVENT_SUMMARY, summary.data, summary.n);
    put_record(out, &m);
}

static uint64_t get_little(const char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)(unsigned char)at[i] << 8 * i;
    return value;
}

static bool get_varint(const char **at, const char *end, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; *at < end && shift < 64; shift += 7) {
        const unsigned char byte = (unsigned char)*(*at)++;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return false;
}

/* The step of an event, 0 if it has none; false: not an event. */
static bool read_step(const char *at, size_t n, uint64_t *step)
{
    const char *end = at + n;
    uint64_t key, value;
    for (*step = 0; at < end;) {
        if (!get_varint(&at, end, &key))
            return false;
        uint64_t skip = (key & 7) == WIRE_64 ? 8 : (key & 7) == WIRE_32 ? 4 : 0;
        if ((key & 7) == WIRE_VARINT || (key & 7) == WIRE_BYTES) {
            if (!get_varint(&at, end, &value))
                return false;
            if (key == (EVENT_STEP << 3 | WIRE_VARINT))
                *step = value;
            skip = (key & 7) == WIRE_BYTES ? value : 0;
        } else if (skip == 0) {
            return false;
        }
        if (skip > (uint64_t)(end - at))
            return false;
        at += skip;
    }
    return true;
}

static smp_status keep_events(const char *path, const char *old, size_t bytes, int64_t last,
                              smp_text *kept)
{
    for (size_t at = 0, n; bytes - at >= FRAME_BYTES; at += FRAME_BYTES + n) {
        const char *data = old + at + LENGTH_BYTES + CRC_BYTES;
        const uint64_t length = get_little(old + at, LENGTH_BYTES);
        uint64_t step = 0;
        bool whole =
            get_little(old + at + LENGTH_BYTES, CRC_BYTES) == masked_crc(old + at, LENGTH_BYTES);
        if (whole && length > bytes - at - FRAME_BYTES)
            break; /* not written to its end */
        n = (size_t)length;
        whole = whole && get_little(data + n, CRC_BYTES) == masked_crc(data, n);
        if (!whole || !read_step(data, n, &step))
            return smp_fail(SMP_ERR_INPUT,
                            "%s: not an event file to go on with: byte %zu begins no record", path,
                            at);
        if (step > (uint64_t)last)
            break;
        smp_text_append_bytes(kept, old + at, FRAME_BYTES + n);
    }
    if (kept->length == 0) /* stopped in its first record */
        begin(kept);
    return SMP_OK;
}

const smp__log_kind smp__log_events = {
    .locate = locate, .keep = keep_events, .begin = begin, .row = put_row};
