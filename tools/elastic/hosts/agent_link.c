/* The link to an agent; see the header, and agent.h for the lines. What comes is not trusted: its
 * lines are bounded, its numbers are checked by who uses them. */
#include "tools/elastic/hosts/agent_link.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/elastic/hosts/agent.h"

enum { BLOCK = 4096, WAITING_MOST = 1 << 20, STATES_MOST = 8 };
enum { STATE_BYTES = 1 << 28 }; /* ten million spans, each part of a weight that lies alone */

smp_status smp__agent_link_open(char *const *argv, bool local, smp__agent_link *out)
{
    *out = (smp__agent_link)SMP__NO_LINK;
    /* A local agent outlives this process; the shell to another host need not. */
    return smp__child_start(argv, true, local ? 0 : SIGTERM, &out->child);
}

void smp__agent_link_leave(smp__agent_link *link)
{
    smp_text_free(&link->in);
    smp_text_free(&link->out);
    smp_text_free(&link->err);
    smp_text_free(&link->pieces);
    smp__kept_states_free(link->states, link->n_states);
    link->states = NULL;
    link->n_states = 0;
    smp__child_close(&link->child);
}

void smp__agent_link_cut(smp__agent_link *link)
{
    smp__child_kill(&link->child);
    smp__child_bury(&link->child);
    smp__agent_link_leave(link);
}

static void send_waiting(smp__agent_link *link)
{
    while (link->in.length > 0 && link->child.in >= 0) {
        const ssize_t n = write(link->child.in, link->in.data, link->in.length);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) /* full, or broken: then the other pipe ends, too */
            return;
        memmove(link->in.data, link->in.data + n, link->in.length - (size_t)n);
        link->in.length -= (size_t)n;
    }
}

void smp__agent_link_say(smp__agent_link *link, const char *format, ...)
{
    char line[SMP__AGENT_LINE];
    va_list values;
    va_start(values, format);
    const int n = vsnprintf(line, sizeof line, format, values);
    va_end(values);
    if (n > 0 && n < (int)sizeof line && link->in.length < WAITING_MOST)
        smp_text_append(&link->in, "%s\n", line);
    send_waiting(link);
}

static void keep_why(smp__agent_link *link, const char *text)
{
    snprintf(link->why, sizeof link->why, "%.1000s", text);
    for (char *at = link->why; *at; at++)
        *at = *at < ' ' && *at >= 0 ? ' ' : *at;
}

static bool greet(smp__agent_link *link, const char *line)
{
    const char *hello = SMP__AGENT_HELLO;
    if (strncmp(line, hello, strlen(hello)) != 0)
        return false;
    snprintf(link->kind, sizeof link->kind, "%.250s", line + strlen(hello));
    for (char *at = link->kind; *at; at++)
        *at = *at < ' ' || *at > '~' || *at == '"' || *at == '\\' ? ' ' : *at;
    link->greeted = true;
    return true;
}

static bool take_piece(smp__agent_link *link, const char *piece)
{
    smp_text_append(&link->pieces, "%s", piece);
    return !link->pieces.failed && link->pieces.length <= STATE_BYTES;
}

/* Its last piece. */
static bool take_state(smp__agent_link *link, const char *line)
{
    smp__kept_state state;
    const bool right = take_piece(link, line) && link->n_states < STATES_MOST &&
                       smp__kept_state_parse(link->pieces.data, &state);
    smp_text_free(&link->pieces);
    if (!right)
        return false;
    smp__kept_state *more = realloc(link->states, ((size_t)link->n_states + 1) * sizeof *more);
    if (!more) {
        smp__kept_state_free(&state);
        return false;
    }
    link->states = more;
    link->states[link->n_states++] = state;
    return true;
}

