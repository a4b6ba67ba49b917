// inherit.c - the signals that this command was started with, for the program that replaces it to be started
// with: the Go runtime handles what was ignored and unblocks what was blocked, which an exec would pass on.
#include <signal.h>
#include <stddef.h>

static sigset_t mask, ignored;

// Before the Go runtime starts.
__attribute__((constructor)) static void remember(void)
{
	sigprocmask(SIG_BLOCK, NULL, &mask);
	sigemptyset(&ignored);
	for (int s = 1; s < NSIG; s++) {
		struct sigaction action;
		if (sigaction(s, NULL, &action) == 0 && action.sa_handler == SIG_IGN)
			sigaddset(&ignored, s);
	}
}

// give_back_signals is for the thread that is about to exec.
void give_back_signals(void)
{
	for (int s = 1; s < NSIG; s++)
		if (sigismember(&ignored, s) == 1)
			signal(s, SIG_IGN);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
}
