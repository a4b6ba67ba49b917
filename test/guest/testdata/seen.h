// seen.h - what a process sees of itself: signals, masks, descriptors, the signal stack, limits. Programs of test/e2e include it, too.
#ifndef TEST_SEEN_H
#define TEST_SEEN_H

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// Of the calling thread. more: the beginning of further lines of its status.
static inline void print_seen(FILE *to, const char *more)
{
	char line[256], path[64], target[256];
	FILE *status = fopen("/proc/thread-self/status", "re");
	while (status && fgets(line, sizeof line, status))
		if ((!strncmp(line, "Sig", 3) && line[3] != 'Q') || !strncmp(line, "ShdPnd", 6) ||
		    (more && !strncmp(line, more, strlen(more))))
			fputs(line, to);
	if (status)
		fclose(status);
	for (int fd = 0; fd < 1024; fd++) {
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		ssize_t length = readlink(path, target, sizeof target - 1);
		if (length > 0)
			fprintf(to, "descriptor %d %.4s\n", fd, target);
	}
	for (int s = 1; s < NSIG; s++) {
		struct sigaction action;
		if (!sigaction(s, NULL, &action) && (action.sa_handler != SIG_DFL || action.sa_flags))
			fprintf(to, "signal %d %s flags %x mask %lx\n", s,
				action.sa_handler == SIG_IGN ? "ignored" : "handled", action.sa_flags,
				*(unsigned long *)&action.sa_mask);
	}
	stack_t stack;
	struct rlimit files;
	int flags = sigaltstack(NULL, &stack) ? -1 : stack.ss_flags;
	fprintf(to, "signal stack %d of %zu\n", flags, flags == SS_DISABLE ? 0 : stack.ss_size);
	fprintf(to, "files %ld\n", getrlimit(RLIMIT_NOFILE, &files) ? -1 : (long)files.rlim_cur);
}

#endif
