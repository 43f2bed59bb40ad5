/* Signals that end a job. The handler formats by hand: only system calls are
 * safe in it. */
#include "exec/job/on_signal.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "exec/save/checkpoint_save.h"
#include "exec/state/handle.h"

enum { BYTES = 256, STACK_BYTES = 64 * 1024 };

static const smp *volatile job;
static volatile sig_atomic_t saves; /* at a step boundary there is where to */
static volatile sig_atomic_t asked; /* the signal that asks for the end; 0: none */

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
    const smp_action at = smp__place_at(s->place);
    if (at.chunk >= 0 && at.chunk < s->work->chunks) {
        put_text(line, used, ", stage ");
        put_number(line, used, s->work->stage_of_chunk[at.chunk]);
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

static _Noreturn void speak(void)
{
    const smp *s = job;
    const char *doing = smp__place_words(s->place);
    char line[BYTES];
    size_t used = 0;
    put_text(line, &used, "smp-run: the job was ended: rank ");
    put_number(line, &used, s->comm->world_rank);
    put_text(line, &used, " (replica ");
    put_number(line, &used, s->comm->replica);
    put_text(line, &used, ", pipeline rank ");
    put_number(line, &used, s->comm->pipeline_rank);
    if (s->comm->tensor_size > 1) {
        put_text(line, &used, ", device ");
        put_number(line, &used, s->comm->tensor_rank);
        put_text(line, &used, " of ");
        put_number(line, &used, s->comm->tensor_size);
    }
    if (doing)
        put_doing(line, &used, s, doing);
    else
        put_action(line, &used, s);
    put_text(line, &used, "\n");
    smp__save_drop_lock(s);
    ssize_t written = write(STDERR_FILENO, line, used);
    (void)written; /* nobody left to tell */
    _exit(1);
}

static void handle(int number)
{
    const int before = errno;
    /* mpirun sends SIGTERM to the survivors of a rank, too: they never come to a boundary. */
    if (!saves || (number == SIGTERM && !smp__comm_node_lives(job->comm)))
        speak();
    asked = number;
    errno = before;
}

/* In the middle of a product oneDNN's stack pointer lies in a buffer of the heap: the kernel would
 * put the handler's frame over what lies below. A stack that is there stays (a sanitiser's). */
static void use_other_stack(void)
{
    static _Alignas(64) unsigned char stack[STACK_BYTES];
    const stack_t ours = {.ss_sp = stack, .ss_size = sizeof stack};
    stack_t now;
    if (sigaltstack(NULL, &now) == 0 && (now.ss_flags & SS_DISABLE))
        sigaltstack(&ours, NULL); /* refused: a processor whose state is larger */
}

static void set_handler(int number, bool on)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = on ? handle : SIG_DFL;
    action.sa_flags = SA_ONSTACK;
    if (number != SIGTERM) /* mpirun takes no output while it ends a job: a write must not go on */
        action.sa_flags |= SA_RESTART;
    sigaction(number, &action, NULL);
}

void smp__on_signal(smp *s, bool saves_then)
{
    if (s && saves_then)
        s->comm->signalled = &asked;
    if (s) /* the handler finds a job whenever it is called */
        job = s;
    else
        asked = 0;
    if (s || saves_then)
        saves = saves_then;
    use_other_stack();
    set_handler(SIGUSR1, s || saves_then);
    set_handler(SIGTERM, s);
}

const volatile sig_atomic_t *smp__signal_asked(void)
{
    return &asked;
}
