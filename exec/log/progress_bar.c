/* The bar: exec/log/progress_bar.h. */
#include "exec/log/progress_bar.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "graph/base/clock.h"

enum { MIN_COLUMNS = 20, MAX_COLUMNS = 240, BAR_LEAST = 8, BAR_MOST = 30 };
static const double EVERY_S = 0.25;
static const char away[] = "\r\033[K"; /* to the left, and all after it gone */

/* A terminal behind a stream of this process, or of the mpirun that started it; -1: none. To be
 * closed. */
static int open_terminal(int stream)
{
    char path[64];
    if (isatty(stream))
        return dup(stream);
    if (!getenv("OMPI_COMM_WORLD_RANK"))
        return -1;
    snprintf(path, sizeof(path), "/proc/%ld/fd/%d", (long)getppid(), stream);
    char target[64];
    const ssize_t n = readlink(path, target, sizeof(target) - 1);
    if (n < 5 || strncmp(target, "/dev/", 5) != 0) /* opening a pipe could wait */
        return -1;
    const int fd = open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && isatty(fd))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

bool smp__bar_terminal(int *columns)
{
    struct winsize size = {0};
    const int fd = open_terminal(STDERR_FILENO);
    *columns = 80;
    if (fd < 0)
        return false;
    if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        *columns = size.ws_col;
    close(fd);
    return true;
}

void smp__bar_begin(smp__progress_bar *bar, int64_t first, int64_t last)
{
    const int out = open_terminal(STDOUT_FILENO);
    *bar = (smp__progress_bar){.on = true, .lines_too = out >= 0, .first = first, .last = last};
    (void)smp__bar_terminal(&bar->columns);
    if (out >= 0)
        close(out);
    bar->begin_s = smp_clock_s();
}

static void format_left(char *text, size_t size, double left_s)
{
    const int64_t s = left_s < 1e8 ? llround(left_s) : 100000000;
    if (left_s < 0.0)
        text[0] = '\0';
    else if (s >= 86400)
        snprintf(text, size, "  %" PRId64 " d %" PRId64 " h left", s / 86400, s % 86400 / 3600);
    else if (s >= 3600)
        snprintf(text, size, "  %" PRId64 ":%02d:%02d left", s / 3600, (int)(s % 3600 / 60),
                 (int)(s % 60));
    else
        snprintf(text, size, "  %d:%02d left", (int)(s / 60), (int)(s % 60));
}

void smp__bar_line(char *line, int columns, int64_t step, int64_t last, double loss, double per_s,
                   const char *unit, double left_s)
{
    char text[160], left[48], value[40] = "";
    const double share = last > 0 ? fmin((double)step / (double)last, 1.0) : 1.0;
    columns = columns < MIN_COLUMNS ? MIN_COLUMNS : columns > MAX_COLUMNS ? MAX_COLUMNS : columns;
    format_left(left, sizeof(left), left_s);
    if (!isnan(loss))
        snprintf(value, sizeof(value), "  loss %.4g", loss);
    snprintf(text, sizeof(text), "step %" PRId64 "/%" PRId64 "%s  %.0f %s/s%s", step, last, value,
             per_s, unit, left);
    int wide = columns - 1 - (int)strlen(text) - 3;
    wide = wide > BAR_MOST ? BAR_MOST : wide;
    if (wide < BAR_LEAST) { /* the text, as much of it as goes */
        snprintf(line, (size_t)columns, "%s", text);
        return;
    }
    const int done = (int)(share * wide);
    char bar[BAR_MOST + 1];
    memset(bar, '.', (size_t)wide);
    memset(bar, '#', (size_t)done);
    bar[wide] = '\0';
    snprintf(line, (size_t)columns, "[%s] %s", bar, text);
}

void smp__bar_step(smp__progress_bar *bar, int64_t step, double loss, double per_s,
                   const char *unit)
{
    char line[MAX_COLUMNS + 1];
    const double now = smp_clock_s();
    if (!bar->on || now - bar->drawn_s < EVERY_S)
        return;
    const double each_s = (now - bar->begin_s) / (double)(step - bar->first);
    smp__bar_line(line, bar->columns, step, bar->last, loss, per_s, unit,
                  each_s * (double)(bar->last - step));
    fprintf(stderr, "%s%s", away, line);
    fflush(stderr);
    bar->stands = true;
    bar->drawn_s = now;
}

void smp__bar_lift(smp__progress_bar *bar)
{
    if (bar->on && bar->lines_too)
        fputs(away, stdout); /* what follows it there is printed at once */
    if (!bar->stands)
        return;
    fputs(away, stderr);
    fflush(stderr);
    bar->stands = false;
}
