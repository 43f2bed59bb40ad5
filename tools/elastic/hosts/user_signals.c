/* Signals of the user; see the header. */
#include "tools/elastic/hosts/user_signals.h"

#include <signal.h>
#include <stdbool.h>
#include <sys/signalfd.h>
#include <unistd.h>

/* What is ignored already stays so: nohup, and jobs that a script starts beside itself. */
static bool is_ignored(int number)
{
    struct sigaction before;
    return sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN;
}

int smp__user_signals_open(void)
{
    sigset_t all;
    sigemptyset(&all);
    const int ends[] = {SIGTERM, SIGINT, SIGUSR1, SIGHUP};
    signal(SIGCHLD, SIG_DFL); /* ignored, children would go unseen */
    sigaddset(&all, SIGCHLD);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        if (!is_ignored(ends[i]))
            sigaddset(&all, ends[i]);
    signal(SIGPIPE, SIG_IGN);
    return sigprocmask(SIG_BLOCK, &all, NULL) == 0 ? signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK)
                                                   : -1;
}

int smp__user_signals_take(int signals)
{
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD)
            return (int)info.ssi_signo;
    return 0;
}