/* false: the line is none of an agent. */
static bool take_line(smp__agent_link *link, const char *line,
                      void (*tell)(void *of, const smp__told_rank *rank), void *of)
{
    smp__told_rank rank = {0};
    int64_t number = 0;
    int flag = 0, at = 0;
    double quiet_ms = 0.0;
    if (sscanf(line, "failed %" SCNd64 " %n", &number, &at) == 1 && at > 0) {
        link->failed = number;
        keep_why(link, line + at);
        return true;
    }
    if (!link->greeted)
        return greet(link, line);
    if (strcmp(line, "beat") == 0)
        return true;
    if (sscanf(line, "rank %d %d %d %" SCNd64 " %lf", &rank.rank, &rank.pid, &flag, &rank.step,
               &quiet_ms) == 5) {
        rank.lives = flag != 0;
        rank.quiet_s = isfinite(quiet_ms) && quiet_ms > 0.0 ? 1e-3 * quiet_ms : 0.0;
        tell(of, &rank);
        return true;
    }
    if (sscanf(line, "ready %" SCNd64 " %d", &number, &flag) == 2) {
        link->ready = number;
        link->has_state = flag != 0;
        return true;
    }
    if (strncmp(line, "more ", strlen("more ")) == 0)
        return take_piece(link, line + strlen("more "));
    if (strncmp(line, "state ", strlen("state ")) == 0)
        return take_state(link, line + strlen("state "));
    if (sscanf(line, "put %" SCNd64, &number) == 1 && number >= 0) {
        link->put = number;
        return true;
    }
    link->told_states = link->told_states || strcmp(line, "states") == 0;
    link->removed = link->removed || strcmp(line, "removed") == 0;
    return strcmp(line, "states") == 0 || strcmp(line, "removed") == 0;
}

/* Whole lines one by one, until `take` refuses one, which then stands at the beginning. */
static bool take_lines(smp_text *text, bool (*take)(void *of, const char *line), void *of)
{
    size_t at = 0;
    bool right = true;
    for (char *end;
         at < text->length && (end = memchr(text->data + at, '\n', text->length - at)) != NULL;) {
        *end = '\0';
        right = take(of, text->data + at);
        if (!right)
            break;
        at = (size_t)(end - text->data) + 1;
    }
    if (at > 0)
        memmove(text->data, text->data + at, text->length - at);
    text->length -= at;
    return right;
}

/* false: the pipe has ended. */
static bool read_pipe(int file, smp_text *text, bool *any)
{
    char block[BLOCK];
    for (int i = 0; file >= 0 && i < 64; i++) { /* not for ever: others wait */
        const ssize_t n = read(file, block, sizeof block);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return true;
        if (n <= 0)
            return false;
        smp_text_append_bytes(text, block, (size_t)n);
        *any = true;
    }
    return file >= 0;
}

typedef struct hearing {
    smp__agent_link *link;
    void (*tell)(void *of, const smp__told_rank *rank);
    void *of;
} hearing;

static bool hear_line(void *of, const char *line)
{
    const hearing *h = of;
    return take_line(h->link, line, h->tell, h->of);
}

/* What the shell or the agent says to people. */
static bool hear_error(void *of, const char *line)
{
    smp__agent_link *link = of;
    if (line[0] != '\0' && link->failed < 0)
        keep_why(link, line);
    return true;
}

bool smp__agent_link_hear(smp__agent_link *link, void (*tell)(void *of, const smp__told_rank *rank),
                          void *of)
{
    bool any = false, ignored = false;
    hearing to = {link, tell, of};
    send_waiting(link);
    const bool open = read_pipe(link->child.out, &link->out, &any);
    const bool right = take_lines(&link->out, hear_line, &to) && !link->out.failed &&
                       link->out.length <= SMP__AGENT_LINE;
    if (link->child.err >= 0 && !read_pipe(link->child.err, &link->err, &ignored)) {
        close(link->child.err);
        link->child.err = -1;
    }
    (void)take_lines(&link->err, hear_error, link);
    if (link->err.length > SMP__AGENT_LINE) /* whoever reads it needs no more */
        link->err.length = 0;
    if (any)
        link->silent_s = 0.0;
    if (!right) {
        char why[128];
        const size_t length = link->out.length < 40 ? link->out.length : 40;
        snprintf(why, sizeof why, "got '%.*s', expected the lines of an agent", (int)length,
                 link->out.data);
        keep_why(link, why);
    }
    return open && right;
}

void smp__agent_link_put_polls(const smp__agent_link *link, struct pollfd *polls)
{
    polls[0] = (struct pollfd){.fd = link->child.out, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = link->child.err, .events = POLLIN};
    polls[2] = (struct pollfd){.fd = link->in.length > 0 ? link->child.in : -1, .events = POLLOUT};
}
