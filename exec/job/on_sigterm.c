/* The message of a rank that is ended from outside. The handler formats by hand: only write and
 * _exit are safe in it. */
#include "exec/job/on_sigterm.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "exec/state/handle.h"

enum { BYTES = 256 };

static const smp *volatile job;

static void put_text(char *line, size_t *used, const char *text)
{
    for (; *text && *used < BYTES - 1; text++)
        line[(*used)++] = *text;
}

static void put_number(char *line, size_t *used, int number)
{
    char digits[16];
    int n = 0;
    unsigned value = number < 0 ? 0u - (unsigned)number : (unsigned)number;
    do
        digits[n++] = (char)('0' + value % 10);
    while ((value /= 10) > 0);
    if (number < 0)
        digits[n++] = '-';
    while (n > 0 && *used < BYTES - 1)
        line[(*used)++] = digits[--n];
}

/* ", stage 5, micro-batch 7) was at action B of step 42" */
static void put_action(char *line, size_t *used, const smp *s)
{
    smp_action at = s->current;
    if (at.chunk >= 0 && at.chunk < s->chunks) {
        put_text(line, used, ", stage ");
        put_number(line, used, s->stage_of_chunk[at.chunk]);
    }
    if (at.microbatch >= 0) {
        put_text(line, used, ", micro-batch ");
        put_number(line, used, at.microbatch);
    }
    put_text(line, used, ") was at action ");
    put_text(line, used, smp_action_letters(at.kind));
    put_text(line, used, " of step ");
    put_number(line, used, (int)s->step + 1);
}

/* ") was saving a checkpoint after step 41" */
static void put_doing(char *line, size_t *used, const smp *s, const char *doing)
{
    put_text(line, used, ") was ");
    put_text(line, used, doing);
    put_text(line, used, " after step ");
    put_number(line, used, (int)s->step);
}

static void speak(int signal_number)
{
    const smp *s = job;
    const char *doing = s->doing;
    char line[BYTES];
    size_t used = 0;
    put_text(line, &used, "smp-run: the job was ended: rank ");
    put_number(line, &used, s->comm.world_rank);
    put_text(line, &used, " (replica ");
    put_number(line, &used, s->comm.replica);
    put_text(line, &used, ", pipeline rank ");
    put_number(line, &used, s->comm.pipeline_rank);
    if (s->comm.tensor_size > 1) {
        put_text(line, &used, ", device ");
        put_number(line, &used, s->comm.tensor_rank);
        put_text(line, &used, " of ");
        put_number(line, &used, s->comm.tensor_size);
    }
    if (doing)
        put_doing(line, &used, s, doing);
    else
        put_action(line, &used, s);
    put_text(line, &used, "\n");
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written; /* nobody left to tell */
    (void)signal_number;
    _exit(1);
}

void smp__on_sigterm(const smp *s)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = s ? speak : SIG_DFL;
    if (s) /* the handler finds a job whenever it is called */
        job = s;
    sigaction(SIGTERM, &action, NULL);
}
